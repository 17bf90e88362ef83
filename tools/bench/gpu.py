"""The GPU path: one request host to host, and bulk text on the device. Needs a GPU.

Accounts, named in every row:
- ``host to host, pinned``: the text lies in page-locked memory; one copy in, one graph, one synchronisation, the IDs in
  page-locked memory as a uint32 array;
- ``host to host, bytes``: as that, from a ``bytes`` object, which is copied to page-locked memory first;
- ``device``: events around replays of a graph without the delivery to the host: text and IDs stay on the device (and a
  copy of 64 bytes sets the counters back).
Cases: ``steady``, one text again and again; ``fresh``, another text each time; ``list``, delivered as a Python list.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from toktier.gpu import fatbin
from toktier.gpu.buffers import REQUEST
from toktier.gpu.graph import capture
from toktier.gpu.launcher import Bucket, Device, Encoder
from toktier.gpu.vocabulary import BREAK_BYTE
from tools.bench.records import Record, record
from tools.bench.texts import corpus, styled
from tools.kernels.check import tables_of_folder

SIZES = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
ROUNDS = 200
FRESH = 24
FRESH_LONG = 4
"""Texts of more than a million characters."""
SEQUENCES = (128, 256, 512, 1024)
"""Bytes of a piece in the account that LLBPE publishes: merges alone, GPT-2's vocabulary."""
BULK = ("mixed", "code", "prose", "CJK")


@dataclass(frozen=True)
class Stage:
    """Medians of one kernel of the chain, launched alone between events; the launch is in it."""

    tokenizer: str
    text: str
    bytes: int
    kernel: str
    p50_us: float


def run(
    folders: Sequence[Path], architecture: int | None, sizes: Sequence[int], bulk: int, rounds: int = ROUNDS
) -> tuple[list[Record], list[Stage]]:
    """Rows of each tokenizer. ``architecture``: see `fatbin.compiled`; None: the package's kernels. ``bulk``: bytes of
    each text of the device account; 0: none."""
    device = Device(fatbin.compiled(architecture) if architecture else fatbin.load())
    rows: list[Record] = []
    stages: list[Stage] = []
    for folder in folders:
        encoder = Encoder(device, tables_of_folder(folder), room_limit=max(64 << 20, 2 * bulk))
        with device.current():
            for size in sizes:
                rows += _requests(encoder, folder.name, size, _texts(size), rounds)
            for kind in BULK if bulk else ():
                text = _long(kind, bulk)
                bucket = _staged(encoder, text)
                times = _device_times(encoder, bucket, len(text), 20)
                rows.append(record("device", f"bulk {kind}", folder.name, len(text), times))
                stages += stages_of(encoder, bucket, len(text), folder.name, kind)
            for length in SEQUENCES if bulk else ():
                text = _sequences(length, min(bulk, 32_000_000))
                bucket = _staged(encoder, text)
                stages += stages_of(encoder, bucket, len(text), folder.name, f"sequences of {length}")
            text = corpus(1000, 1_000_000).encode()
            stages += stages_of(encoder, _staged(encoder, text), len(text), folder.name, "mixed")
        encoder.close()
    return rows, stages


def _requests(encoder: Encoder, name: str, size: int, texts: list[bytes], rounds: int) -> list[Record]:
    bucket = _staged(encoder, max(texts, key=len))
    driver, stream = encoder.device.driver, bucket.stream

    def pinned() -> None:
        bucket.send(driver, int(bucket.request["n"][0]))
        bucket.graph.launch(stream)
        stream.synchronize()

    own = len(texts[0])
    _stage(bucket, texts[0])
    found = [record("host to host, pinned", "steady", name, size, _times(pinned, rounds))]
    fresh: list[int] = []
    for text in texts * max(1, rounds // len(texts)):
        _stage(bucket, text)
        fresh += _times(pinned, 1, warm=0)
    found.append(record("host to host, pinned", "fresh", name, size, fresh))
    found.append(
        record("host to host, bytes", "steady", name, size, _times(lambda: encoder.encode_view(texts[0]), rounds))
    )
    found.append(
        record(
            "host to host, bytes",
            "list",
            name,
            size,
            _times(lambda: encoder.encode_view(texts[0]).tolist(), min(rounds, 50 if size <= 1_000_000 else 10)),
        )
    )
    _stage(bucket, texts[0])
    found.append(record("device", "steady", name, size, _device_times(encoder, bucket, own, min(rounds, 100))))
    return found


def _staged(encoder: Encoder, text: bytes) -> Bucket:
    bucket = encoder.bucket(len(text))
    _stage(bucket, text)
    bucket.send(encoder.device.driver, len(text))
    bucket.stream.synchronize()
    return bucket


def _stage(bucket: Bucket, text: bytes) -> None:
    bucket.staging[REQUEST.itemsize : REQUEST.itemsize + len(text)] = np.frombuffer(text, np.uint8)
    bucket.request["n"] = len(text)


def _times(call: Callable[[], object], rounds: int, warm: int = 5) -> list[int]:
    for _ in range(warm):
        call()
    found = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - started)
    return found


def _device_times(encoder: Encoder, bucket: Bucket, size: int, rounds: int) -> list[int]:
    driver, stream = encoder.device.driver, bucket.stream
    bucket.send(driver, size)
    kernels = [kernel for kernel in bucket.kernels if kernel.name != "deliver"]

    def record_() -> None:
        for kernel in kernels:
            encoder.device.run(kernel.name, kernel.blocks, kernel.threads, stream, encoder.tables, bucket.work)

    graph = capture(stream, record_)
    found = []
    for k in range(rounds + 3):
        before, after = driver.Event(), driver.Event()
        before.record(stream)
        driver.memcpy_htod_async(int(bucket.memory), bucket.staging[: REQUEST.itemsize], stream)
        graph.launch(stream)
        after.record(stream)
        after.synchronize()
        if k >= 3:
            found.append(round(before.time_till(after) * 1e6))
    graph.close()
    return found


def stages_of(encoder: Encoder, bucket: Bucket, size: int, name: str, text: str, rounds: int = 15) -> list[Stage]:
    """Each kernel of the chain between two events."""
    driver, stream, device = encoder.device.driver, bucket.stream, encoder.device
    bucket.send(driver, size)
    times: dict[str, list[float]] = {kernel.name: [] for kernel in bucket.kernels}
    for _ in range(rounds):
        driver.memcpy_htod_async(int(bucket.memory), bucket.staging[: REQUEST.itemsize], stream)
        events = [driver.Event()]
        events[0].record(stream)
        for kernel in bucket.kernels:
            device.run(kernel.name, kernel.blocks, kernel.threads, stream, encoder.tables, bucket.work)
            events.append(driver.Event())
            events[-1].record(stream)
        stream.synchronize()
        for kernel, before, after in zip(bucket.kernels, events, events[1:], strict=False):
            times[kernel.name].append(before.time_till(after) * 1e3)
    return [Stage(name, text, size, kernel, round(sorted(t)[len(t) // 2], 1)) for kernel, t in times.items()]


@cache
def _texts(size: int) -> list[bytes]:
    return [corpus(1000 + k, size).encode() for k in range(FRESH if size <= 1_000_000 else FRESH_LONG)]


@cache
def _sequences(length: int, size: int) -> bytes:
    """Words without spaces in sequences of ``length`` bytes, each a piece of its own, ``size`` bytes in all."""
    words = re.sub("[^a-z]", "", styled("prose", 99, 3_000_000)).encode()
    rows = [words[at : at + length] for at in range(0, len(words) - length, length)]
    return bytes([BREAK_BYTE]).join(rows * (size // (len(rows) * (length + 1)) + 1))[:size]


@cache
def _long(kind: str, size: int) -> bytes:
    """Distinct text up to 8 MB, then the same again."""
    part = corpus(77, 8_000_000) if kind == "mixed" else styled(kind, 77, 8_000_000)
    raw = part.encode()
    text = (raw * (size // len(raw) + 1))[:size]
    return text.decode("utf-8", "ignore").encode()


def table(stages: Sequence[Stage]) -> str:
    """Lines for people."""
    return "\n".join(f"{s.tokenizer} {s.text} {s.bytes:,} {s.kernel} {s.p50_us} us" for s in stages)
