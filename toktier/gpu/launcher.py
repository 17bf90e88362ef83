"""From text to IDs on one device: PyCUDA, persistent buffers by size, one graph a size.

Invariants:
- The context is the device's primary one, which PyTorch uses as well; it is pushed for a call and popped again, also
  where the call raises. Nothing here creates or destroys a context.
- A request is one copy in, one graph launch and one synchronisation. The last kernel writes as many IDs as there are
  into page-locked memory, so that nothing has to be asked in between.
- An encoder's calls come one at a time (a lock): buffers belong to the encoder. A result is a view of page-locked
  memory that the next call overwrites; `Encoder.encode` copies, `Encoder.encode_view` does not.
- A text that is longer than `Encoder.room_limit` is refused before anything is sent.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.gpu.buffers import LARGE, PADDING, REQUEST, SMALL, WORK_SIZE, Layout, Shape, counters
from toktier.gpu.fatbin import Fatbin
from toktier.gpu.graph import Graph, capture
from toktier.gpu.tables import STRUCTURE_SIZE, Tables
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids

SMALLEST_ROOM = 4096
LARGE_FROM = 4 << 20
"""Bytes of room from which on throughput counts more than latency: other tiles, a thread for each short miss."""
_SHAPED = ("tiles", "maps", "groups", "heads")
_PLAIN = (
    "cuts",
    "find_longs",
    "windows",
    "joins",
    "stretches",
    "probe",
    "merge",
    "merge_many",
    "scan",
    "compact",
    "deliver",
)
_THREADS = {"cuts": 256, "find_longs": 256, "stretches": 256, "scan": 1024, "deliver": 256}


class KernelFault(RuntimeError):
    """The kernels met what they have no rule for, or were built from other sources than this package."""


class Device:
    """One GPU and the kernels on it."""

    def __init__(self, fatbin: Fatbin, number: int = 0) -> None:
        """Raises what PyCUDA raises where there is no device or no code for it, and `KernelFault`."""
        import pycuda.driver as driver

        driver.init()
        self.driver: Any = driver
        self._device = driver.Device(number)
        self._context = self._device.retain_primary_context()
        self.name: str = self._device.name()
        self.processors: int = self._device.multiprocessor_count
        with self.current():
            self._module = driver.module_from_buffer(fatbin.content)
            pointer, size = self._module.get_global("tt_sizes")
            sizes = np.empty(size // 4, np.uint32)
            driver.memcpy_dtoh(sizes, pointer)
            if tuple(sizes[4:7].tolist()) != (STRUCTURE_SIZE, WORK_SIZE, REQUEST.itemsize):
                raise KernelFault("the kernels lay out their arguments in another way: build them again")
            shared = {"small": sizes[:2], "large": sizes[2:4]}
            self._functions: dict[str, Any] = {}
            self._shared: dict[str, int] = {}
            for shape in (SMALL, LARGE):
                for name in _SHAPED:
                    own = {"tiles": shared[shape.name][0], "groups": 0}.get(name, shared[shape.name][1])
                    self._load(f"{name}_{shape.name}", int(own))
            for name in _PLAIN:
                self._load(name, 0)

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The primary context for the time being."""
        self._context.push()
        try:
            yield
        finally:
            self.driver.Context.pop()

    def close(self) -> None:
        """Gives the primary context back. Encoders must be closed before."""
        with self.current():
            self._functions.clear()
            del self._module
        self._context.detach()

    def _load(self, name: str, shared: int) -> None:
        function = self._module.get_function(f"tt_{name}")
        function.prepare(f"{STRUCTURE_SIZE}s{WORK_SIZE}s")
        if shared:
            function.set_attribute(self.driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, shared)
        self._functions[name] = function
        self._shared[name] = shared

    def run(self, name: str, blocks: int, threads: int, stream: Any, tables: bytes, work: bytes) -> None:
        """Puts one kernel on the stream."""
        self._functions[name].prepared_async_call(
            (max(blocks, 1), 1), (threads, 1, 1), stream, tables, work, shared_size=self._shared[name]
        )


@dataclass(frozen=True)
class Kernel:
    """One launch of the chain."""

    name: str
    blocks: int
    threads: int


def chain(layout: Layout, processors: int) -> list[Kernel]:
    """The launches for texts of up to ``layout.room`` bytes, in order."""
    shape, room = layout.shape, layout.room
    tiles, probe_tiles, words = room // shape.tile + 1, room // 2048 + 1, room // 32 + 1
    wide = 16 * processors
    blocks = {
        "tiles": min(tiles, (10 if shape is SMALL else 8) * processors),
        "maps": min(tiles, 2 * processors),
        "groups": min(tiles // 64 + 1, processors),
        "heads": min(tiles, 2 * processors),
        "cuts": min(words // 32 + 1, 8 * processors),
        "find_longs": min(words // 256 + 1, 8 * processors),
        "windows": min(words // 4 + 1, wide),
        "joins": min(words // 128 + 1, 2 * processors),
        "stretches": min(words // 2 + 1, 2 * processors),
        "probe": min(probe_tiles, wide),
        "merge": min(room // 64 + 1, wide),
        "merge_many": min(room // 256 + 4, wide),
        "scan": 1,
        "compact": min(probe_tiles, wide),
        "deliver": min(room // 4096 + 1, processors),
    }
    last = ("merge",) if room < LARGE_FROM else ("merge_many", "scan")
    names = (*_SHAPED, "cuts", "find_longs", "windows", "joins", "stretches", "probe", *last, "compact", "deliver")
    found = []
    for name in names:
        threads = {"groups": 64}.get(name, shape.threads) if name in _SHAPED else _THREADS.get(name, 128)
        found.append(Kernel(f"{name}_{shape.name}" if name in _SHAPED else name, blocks[name], threads))
    return found


class Bucket:
    """Buffers and the graph for texts of up to ``layout.room`` bytes."""

    def __init__(self, device: Device, tables: bytes, layout: Layout, stream: Any) -> None:
        driver = device.driver
        self.layout = layout
        self.stream = stream
        self.memory = driver.mem_alloc(layout.size)
        flags = driver.host_alloc_flags.DEVICEMAP
        self.staging: npt.NDArray[np.uint8] = driver.pagelocked_empty(
            REQUEST.itemsize + layout.room + PADDING, np.uint8, mem_flags=flags
        )
        self.staging[:] = 0
        self.out: npt.NDArray[np.uint32] = driver.pagelocked_empty(layout.room + PADDING, np.uint32, mem_flags=flags)
        self.done: npt.NDArray[np.uint8] = driver.pagelocked_empty(REQUEST.itemsize, np.uint8, mem_flags=flags)
        self.request = counters(self.staging)
        self.told = counters(self.done)
        self.work = layout.structure(
            int(self.memory), self.out.base.get_device_pointer(), self.done.base.get_device_pointer()
        )
        self.kernels = chain(layout, device.processors)

        def record() -> None:
            for kernel in self.kernels:
                device.run(kernel.name, kernel.blocks, kernel.threads, stream, tables, self.work)

        self.graph: Graph = capture(stream, record, (self.memory, self.staging, self.out, self.done))
        self.graph.upload(stream)
        stream.synchronize()

    def send(self, driver: Any, size: int) -> None:
        """Puts the copy of the staged text on the stream."""
        self.request["n"] = size
        driver.memcpy_htod_async(int(self.memory), self.staging[: REQUEST.itemsize + size], self.stream)


class Encoder:
    """One tokenizer on one device. Thread-safe; calls wait for each other."""

    def __init__(self, device: Device, tables: Tables, *, room_limit: int = 64 << 20) -> None:
        self.device = device
        self.room_limit = room_limit
        self._lock = threading.Lock()
        self._buckets: dict[int, Bucket] = {}
        with device.current():
            image, offsets = tables.image()
            self._image = device.driver.mem_alloc(len(image))
            device.driver.memcpy_htod(self._image, image)
            self._stream = device.driver.Stream()
        base = int(self._image)
        self.tables = tables.structure({name: base + at for name, at in offsets.items()})

    def encode(self, segment: bytes) -> Ids:
        """The IDs of a segment (`toktier.gpu.tables`): valid UTF-8. Raises `ValueError` beyond `room_limit`."""
        with self._lock, self.device.current():
            return self._encode(segment).copy()

    def encode_view(self, segment: bytes) -> Ids:
        """As `encode`; the array is overwritten by the next call."""
        with self._lock, self.device.current():
            return self._encode(segment)

    def encode_batch(self, segments: Sequence[bytes]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """The IDs of each segment, one after the other, and their counts, in one launch."""
        if not segments:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        with self._lock, self.device.current():
            ids = self._encode(bytes([BREAK_BYTE]).join(segments))
            breaks = np.flatnonzero(ids == BREAK_ID)
            edges = np.concatenate([[-1], breaks, [len(ids)]])
            return np.delete(ids, breaks), np.diff(edges) - 1

    def bucket(self, size: int) -> Bucket:
        """The bucket of a text of ``size`` bytes, made if it is not there. In the device's context only."""
        room = max(SMALLEST_ROOM, 1 << (size - 1).bit_length())
        if room not in self._buckets:
            shape: Shape = LARGE if room >= LARGE_FROM else SMALL
            self._buckets[room] = Bucket(self.device, self.tables, Layout.of(room, shape), self._stream)
        return self._buckets[room]

    def _encode(self, segment: bytes) -> Ids:
        size = len(segment)
        if size > self.room_limit:
            raise ValueError(f"a text of {size:,} bytes; the encoder takes {self.room_limit:,}")
        if not size:
            return np.empty(0, np.uint32)
        bucket = self.bucket(size)
        bucket.staging[REQUEST.itemsize : REQUEST.itemsize + size] = np.frombuffer(segment, np.uint8)
        bucket.send(self.device.driver, size)
        bucket.graph.launch(self._stream)
        self._stream.synchronize()
        if bucket.told["error"][0]:
            raise KernelFault("a piece was not encoded")
        return bucket.out[: int(bucket.told["total"][0])]

    def close(self) -> None:
        """Frees its graphs and buffers."""
        with self._lock, self.device.current():
            for bucket in self._buckets.values():
                bucket.graph.close()
            self._buckets.clear()
            self._image.free()
