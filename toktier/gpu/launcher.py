"""From text to IDs on one device: PyCUDA, persistent buffers by size, one graph a size.

Invariants:
- The context is the device's primary one, which PyTorch uses as well; it is pushed for a call and popped again, also
  where the call raises. Nothing here creates or destroys a context.
- A request is one copy in (a short text's is a part of the graph, or the one kernel's own), one graph launch and one
  synchronisation. The last kernel writes as many IDs as there are into page-locked memory, so that nothing has
  to be asked in between, and the number of the host's turn behind them, for which the host watches: it asks the driver
  only where that takes long. Of long texts the last kernel only tells how many IDs there are; the host then has them
  copied, so that kernels of other texts go on beside it.
- Kernels whose blocks wait for each other are launched cooperatively: all their blocks are on the device, or none.
- An encoder's calls come one at a time (a lock): buffers belong to the encoder. A result is a view of page-locked
  memory that the next call overwrites; `Encoder.encode` copies, `Encoder.encode_view` does not.
- A text that is longer than `Encoder.room_limit` is refused before anything is sent.
"""

from __future__ import annotations

import contextlib
import platform
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.campaign import corpus
from toktier.gpu.buffers import PADDING, REQUEST, WORK_SIZE, Layout, counters
from toktier.gpu.chain import BRIEF, NAMES, ONE, Kernel, Sizes, chain, is_bulk, layout_for, room_for
from toktier.gpu.driver import Arguments, Function, How, Module, call
from toktier.gpu.fatbin import Fatbin
from toktier.gpu.graph import Graph, capture
from toktier.gpu.tables import STRUCTURE_SIZE, Tables
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids

COPIED_INSIDE = 32 << 10
"""Bytes of room up to which the graph copies the whole room: less than a copy of its own takes to be started."""
LOOKS = 5000 if platform.machine() in ("x86_64", "AMD64") else 0
"""How often the host looks for its turn before it asks the driver: some 0.2 ms, in which other threads wait. Other
processors may see the turn before what was written ahead of it."""


class KernelFault(RuntimeError):
    """The kernels met what they have no rule for, or were built from other sources than this package."""


class Device:
    """One GPU and the kernels on it."""

    def __init__(self, fatbin: Fatbin, number: int = 0) -> None:
        """Raises what PyCUDA raises where there is no device, `DriverError` where no code for it, and `KernelFault`."""
        import pycuda.driver as driver

        driver.init()
        self.driver: Any = driver
        self._device = driver.Device(number)
        self._context = self._device.retain_primary_context()
        self.name: str = self._device.name()
        self.processors: int = self._device.multiprocessor_count
        self._can_start_early = self._device.compute_capability() >= (9, 0)
        with self.current():
            self._module = Module(fatbin.content)
            sizes = self._module.numbers("tt_sizes")
            if tuple(sizes[:3].tolist()) != (STRUCTURE_SIZE, WORK_SIZE, REQUEST.itemsize):
                raise KernelFault("the kernels lay out their arguments in another way: build them again")
            self.sizes = Sizes.of(sizes)
            self._functions: dict[str, Function] = {
                name: self._module.function(f"tt_{name}", self.sizes.shared(name)) for name in NAMES
            }

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """The primary context for the time being."""
        self._context.push()
        try:
            yield
        finally:
            self.driver.Context.pop()

    def close(self) -> None:
        """Gives the primary context back, also where that is lost. Encoders must be closed before."""
        try:
            with self.current():
                self._functions.clear()
                self._module.close()
        finally:
            self._context.detach()

    def resident(self, kernel: str, threads: int, states: int) -> int:
        """How many blocks of a kernel a multiprocessor holds at once, for a transducer of ``states``."""
        return self._functions[kernel].resident(threads, self.sizes.shared(kernel, states))

    def prepared(self, kernel: Kernel, stream: Any, arguments: Arguments, states: int) -> Callable[[], None]:
        """What puts one kernel on the stream, and raises `DriverError`."""
        shared = self.sizes.shared(kernel.name, states)
        function, blocks = self._functions[kernel.name], kernel.blocks
        how = How.EARLY if kernel.early and self._can_start_early else How.ALONE
        if kernel.together or kernel.even:
            blocks = min(blocks, self.processors * function.resident(kernel.threads, shared))
        if kernel.together:
            how = How.TOGETHER
        return function.prepared(blocks, kernel.threads, shared, stream, arguments, how)


class Bucket:
    """Buffers and the graph for texts of up to ``layout.room`` bytes."""

    def __init__(self, encoder: Encoder, layout: Layout, stream: Any, kernels: Sequence[Kernel]) -> None:
        driver = encoder.device.driver
        self.layout = layout
        self.stream = stream
        self._driver = driver
        self.memory = driver.mem_alloc(layout.size)
        flags = driver.host_alloc_flags.DEVICEMAP
        self.staging: npt.NDArray[np.uint8] = driver.pagelocked_empty(
            REQUEST.itemsize + layout.room + PADDING, np.uint8, mem_flags=flags
        )
        self.staging[:] = 0
        self.out: npt.NDArray[np.uint32] = driver.pagelocked_empty(layout.room + PADDING, np.uint32, mem_flags=flags)
        self.done: npt.NDArray[np.uint8] = driver.pagelocked_empty(2 * REQUEST.itemsize, np.uint8, mem_flags=flags)
        self.done[:] = 0
        self.told = counters(self.done)
        self._size = 0
        self._copy = (int(self.memory), self.staging.ctypes.data)
        self._request = memoryview(self.staging[: REQUEST.itemsize]).cast("I")
        self._told = memoryview(self.done).cast("I")
        self.kernels = kernels
        self._ids = int(self.memory) + layout.offsets["out"] if is_bulk(layout) else None
        self._turn = 0
        shared = (self.out, self.done, self.staging)
        self.launches = self.prepared(encoder, *(array.base.get_device_pointer() for array in shared))
        self.graph: Graph = capture(stream, self._record, (self.memory, self.staging, self.out, self.done))
        self.graph.upload(stream)
        stream.synchronize()

    def prepared(self, encoder: Encoder, out: int, told: int, staged: int) -> list[Callable[[], None]]:
        """The launches, with the addresses to which IDs and counters are delivered, and that of the staged text."""
        arguments = Arguments(encoder.tables, self.layout.structure(int(self.memory), out, told, staged))
        return [encoder.device.prepared(kernel, self.stream, arguments, encoder.states) for kernel in self.kernels]

    def _record(self) -> None:
        if self.layout.room <= COPIED_INSIDE and self.kernels is not ONE:
            self._driver.memcpy_htod_async(int(self.memory), self.staging, self.stream)
        for launch in self.launches:
            launch()

    def stage(self, text: bytes) -> None:
        """Puts a text where it is copied from."""
        self.staging[REQUEST.itemsize : REQUEST.itemsize + len(text)] = np.frombuffer(text, np.uint8)
        self._size = len(text)

    def send(self) -> None:
        """Puts the copy of the staged text and its counters on the stream."""
        self._head()
        call("cuMemcpyHtoDAsync_v2", *self._copy, REQUEST.itemsize + self._size, self.stream.handle, quick=True)

    def _head(self) -> None:
        self._request[_SIZE_WORD] = self._size
        self._turn = self._request[_TURN_WORD] = self._turn + 1 & 0xFFFFFFFF

    def start(self) -> None:
        """Puts all that is to be done for the staged text on the stream."""
        if self.layout.room <= COPIED_INSIDE:
            self._head()
        else:
            self.send()
        self.graph.launch(self.stream)

    def wait(self) -> None:
        """Until that is done. Raises what the driver says went wrong, and `KernelFault`."""
        if self._ids is not None or not self._turn_has_come():
            self.stream.synchronize()
        if self._told[_ERROR_WORD]:
            raise KernelFault("a piece was not encoded")
        if self._ids is not None:
            self._driver.memcpy_dtoh_async(self.out[: self._told[_TOTAL_WORD]], self._ids, self.stream)
            self.stream.synchronize()

    def _turn_has_come(self) -> bool:
        told, turn = self._told, self._turn
        for _ in range(LOOKS):  # noqa: SIM110 - a generator takes twice as long
            if told[_BACK_WORD] == turn:
                return True
        return False

    def time(self, text: bytes, rounds: int = 40) -> int:
        """Nanoseconds from the staged text to its IDs, the median."""
        self.stage(text)
        found = []
        for _ in range(rounds):
            started = time.perf_counter_ns()
            self.start()
            self.wait()
            found.append(time.perf_counter_ns() - started)
        return sorted(found)[rounds // 2]

    def result(self) -> Ids:
        """The IDs, where they have been put."""
        return self.out[: self._told[_TOTAL_WORD]]


def quicker(ways: list[Bucket]) -> Bucket:
    """The one that takes less time for ordinary text: on another device it is another one. The others are given up."""
    if len(ways) > 1:
        text = corpus.built_in()[0].encode()[:1000].decode(errors="ignore").encode()
        ways.sort(key=lambda way: way.time(text))
    for way in ways[1:]:
        way.graph.close()
    return ways[0]


def _word(name: str) -> int:
    return int(REQUEST.fields[name][1]) // 4  # type: ignore[index]


_SIZE_WORD, _ERROR_WORD, _TOTAL_WORD, _TURN_WORD = map(_word, ("n", "error", "total", "turn"))
_BACK_WORD = REQUEST.itemsize // 4
"""Where the turn comes back: behind the counters."""


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
        self.states = tables.numbers["states"]
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
        room = room_for(size)
        if room not in self._buckets:
            layout = layout_for(room)
            ways = [Bucket(self, layout, self._stream, chain(layout, self.device.processors))]
            if room == BRIEF:
                ways.append(Bucket(self, layout, self._stream, ONE))
            self._buckets[room] = quicker(ways)
        return self._buckets[room]

    def _encode(self, segment: bytes) -> Ids:
        size = len(segment)
        if size > self.room_limit:
            raise ValueError(f"a text of {size:,} bytes; the encoder takes {self.room_limit:,}")
        if not size:
            return np.empty(0, np.uint32)
        bucket = self.bucket(size)
        bucket.stage(segment)
        bucket.start()
        bucket.wait()
        return bucket.result()

    def close(self) -> None:
        """Frees its graphs and buffers."""
        with self._lock, self.device.current():
            for bucket in self._buckets.values():
                bucket.graph.close()
            self._buckets.clear()
            self._image.free()
