"""The GPU path: one request host to host, and bulk text on the device. Needs a GPU.

Accounts, named in every row:
- ``host to host, pinned``: the text lies in page-locked memory; one copy in, one graph, one synchronisation, the IDs in
  page-locked memory as a uint32 array;
- ``host to host, bytes``: as that, from a ``bytes`` object, which is copied to page-locked memory first;
- ``device``: events around replays of a graph that delivers to the device's own memory: text and IDs stay there (and a
  copy of 128 bytes says how long the text is);
- ``host to host, pinned, in turn``: three encoders of the same tables, each on a stream of its own, so that copies of
  one text go beside the kernels of another; bytes and time of all.
Cases: ``steady``, one text again and again; ``fresh``, another text each time; ``list``, delivered as a Python list.
`tools.bench.gpu_beside` has what stands beside these.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from toktier.gpu import fatbin
from toktier.gpu.buffers import REQUEST
from toktier.gpu.graph import capture
from toktier.gpu.launcher import Bucket, Device, Encoder
from toktier.gpu.vocabulary import BREAK_BYTE
from toktier.reference_of import reference_of
from tools.bench import gpu_beside
from tools.bench.gpu_beside import timed
from tools.bench.records import Record, record
from tools.bench.texts import corpus, styled
from tools.kernels.check import read, tables_of_folder

SIZES = (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000)
ROUNDS = 200
FRESH = 24
FRESH_LONG = 4
"""Texts of more than a million characters."""
IN_TURN, IN_TURN_BYTES = 24, 16_000_000
"""Texts of the account in turn, and the size of each."""
SEQUENCES = (128, 256, 512, 1024)
"""Bytes of a piece in the account that LLBPE publishes: merges alone, GPT-2's vocabulary."""
SIMILAR = 2_000_000
"""Bytes of them whose IDs are compared."""
BULK = ("mixed", "code", "prose", "CJK", "chat")
BESIDE = (1_000, 64_000, 1_000_000)
"""Characters of a request beside other processes, and by other libraries."""


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
) -> Iterator[tuple[list[Record], list[Stage | gpu_beside.Similarity]]]:
    """Rows, and times of kernels with the similarities, as soon as they are measured. Says what it is at.
    ``architecture``: see `fatbin.compiled`; None: the package's kernels. ``bulk``: bytes of each text of the device
    account; 0: none."""
    device = Device(fatbin.compiled(architecture) if architecture else fatbin.load())
    for folder in folders:
        yield from _of_tokenizer(device, folder, sizes, bulk, rounds)


def _of_tokenizer(
    device: Device, folder: Path, sizes: Sequence[int], bulk: int, rounds: int
) -> Iterator[tuple[list[Record], list[Stage | gpu_beside.Similarity]]]:
    rows: list[Record] = []
    stages: list[Stage | gpu_beside.Similarity] = []

    def at(what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {folder.name}: {what}", file=sys.stderr, flush=True)

    at("tables")
    tables, reference = tables_of_folder(folder), reference_of(read(folder))[0]
    with contextlib.ExitStack() as held:
        held.callback((encoder := Encoder(device, tables, room_limit=max(64 << 20, bulk))).close)
        with device.current():
            for size in sizes:
                at(f"{size:,} characters")
                rows += _requests(encoder, folder.name, size, _texts(size), rounds)
            for kind in BULK if bulk else ():
                at(f"bulk {kind}")
                text = _long(kind, bulk)
                bucket = _staged(encoder, text)
                times = _device_times(encoder, bucket, 20)
                rows.append(record("device", f"bulk {kind}", folder.name, len(text), times))
                stages += stages_of(encoder, bucket, len(text), folder.name, kind)
            for length in SEQUENCES if bulk else ():
                at(f"sequences of {length}")
                text = _sequences(length, min(bulk, 32_000_000))
                bucket = _staged(encoder, text)
                stages += stages_of(encoder, bucket, len(text), folder.name, f"sequences of {length}")
                part = text[: SIMILAR // (length + 1) * (length + 1) - 1]
                stages.append(gpu_beside.similarity(encoder, reference, folder.name, f"sequences of {length}", part))
            text = corpus(1000, 1_000_000).encode()
            stages += stages_of(encoder, _staged(encoder, text), len(text), folder.name, "mixed")
        yield rows, stages
        at("batches")
        rows = gpu_beside.batches(encoder, folder.name, min(rounds, 50))
        at("other processes")
        rows += gpu_beside.crowded(encoder, folder.name, BESIDE, rounds)
        at("other libraries")
        rows += gpu_beside.cores(folder, BESIDE, rounds)
        yield rows, []
        several = [encoder, *(Encoder(device, tables) for _ in range(2 if bulk else 0))]
        for other in several[1:]:
            held.callback(other.close)
        with device.current():
            for kind in BULK if bulk else ():
                at(f"in turn, {kind}")
                texts = [_long(kind, IN_TURN_BYTES)] * len(several)
                times, own = _in_turn(several, texts, 10), IN_TURN * len(texts[0])
                yield [record("host to host, pinned, in turn", f"bulk {kind}", folder.name, own, times)], []


def _requests(encoder: Encoder, name: str, size: int, texts: list[bytes], rounds: int) -> list[Record]:
    bucket = _staged(encoder, max(texts, key=len))

    def pinned() -> None:
        bucket.start()
        bucket.wait()

    bucket.stage(texts[0])
    found = [record("host to host, pinned", "steady", name, size, timed(pinned, rounds))]
    fresh: list[int] = []
    for text in texts * max(1, rounds // len(texts)):
        bucket.stage(text)
        fresh += timed(pinned, 1, warm=0)
    found.append(record("host to host, pinned", "fresh", name, size, fresh))
    found.append(
        record("host to host, bytes", "steady", name, size, timed(lambda: encoder.encode_view(texts[0]), rounds))
    )
    found.append(
        record(
            "host to host, bytes",
            "list",
            name,
            size,
            timed(lambda: encoder.encode_view(texts[0]).tolist(), min(rounds, 50 if size <= 1_000_000 else 10)),
        )
    )
    bucket.stage(texts[0])
    found.append(record("device", "steady", name, size, _device_times(encoder, bucket, min(rounds, 100))))
    return found


def _staged(encoder: Encoder, text: bytes) -> Bucket:
    bucket = encoder.bucket(len(text))
    bucket.stage(text)
    return bucket


def _device_times(encoder: Encoder, bucket: Bucket, rounds: int) -> list[int]:
    driver, stream = encoder.device.driver, bucket.stream
    bucket.send()

    own, at = int(bucket.memory), bucket.layout.offsets
    # what is told goes where nobody reads any more; a brief text is read where it lies on the device
    launches = bucket.prepared(encoder, own + at["out"], own + at["maps"], own + at["request"])

    def record_() -> None:
        for launch in launches:
            launch()

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
    driver, stream = encoder.device.driver, bucket.stream
    bucket.send()
    times: dict[str, list[float]] = {kernel.name: [] for kernel in bucket.kernels}
    for _ in range(rounds):
        driver.memcpy_htod_async(int(bucket.memory), bucket.staging[: REQUEST.itemsize], stream)
        events = [driver.Event()]
        events[0].record(stream)
        for launch in bucket.launches:
            launch()
            events.append(driver.Event())
            events[-1].record(stream)
        stream.synchronize()
        for kernel, before, after in zip(bucket.kernels, events, events[1:], strict=False):
            times[kernel.name].append(before.time_till(after) * 1e3)
    return [Stage(name, text, size, kernel, round(sorted(t)[len(t) // 2], 1)) for kernel, t in times.items()]


def _in_turn(encoders: Sequence[Encoder], texts: Sequence[bytes], rounds: int) -> list[int]:
    """Time of all texts, each encoder with the next one as soon as it has done its last."""
    buckets = [_staged(encoder, text) for encoder, text in zip(encoders, texts, strict=True)]
    found = []
    for k in range(rounds + 1):
        started = time.perf_counter_ns()
        for turn in range(IN_TURN):
            bucket = buckets[turn % len(buckets)]
            if turn >= len(buckets):
                bucket.wait()
            bucket.start()
        for bucket in buckets:
            bucket.wait()
        if k:
            found.append(time.perf_counter_ns() - started)
    return found


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
    if kind == "chat":
        raw = gpu_beside.chat_segments(77, 8_000_000)
    else:
        raw = (corpus(77, 8_000_000) if kind == "mixed" else styled(kind, 77, 8_000_000)).encode()
    text = (raw * (size // len(raw) + 1))[:size]
    while text[-1] & 0xC0 == 0x80:  # the end may be inside a character
        text = text[:-1]
    return text if text[-1] < 0xC0 else text[:-1]


def table(stages: Sequence[Stage | gpu_beside.Similarity]) -> str:
    """Lines for people."""
    told = [f"{s.kernel} {s.p50_us} us" if isinstance(s, Stage) else f"{s.share:.4%} similar" for s in stages]
    return "\n".join(f"{s.tokenizer} {s.text} {s.bytes:,} {line}" for s, line in zip(stages, told, strict=True))
