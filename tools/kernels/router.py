"""On a machine with a GPU: the router's IDs beside the reference's, under load and under faults, and how long it takes.

``python -m tools.kernels.router TOKENIZER... --json FILE`` prints a line a step and exits 1 where an ID differed or a
request was lost. Steps, for each tokenizer unless said otherwise:

- *ready*: checked on the device, and from which size on it is used;
- *differential*: texts with literals and text that is not normal, by several threads at once, beside the reference;
- *wall*: one session start by size, on the GPU path, on the CPU path of the same encoder, and by the reference;
- *load*: threads that start sessions while as many processes as said compete for the cores, on the GPU path, on the
  CPU path, and on the one of both that `toktier.gpu.router.pace` takes for the faster;
- *faults*, of the last one: what a `tools.kernels.faults.Script` makes of calls. `tools.kernels.lost` has those that
  no script can make.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from toktier.chunks import ChunkEncoder
from toktier.engines.base import Reference
from toktier.errors import CannotEncode
from toktier.gpu.graph import DriverError
from toktier.gpu.launcher import KernelFault
from toktier.gpu.router.cuda import CudaDevice
from toktier.gpu.router.engine import Engines, GpuEngine
from toktier.gpu.router.jobs import Limits
from toktier.gpu.router.pace import Pace
from toktier.gpu.router.router import Router
from toktier.ids import Ids
from toktier.reasons import Gpu
from toktier.reference_of import reference_of
from toktier.rope import Rope
from toktier.tokenizer import FrozenTokenizer
from tools.bench.records import Record, record
from tools.bench.texts import corpus, styled
from tools.kernels.check import read
from tools.kernels.faults import Script, hangs, raises, wrong
from tools.kernels.host import HostDevice, core

CACHE = Path("var") / "gpu-check"
SIZES = (8_000, 64_000, 256_000, 1_000_000, 4_000_000)
MARKS = ("e\u0301", "A\u030a", "\u09af\u09bc", "\u304b\u3099", "\u1100\u1161\u11a8", "\u0915\u093c", "\u05d1\u05bc")


@cache
def _reference(folder: Path) -> tuple[Reference, list[str]]:
    files = read(folder)
    engine, _ = reference_of(files)
    return engine, literals_of(folder)


@cache
def literals_of(folder: Path) -> list[str]:
    files = read(folder)
    if files.sidecar is not None:
        return sorted(json.loads(files.sidecar)["special_tokens"])
    return [token["content"] for token in json.loads(files.tokenizer)["added_tokens"] if token["content"]]


def text_of(folder: Path, seed: int) -> str:
    """A conversation with literals, and here and there a mark that a normal form composes."""
    rng = random.Random(seed)
    literals = literals_of(folder)
    parts: list[str] = []
    left = rng.choice((3_000, 20_000, 60_000, 200_000, 700_000))
    while left > 0:
        size = rng.choice((50, 800, 4_000, 30_000))
        style = rng.choice(("code", "prose", "logs", "CJK", "mixed"))
        text = corpus(rng.getrandbits(32), size) if style == "mixed" else styled(style, rng.getrandbits(32), size)
        for _ in range(rng.choice((0, 0, 1, 5))):
            at = rng.randrange(len(text) + 1)
            text = text[:at] + rng.choice(MARKS) * rng.choice((1, 2, 60)) + text[at:]
        parts += (rng.choice(literals), rng.choice(("", "\n", "user\n")), text)
        left -= size
    return "".join(parts)


def answer(job: tuple[Path, int]) -> tuple[str, Ids] | None:
    """In a process beside: a text and the reference's IDs."""
    folder, seed = job
    text = text_of(folder, seed)
    try:
        return text, _reference(folder)[0].encode(text)
    except CannotEncode:
        return None


def spin(end: float) -> None:
    """In a process beside: keeps a core busy."""
    while time.time() < end:
        sum(k * k for k in range(10_000))


@contextmanager
def competing(count: int, seconds: float) -> Iterator[None]:
    context = multiprocessing.get_context("spawn")
    rivals = [context.Process(target=spin, args=(time.time() + seconds,), daemon=True) for _ in range(count)]
    for rival in rivals:
        rival.start()
    time.sleep(min(3.0, seconds / 4) if count else 0)
    try:
        yield
    finally:
        for rival in rivals:
            rival.kill()
            rival.join()


class Run:
    """One tokenizer."""

    def __init__(self, folder: Path, script: Script, engines: Engines) -> None:
        self.folder, self.script, self.engines = folder, script, engines
        files = read(folder)
        self.tokenizer = FrozenTokenizer.from_files(files, cache_dir=CACHE)
        self.trusted = True
        started = time.perf_counter()
        self.gpu: GpuEngine = engines.engine(self.tokenizer, files, lambda: self.trusted, CACHE)
        while self.gpu.standing is Gpu.LOADING:
            time.sleep(0.01)
        self.measured = self.gpu.from_chars
        say(
            f"{folder.name} ready: {self.gpu.standing.value}, from {self.measured} characters, "
            f"{time.perf_counter() - started:.1f} s"
        )
        self.cpu: ChunkEncoder = self.tokenizer.encoder
        self.both: ChunkEncoder = replace(self.cpu, gpu=self.gpu)
        self.rows: list[Record] = []
        self.told: dict[str, Any] = {"tokenizer": folder.name, "from_chars": self.measured}
        self.bad = 0

    def compare(self, text: str, want: Ids) -> Gpu | None:
        rope = Rope(self.both)
        splice = rope.set(text)
        if not np.array_equal(rope.ids, want):
            self.bad += 1
            first = int(np.flatnonzero(rope.ids[: len(want)] != want[: len(rope.ids)])[:1].sum())
            say(f"{self.folder.name} DIFFERENT at token {first} of {len(want)}, {len(text)} characters, {splice.gpu}")
        return splice.gpu

    def differential(self, pool: Any, texts: int, threads: int) -> None:
        chars, outcomes, lock = 0, Counter[str](), threading.Lock()

        def one(given: tuple[str, Ids] | None) -> None:
            nonlocal chars
            if given is not None:
                outcome = self.compare(*given)
                with lock:
                    chars += len(given[0])
                    outcomes[str(outcome)] += 1

        jobs = [(self.folder, seed) for seed in range(1000, 1000 + texts)]
        with ThreadPoolExecutor(threads) as own:
            list(own.map(one, pool.imap_unordered(answer, jobs)))
        self.told["differential"] = {"chars": chars, "outcomes": dict(outcomes), "different": self.bad}
        say(f"{self.folder.name} differential: {chars:,} characters, {dict(outcomes)}, {self.bad} different")

    def wall(self, rounds: int) -> None:
        for size in SIZES:
            fresh = [corpus(100 + seed, size) for seed in range(max(3, min(12, 6_000_000 // size)))]
            steady = fresh[:1] * max(4, min(rounds, 40_000_000 // size))
            line = f"{self.folder.name} wall {size:,}:"
            Rope(self.both).set(corpus(99, size))  # buffers
            for case, texts in (("fresh", fresh), ("steady", steady)):
                for engine, encoder in (("gpu", self.both), ("cpu", self.cpu)):
                    times, used = [], Counter[str]()
                    for text in texts:
                        rope = Rope(encoder)
                        started = time.perf_counter_ns()
                        splice = rope.set(text)
                        times.append(time.perf_counter_ns() - started)
                        used[str(splice.gpu)] += 1
                    self.rows.append(record(f"session start, {case}", engine, self.folder.name, size, times))
                    line += f" {case} {engine} {self.rows[-1].p50_us:,.0f}"
                    if engine == "gpu" and set(used) != {"used"}:
                        line += str(dict(used))
            say(line + " us")
            texts = fresh
            if size <= 1_000_000:
                started = time.perf_counter_ns()
                self.tokenizer.reference.encode(texts[0])
                self.rows.append(
                    record("session start", "reference", self.folder.name, size, [time.perf_counter_ns() - started])
                )
        self.parts(corpus(1, 1_000_000))

    def parts(self, text: str) -> None:
        """Where the time of one text goes, in microseconds."""
        segmenter, router = self.gpu.shared.segmenter, self.engines.router
        assert segmenter is not None
        laps: dict[str, list[int]] = {"cut": [], "segments": [], "device": [], "assemble": [], "call": []}
        for _ in range(12):
            at = [time.perf_counter_ns()]
            pieces = self.cpu.pieces(text, True)
            at.append(time.perf_counter_ns())
            made = segmenter.segments(pieces)
            at.append(time.perf_counter_ns())
            answered = router.encode(self.gpu.shared.key, made)
            at.append(time.perf_counter_ns())
            made.assembled(answered)
            at.append(time.perf_counter_ns())
            for name, a, b in zip(laps, at, at[1:], strict=False):
                laps[name].append(b - a)
            laps["call"].append(self.script.times[-1])  # of "device": within the launcher
        self.told["parts_us"] = {name: round(sorted(own)[6] / 1000) for name, own in laps.items()}
        say(f"{self.folder.name} parts of 1 M: {self.told['parts_us']} us")

    def load(self, rivals: int, seconds: float, threads: int) -> None:
        texts = [corpus(seed, size) for seed in range(3) for size in (30_000, 120_000, 500_000)]
        want = [self.tokenizer.encoder.encode(self.cpu.pieces(text, True)).ids for text in texts]
        with competing(rivals, 6 * seconds + 10):
            for engine, encoder in (("gpu", self.both), ("cpu", self.cpu), ("paced", self.both)):
                self.gpu.shared.pace = Pace() if engine == "paced" else None
                end = time.monotonic() + seconds
                rows: list[tuple[int, int, str]] = []
                before = [(w.tally.launches, w.tally.jobs) for w in self.engines.router.workers]

                def one(number: int, end: float = end, encoder: ChunkEncoder = encoder, rows: Any = rows) -> None:
                    rng = random.Random(number)
                    while time.monotonic() < end:
                        k = rng.randrange(len(texts))
                        rope = Rope(encoder)
                        started = time.perf_counter_ns()
                        splice = rope.set(texts[k])
                        rows.append((len(texts[k]), time.perf_counter_ns() - started, str(splice.gpu)))
                        if not np.array_equal(rope.ids, want[k]):
                            self.bad += 1

                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(one, range(threads)))
                done = [(w.tally.launches, w.tally.jobs) for w in self.engines.router.workers]
                gathered = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(before, done, strict=True)]
                for size in (30_000, 120_000, 500_000):
                    times = [ns for chars, ns, _ in rows if chars == size]
                    if times:
                        case = f"{threads} threads, {rivals} rivals, {engine}"
                        self.rows.append(record("session start", case, self.folder.name, size, times))
                last = self.rows[-1]
                say(
                    f"{self.folder.name} load {engine}: {len(rows)} starts, 500 K P50 {last.p50_us:,.0f} P99 "
                    f"{last.p99_us:,.0f} us, {dict(Counter(one for _, _, one in rows))}, "
                    f"launches and jobs {gathered}, {self.bad} different"
                )
                self.told.setdefault("load", {})[engine] = [len(rows), dict(Counter(one for _, _, one in rows))]
        self.gpu.shared.pace = None

    def faults(self) -> None:
        text = corpus(9, 300_000)
        want = self.tokenizer.reference.encode(text)
        go = threading.Event()
        lost = DriverError("cuStreamSynchronize", "CUDA_ERROR_LAUNCH_FAILED")
        memory = DriverError("cuMemAlloc", "CUDA_ERROR_OUT_OF_MEMORY")
        for name, fault in (
            ("kernel fault", raises(KernelFault())),
            ("memory", raises(memory)),
            ("lost", raises(lost)),
            ("hang", hangs(go)),
        ):
            if name == "hang":
                threading.Timer(2.0 + self.engines.router.limits.timeout_s, go.set).start()
            self.script.calls.append(fault)
            self.tell(name, self.compare(text, want), want, text)
        before, self.script.calls = self.bad, self.script.calls.__class__([wrong])
        outcome = self.compare(text, want)
        caught, self.bad = self.bad > before, before
        say(f"{self.folder.name} fault wrong: {outcome}, noticed by the comparison: {caught}")
        self.bad += not caught

    def tell(self, name: str, outcome: Gpu | None, want: Ids, text: str) -> None:
        started = time.monotonic()
        while self.gpu.standing is not Gpu.USED and time.monotonic() < started + 30:
            time.sleep(0.005)
        back = time.monotonic() - started
        after = self.compare(text, want)
        say(f"{self.folder.name} fault {name}: {outcome}; served again after {back:.2f} s: {after}")
        self.told.setdefault("faults", {})[name] = [str(outcome), round(back, 2), str(after)]
        self.bad += outcome is Gpu.USED or after is not Gpu.USED


def say(line: str) -> None:
    print(line, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.kernels.router", description=__doc__)
    parser.add_argument("tokenizers", type=Path, nargs="+")
    parser.add_argument("--texts", type=int, default=120)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--rivals", type=int, default=28)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each path under load")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--from-chars", type=int, default=1, help="0: measured, as the server does")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--host", action="store_true", help="the core by g++ in a GPU's place")
    arguments = parser.parse_args(argv)
    sys.setswitchinterval(0.001)  # as the server has it
    core_ = core(Path(".cache") / "gpu-core") if arguments.host else None
    script = Script(CudaDevice if core_ is None else lambda _: HostDevice(core_), counted=False)
    router = Router(script, [0], Limits(timeout_s=2.0 if core_ is None else 30.0))
    engines = Engines(router, from_chars=arguments.from_chars)
    runs: list[Run] = []
    with multiprocessing.get_context("spawn").Pool(max(1, (os.cpu_count() or 2) - 2)) as pool:
        for folder in arguments.tokenizers:
            run = Run(folder, script, engines)
            runs.append(run)
            if run.gpu.standing is not Gpu.USED:
                run.bad += 1
                continue
            run.differential(pool, arguments.texts, arguments.threads)
    for run in runs:
        run.wall(arguments.rounds)
        run.load(arguments.rivals, arguments.seconds, arguments.threads)
    runs[-1].faults()  # of one: after each the device stays away longer
    if arguments.json:
        told = [run.told | {"rows": [row.__dict__ for row in run.rows]} for run in runs]
        arguments.json.write_text(json.dumps(told, indent=1))
    say(f"outcomes: { {one.value: count for one, count in router.outcomes.items()} }")
    say(f"different or lost: {sum(run.bad for run in runs)}")
    return int(any(run.bad for run in runs))


if __name__ == "__main__":
    sys.exit(main())
