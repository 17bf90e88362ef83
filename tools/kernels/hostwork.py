"""What a session start by GPU costs the host: a device that has all answers beforehand stands in a GPU's place.

``python -m tools.kernels.hostwork TOKENIZER...`` prints microseconds of each part in the quietest round, for mixed and
for ASCII text, alone and with several threads at once, and beside it the CPU path of the same machine. No GPU is
needed; what a GPU itself takes is in ``docs/bench/gpu.json``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from toktier.chunks import ChunkEncoder
from toktier.files import TokenizerFiles
from toktier.gpu.router.cuda import failure_of
from toktier.gpu.router.devices import Failed
from toktier.gpu.router.engine import GpuEngine, Shared
from toktier.gpu.router.jobs import Limits, Tokenizer
from toktier.gpu.router.router import Router
from toktier.gpu.router.scratch import give
from toktier.gpu.router.segments import Segmenter, segmenter_of
from toktier.gpu.tables import Tables, tables_of
from toktier.gpu.vocabulary import BREAK_ID
from toktier.ids import Ids
from toktier.reasons import Gpu
from toktier.rope import Rope
from toktier.tokenizer import FrozenTokenizer
from tools.bench.texts import corpus, styled
from tools.kernels.check import read
from tools.kernels.host import HostDevice, core

CACHE = Path("var") / "gpu-check"
KEY = "told"
_BEGINNING = 64
_BREAK: Ids = np.array([BREAK_ID], np.uint32)


@dataclass
class ToldDevice:
    """Answers, and the length of the text, by how a text begins; a launch may hold several. See
    `toktier.gpu.router.devices.OpenDevice`; it is its own encoder."""

    answers: dict[bytes, tuple[int, Ids]] = field(default_factory=dict)
    staging: Any = field(default_factory=lambda: np.zeros(1 << 26, np.uint8))
    name: str = "told"

    def encoder(self, _tables: Tables, _room: int) -> ToldDevice:
        return self

    def encode_view(self, segment: bytes) -> Ids:
        self.staging[: len(segment)] = np.frombuffer(segment, np.uint8)  # as the launcher does
        parts: list[Ids] = []
        at = 0
        while at < len(segment):
            length, ids = self.answers[bytes(segment[at : at + _BEGINNING])]
            parts += (_BREAK, ids)
            at += length + 1
        return parts[1] if len(parts) == 2 else np.concatenate(parts[1:])

    def failure(self, error: BaseException) -> Failed:
        return failure_of(error)

    def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True)
class Subject:
    """One tokenizer and a router over a `ToldDevice`, for which `tell` finds the answers."""

    cpu: ChunkEncoder
    gpu: GpuEngine
    segmenter: Segmenter
    device: ToldDevice
    truth: Callable[[bytes], Ids]

    def tell(self, text: str) -> None:
        buffer = self.segmenter.segments(self.cpu.pieces(text, True)).buffer
        self.device.answers[buffer[:_BEGINNING].tobytes()] = len(buffer), self.truth(buffer.tobytes()).copy()


def subject_of(tokenizer: FrozenTokenizer, files: TokenizerFiles, cache_dir: Path) -> Subject:
    tables = tables_of(files, cache_dir=cache_dir)
    segmenter = segmenter_of(tokenizer.spec, tokenizer.reference, cache_dir)
    device = ToldDevice()
    router = Router(lambda _: device, [0], Limits(timeout_s=60.0))
    router.add(Tokenizer(KEY, tables, lambda _: None))
    while router.refuses(KEY) is not None:
        time.sleep(0.001)
    gpu = GpuEngine(router, Shared(KEY, segmenter, from_chars=1), lambda: True)
    host = HostDevice(core(Path(".cache") / "gpu-core")).encoder(tables, 1 << 30)
    return Subject(tokenizer.encoder, gpu, segmenter, device, host.encode_view)


def parts(subject: Subject, texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Microseconds of each step of one text after the other, in the quietest round."""
    laps: dict[str, list[int]] = {
        name: [] for name in ("cut", "segments", "device", "assemble", "rope and cut", "gpu path", "cpu path")
    }
    both = replace(subject.cpu, gpu=subject.gpu)
    for k in range(rounds):
        text = texts[k % len(texts)]
        at = [time.perf_counter_ns()]
        pieces = subject.cpu.pieces(text, True)
        at.append(time.perf_counter_ns())
        made = subject.segmenter.segments(pieces)
        at.append(time.perf_counter_ns())
        told = subject.gpu.router.encode(KEY, made)
        at.append(time.perf_counter_ns())
        ids, counts = made.assembled(told)
        give(told, made.buffer)
        at.append(time.perf_counter_ns())
        for name, a, b in zip(laps, at, at[1:], strict=False):
            laps[name].append(b - a)
        known = replace(subject.cpu, gpu=_Known(ids, counts))
        for name, encoder in (("gpu path", both), ("cpu path", subject.cpu), ("rope and cut", known)):
            rope = Rope(encoder)
            started = time.perf_counter_ns()
            splice = rope.set(text)
            laps[name].append(time.perf_counter_ns() - started)
            if name == "gpu path" and splice.gpu is not Gpu.USED:
                raise RuntimeError(f"the GPU path was not taken: {splice.gpu}")
            if not np.array_equal(rope.ids, ids):
                raise RuntimeError("the paths differ")
    return {name: round(min(own) / 1000, 1) for name, own in laps.items()}


class _Known:
    """A GPU path that has the IDs: what is left is the rope's own work. See `toktier.chunks.GpuPath`."""

    standing, from_chars = Gpu.USED, 1

    def __init__(self, ids: Ids, counts: Sequence[int]) -> None:
        self._told = ids, counts

    def encode(self, _pieces: Sequence[str]) -> tuple[Ids, Sequence[int]]:
        return self._told

    def cpu_took(self, why: Gpu, chars: int, ns: int) -> None:
        """Nothing is kept."""


def together(subject: Subject, texts: Sequence[str], threads: int, rounds: int) -> dict[str, float]:
    """Several threads begin sessions at once: milliseconds of each start, P50, on both paths."""
    found = {}
    for name, encoder in (("gpu path", replace(subject.cpu, gpu=subject.gpu)), ("cpu path", subject.cpu)):

        def one(number: int, encoder: ChunkEncoder = encoder) -> list[int]:
            times = []
            for k in range(rounds):
                rope = Rope(encoder)
                started = time.perf_counter_ns()
                rope.set(texts[(number + k) % len(texts)])
                times.append(time.perf_counter_ns() - started)
            return times

        with ThreadPoolExecutor(threads) as pool:
            rows = list(pool.map(one, range(threads)))
        if subject.gpu.standing is not Gpu.USED:
            raise RuntimeError("the device failed")
        found[name] = round(statistics.median(ns for row in rows for ns in row) / 1e6, 2)
    return found


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels.hostwork", description=__doc__)
    parser.add_argument("tokenizers", type=Path, nargs="+")
    parser.add_argument("--chars", type=int, nargs="+", default=[64_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    sys.setswitchinterval(0.001)  # as the server has it
    rows = []
    for folder in arguments.tokenizers:
        files = read(folder)
        subject = subject_of(FrozenTokenizer.from_files(files, cache_dir=CACHE), files, CACHE)
        for size in arguments.chars:
            for style in ("mixed", "prose"):
                texts = [corpus(k, size) if style == "mixed" else styled(style, k, size) for k in range(3)]
                for text in texts:
                    subject.tell(text)
                told = {
                    "tokenizer": folder.name,
                    "chars": size,
                    "style": style,
                    "us": parts(subject, texts, arguments.rounds),
                }
                told["ms together"] = together(subject, texts, arguments.threads, arguments.rounds)
                rows.append(told)
                print(json.dumps(told), flush=True)
        subject.gpu.router.close()
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
