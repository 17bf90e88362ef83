"""PyCUDA's driver without a device: kernels give the bytes of a text, and what is taken and given back is counted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from toktier.gpu.buffers import REQUEST, counters
from toktier.gpu.driver import DriverError
from toktier.gpu.launcher import Device


class _Memory:
    def __init__(self, cuda: Cuda, size: int) -> None:
        self._cuda, self._size = cuda, size
        cuda.device_bytes += size

    def __int__(self) -> int:
        return 1 << 40

    def free(self) -> None:
        assert self._cuda.pushed
        self._cuda.device_bytes -= self._size
        self._size = 0


class _Locked:
    """What a page-locked array lies in."""

    def __init__(self, size: int) -> None:
        self._bytes = np.full(size, 0xEE, np.uint8)
        self.__array_interface__ = self._bytes.__array_interface__

    def get_device_pointer(self) -> int:
        return self._bytes.ctypes.data


class _Stream:
    handle = 7

    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda

    def synchronize(self) -> None:
        self._cuda.waiting = []
        work, self._cuda.pending = self._cuda.pending, []
        for one in work:
            one()


class _Graph:
    """Like `toktier.gpu.graph.Graph`."""

    def __init__(self, cuda: Cuda, workspace: Any) -> None:
        self._cuda, self._workspace, self.open = cuda, workspace, True

    def upload(self, _stream: object) -> None:
        self._cuda.need("upload")

    def launch(self, _stream: object) -> None:
        assert self.open
        self._cuda.pending.append(self._run)
        if not self._cuda.late:
            _Stream(self._cuda).synchronize()

    def _run(self) -> None:
        space = self._workspace
        request, told = counters(space.staging)[0], counters(space.done)[0]
        size = int(request["n"])
        self._cuda.text = space.staging[REQUEST.itemsize : REQUEST.itemsize + size].astype(np.uint32)
        space.out[:size] = self._cuda.text
        told["total"], told["error"] = size, 0
        space.done[REQUEST.itemsize :].view("<u4")[0] = request["turn"]

    def close(self) -> None:
        self.open = False


class Cuda:
    """The driver, and a device of it. What is not here is not to be called: no copy on the default stream."""

    host_alloc_flags = SimpleNamespace(DEVICEMAP=2)

    def __init__(self) -> None:
        self.device_bytes = self.locked_bytes = self.pushed = self.detached = 0
        self.streams: list[int] = []
        self.graphs: list[_Graph] = []
        self.pending: list[Callable[[], None]] = []
        self.late = False
        """Whether kernels end only when they are waited for."""
        self.lacks = ""
        """What there is no memory for."""
        self.waiting: list[int] = []
        self.copied_before_synchronised: list[int] = []
        self.zeroed: list[int] = []
        """Bytes at the beginning of the memory."""
        self.text = np.zeros(0, np.uint32)
        self.Context = self
        self.device: Any = object.__new__(Device)
        self.device.driver, self.device.processors, self.device._context = self, 132, self
        self.device.prepared = lambda *_: lambda: None

    def need(self, what: str) -> None:
        if self.lacks == what:
            raise DriverError(what, "CUDA_ERROR_OUT_OF_MEMORY")

    @property
    def open_graphs(self) -> int:
        return sum(graph.open for graph in self.graphs)

    # of a context and of a device

    def init(self) -> None: ...

    def Device(self, _number: int) -> Cuda:
        return self

    def name(self) -> str:
        return "none"

    multiprocessor_count = 132

    def compute_capability(self) -> tuple[int, int]:
        return 9, 0

    def retain_primary_context(self) -> Cuda:
        return self

    def push(self) -> None:
        self.pushed += 1

    def pop(self) -> None:
        self.pushed -= 1

    def detach(self) -> None:
        self.detached += 1

    # of the driver

    def Stream(self, flags: int = 0) -> _Stream:
        self.streams.append(flags)
        return _Stream(self)

    def mem_alloc(self, size: int) -> _Memory:
        if size == 100:
            self.need("image")
        return _Memory(self, size)

    def pagelocked_empty(self, count: int, dtype: Any, mem_flags: int = 0) -> Any:
        self.need("locked")
        assert mem_flags == self.host_alloc_flags.DEVICEMAP
        size = count * np.dtype(dtype).itemsize
        self.locked_bytes += size
        made: Any = _Locked(size)
        if np.dtype(dtype) == np.uint8:
            return np.asarray(made)
        made.__array_interface__ = made._bytes.view(dtype).__array_interface__
        return np.asarray(made)

    def memcpy_htod_async(self, _to: object, what: Any, _stream: _Stream) -> None:
        self.copied_before_synchronised.append(len(what))
        self.waiting.append(len(what))

    def memset_d8_async(self, at: int, value: int, count: int, _stream: _Stream) -> None:
        assert (at, value) == (1 << 40, 0)
        self.zeroed.append(count)

    def memcpy_dtoh_async(self, to: Any, _at: int, _stream: _Stream) -> None:
        to[:] = self.text[: len(to)]

    # instead of the driver's calls

    def capture(self, _stream: _Stream, record: Callable[[], None], kept: tuple[Any, ...]) -> _Graph:
        self.need("graph")
        assert not self.waiting, "tables on their way while a graph is made"
        record()
        self.graphs.append(_Graph(self, kept[0]))
        return self.graphs[-1]

    def call(self, _name: str, *_arguments: Any, quick: bool = False) -> None: ...
