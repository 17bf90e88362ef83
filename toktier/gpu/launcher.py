"""From text to IDs on one device: PyCUDA, a workspace that lasts, one graph a size.

Invariants:
- The context is the device's primary one, which PyTorch uses as well; it is pushed for a call and popped again, also
  where the call raises. Nothing here creates or destroys a context.
- A request is one graph launch and one synchronisation. The first kernel reads the text out of page-locked memory; only
  a long text is copied before. The last kernel writes as many IDs as there are into page-locked memory, so that nothing
  has to be asked in between, and the number of the host's turn behind them, for which the host watches: it asks the
  driver only where that takes long. Of long texts the last kernel only tells how many IDs there are; the host then has
  them copied, so that kernels of other texts go on beside it.
- The counters on the device are zero between requests: the last kernel leaves them so, of long texts a clearing behind
  it, which is one of the bucket's launches.
- Kernels whose blocks wait for each other are launched cooperatively: all their blocks are on the device, or none.
- Calls of a workspace's encoders come one at a time (a lock). A result is a view of page-locked memory that the next
  call overwrites; `Encoder.encode` copies, `Encoder.encode_view` does not.
- An encoder that was made has all that it ever needs: memory (`toktier.gpu.workspace`), and a graph for every size.
- A text that is longer than `Encoder.room_limit` is refused before anything is sent.
"""

from __future__ import annotations

import contextlib
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.campaign import corpus
from toktier.gpu.buffers import PADDING, REQUEST, WORK_SIZE, Layout, counters
from toktier.gpu.chain import BRIEF, NAMES, ONE, Automata, Kernel, Sizes, chain, is_bulk, layout_for, room_for, rooms
from toktier.gpu.driver import Arguments, Function, How, Module, call
from toktier.gpu.fatbin import Fatbin
from toktier.gpu.graph import Graph, capture
from toktier.gpu.tables import STRUCTURE_SIZE, Tables
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.gpu.workspace import Workspace
from toktier.ids import Ids

ROOM_LIMIT = 64 << 20
"""Bytes of a text, unless others are given: `toktier.gpu.workspace.device_bytes` of memory."""
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
        self.name: str = self._device.name()
        self.processors: int = self._device.multiprocessor_count
        self._can_start_early = self._device.compute_capability() >= (9, 0)
        self._module: Module | None = None
        self._functions: dict[str, Function] = {}
        self._context = self._device.retain_primary_context()
        try:
            with self.current():
                self._module = Module(fatbin.content)
                self._load(self._module)
        except BaseException:
            with contextlib.suppress(Exception):  # what went wrong first is to be told
                self.close()
            raise

    def _load(self, module: Module) -> None:
        sizes = module.numbers("tt_sizes")
        if tuple(sizes[:3].tolist()) != (STRUCTURE_SIZE, WORK_SIZE, REQUEST.itemsize):
            raise KernelFault("the kernels lay out their arguments in another way: build them again")
        self.sizes = Sizes.of(sizes)
        for name in NAMES:
            self._functions[name] = module.function(f"tt_{name}", self.sizes.shared(name))

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
                if self._module is not None:
                    self._module.close()
        finally:
            self._context.detach()

    def workspace(self, limit: int) -> Workspace:
        """For encoders that share it, and texts of up to ``limit`` bytes. To be closed in the device's context."""
        with self.current():
            return Workspace(self.driver, limit)

    def prepared(self, kernel: Kernel, stream: Any, arguments: Arguments, automata: Automata) -> Callable[[], None]:
        """What puts one kernel on the stream, and raises `DriverError`."""
        shared = self.sizes.shared(kernel.name, automata)
        function, blocks = self._functions[kernel.name], kernel.blocks
        how = How.EARLY if kernel.early and self._can_start_early else How.ALONE
        if kernel.together or kernel.even:
            blocks = min(blocks, self.processors * function.resident(kernel.threads, shared))
        if kernel.together:
            how = How.TOGETHER
        return function.prepared(blocks, kernel.threads, shared, stream, arguments, how)


class Bucket:
    """The graph for texts of up to ``layout.room`` bytes, in a workspace that all buckets share."""

    def __init__(self, encoder: Encoder, layout: Layout, workspace: Workspace, kernels: Sequence[Kernel]) -> None:
        self.layout = layout
        self.stream = workspace.stream
        self.memory = workspace.memory
        self.staging = workspace.staging[: REQUEST.itemsize + layout.room + PADDING]
        self.out = workspace.out
        self.told = counters(workspace.done)
        self.kernels = kernels
        self._driver = encoder.device.driver
        self._size = self._turn = 0
        self._next_turn = workspace.next_turn
        self._copy = (int(self.memory), self.staging.ctypes.data)
        self._request = self.staging[: REQUEST.itemsize].data.cast("I")
        self._told = workspace.done.data.cast("I")
        self._ids = int(self.memory) + layout.offsets["out"] if is_bulk(layout) else None
        self.launches = self.prepared(encoder, *workspace.addresses)
        self.graph: Graph = capture(self.stream, self._record, (workspace,))

    def ready(self) -> None:
        """Makes the first launch as fast as later ones."""
        self.graph.upload(self.stream)
        self.stream.synchronize()

    def prepared(self, encoder: Encoder, out: int, told: int, staged: int) -> list[Callable[[], None]]:
        """The launches, with the addresses to which IDs and counters are delivered, and that of the staged text. Behind
        the kernels' may stand one that clears the counters: who launches the kernels launches that too."""
        arguments = Arguments(encoder.tables, self.layout.structure(int(self.memory), out, told, staged))
        kernels = [encoder.device.prepared(kernel, self.stream, arguments, encoder.automata) for kernel in self.kernels]
        return kernels if self._ids is None else [*kernels, self._clear]

    def _clear(self) -> None:
        self._driver.memset_d8_async(int(self.memory), 0, REQUEST.itemsize, self.stream)

    def _record(self) -> None:
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
        self._turn = self._request[_TURN_WORD] = self._next_turn()

    def start(self) -> None:
        """Puts all that is to be done for the staged text on the stream."""
        if self._ids is None:
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
        with contextlib.suppress(KernelFault):  # told to whoever asks for IDs
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
    """One tokenizer on one device. Thread-safe; calls wait for each other, and for those of its workspace's others."""

    def __init__(
        self, device: Device, tables: Tables, *, room_limit: int = ROOM_LIMIT, workspace: Workspace | None = None
    ) -> None:
        """``room_limit``: bytes of a text, at most. ``workspace``: one that is shared (`Device.workspace`), and whose
        limit counts; else it has its own. Raises what PyCUDA raises, and `DriverError`; then nothing is held."""
        self.device = device
        self._buckets: dict[int, Bucket] = {}
        with device.current(), contextlib.ExitStack() as held:
            if workspace is None:
                workspace = Workspace(device.driver, room_limit)
                held.callback(workspace.close)
            self._workspace, self.room_limit = workspace, workspace.limit
            with workspace.lock:
                image, offsets = tables.image()
                memory = device.driver.mem_alloc(len(image))
                held.callback(memory.free)
                device.driver.memcpy_htod_async(memory, image, workspace.stream)
                workspace.stream.synchronize()
                self.automata = Automata.of(tables)
                base = int(memory)
                self.tables = tables.structure({name: base + at for name, at in offsets.items()})
                for room in rooms(self.room_limit):
                    self._buckets[room] = self._bucket(room, held)
            self._held = held.pop_all()

    def encode(self, segment: bytes) -> Ids:
        """The IDs of a segment (`toktier.gpu.tables`): valid UTF-8. Raises `ValueError` beyond `room_limit`."""
        with self._workspace.lock, self.device.current():
            return self._encode(segment).copy()

    def encode_view(self, segment: bytes) -> Ids:
        """As `encode`; the array is overwritten by the next call."""
        with self._workspace.lock, self.device.current():
            return self._encode(segment)

    def encode_batch(self, segments: Sequence[bytes]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """The IDs of each segment, one after the other, and their counts, in one launch."""
        if not segments:
            return np.empty(0, np.uint32), np.empty(0, np.int64)
        with self._workspace.lock, self.device.current():
            ids = self._encode(bytes([BREAK_BYTE]).join(segments))
            breaks = np.flatnonzero(ids == BREAK_ID)
            edges = np.concatenate([[-1], breaks, [len(ids)]])
            return np.delete(ids, breaks), np.diff(edges) - 1

    def bucket(self, size: int) -> Bucket:
        """The bucket of a text of ``size`` bytes."""
        return self._buckets[room_for(size)]

    def _bucket(self, room: int, held: contextlib.ExitStack) -> Bucket:
        layout = layout_for(room)
        ways = []
        for kernels in (chain(layout, self.device.processors), *([ONE] if room == BRIEF else ())):
            ways.append(Bucket(self, layout, self._workspace, kernels))
            held.callback(ways[-1].graph.close)
            ways[-1].ready()
        return quicker(ways)

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
        """Frees its graphs, its tables, and a workspace of its own."""
        with self._workspace.lock, self.device.current():
            self._buckets.clear()
            self._held.close()
