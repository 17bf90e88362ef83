"""What PyCUDA does not have, called in the CUDA driver through ctypes: graphs, cooperative and early launches.

All calls are for the context that is current. PyCUDA's streams and the addresses of its memory are used as they are.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from enum import Enum
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

POINTER = ctypes.c_void_p
_OUT = ctypes.POINTER(POINTER)
_INT = ctypes.c_int
_COUNT = ctypes.c_uint
_LAUNCH = [POINTER, *[_COUNT] * 7, POINTER, ctypes.POINTER(POINTER)]
_SIGNATURES: dict[str, list[Any]] = {
    "cuModuleLoadData": [_OUT, ctypes.c_char_p],
    "cuModuleUnload": [POINTER],
    "cuModuleGetFunction": [_OUT, POINTER, ctypes.c_char_p],
    "cuModuleGetGlobal_v2": [_OUT, ctypes.POINTER(ctypes.c_size_t), POINTER, ctypes.c_char_p],
    "cuMemcpyDtoH_v2": [POINTER, POINTER, ctypes.c_size_t],
    "cuMemcpyHtoDAsync_v2": [ctypes.c_ulonglong, POINTER, ctypes.c_size_t, POINTER],
    "cuFuncSetAttribute": [POINTER, _INT, _INT],
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": [ctypes.POINTER(_INT), POINTER, _INT, ctypes.c_size_t],
    "cuLaunchKernel": [*_LAUNCH, POINTER],
    "cuLaunchCooperativeKernel": _LAUNCH,
    "cuLaunchKernelEx": [POINTER, POINTER, ctypes.POINTER(POINTER), POINTER],
    "cuStreamBeginCapture_v2": [POINTER, _INT],
    "cuStreamEndCapture": [POINTER, _OUT],
    "cuGraphInstantiateWithFlags": [_OUT, POINTER, ctypes.c_ulonglong],
    "cuGraphUpload": [POINTER, POINTER],
    "cuGraphLaunch": [POINTER, POINTER],
    "cuGraphExecDestroy": [POINTER],
    "cuGraphDestroy": [POINTER],
    "cuGetErrorName": [_INT, ctypes.POINTER(ctypes.c_char_p)],
}
_MAX_DYNAMIC_SHARED = 8
_PROGRAMMATIC_STREAM_SERIALIZATION = 6


class _Attribute(ctypes.Structure):
    """``CUlaunchAttribute``."""

    _fields_ = (("id", _INT), ("unused", _INT), ("value", ctypes.c_ulonglong * 8))


class _Configuration(ctypes.Structure):
    """``CUlaunchConfig``."""

    _fields_ = (
        ("shape", _COUNT * 7),
        ("stream", POINTER),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", _COUNT),
    )


class DriverError(RuntimeError):
    """A call of the CUDA driver failed; ``name`` is the driver's name of the error."""

    def __init__(self, call: str, name: str) -> None:
        super().__init__(f"{call}: {name}")
        self.name = name


@cache
def _driver(quick: bool = False) -> ctypes.CDLL:
    """The driver; for ``quick`` calls the interpreter's lock is kept: among busy threads it would be back late."""
    kind = ctypes.PyDLL if quick else ctypes.CDLL
    library: ctypes.CDLL = kind("libcuda.so.1")
    for name, arguments in _SIGNATURES.items():
        getattr(library, name).argtypes = arguments
    return library


def call(name: str, *arguments: Any, quick: bool = False) -> None:
    """Raises `DriverError`."""
    if code := getattr(_driver(quick), name)(*arguments):
        raise _error(name, code)


def _error(name: str, code: int) -> DriverError:
    text = ctypes.c_char_p()
    _driver().cuGetErrorName(code, ctypes.byref(text))
    return DriverError(name, (text.value or b"unknown error").decode())


class Arguments:
    """Values of a kernel's parameters, as a launch takes them."""

    def __init__(self, *values: bytes) -> None:
        self._buffers = [ctypes.create_string_buffer(value, len(value)) for value in values]
        self.pointers = (POINTER * len(values))(*map(ctypes.addressof, self._buffers))


class How(Enum):
    """How a kernel is launched: by which call of the driver."""

    ALONE = "cuLaunchKernel"
    TOGETHER = "cuLaunchCooperativeKernel"
    """All blocks are on the device at the same time, or the call fails."""
    EARLY = "cuLaunchKernelEx"
    """Before the kernel before it has ended, if the device can; the kernel itself waits for that."""


class Function:
    """A kernel."""

    def __init__(self, module: POINTER, name: str, shared: int) -> None:
        """``shared``: the most bytes of dynamic shared memory that it is launched with."""
        self._handle = POINTER()
        call("cuModuleGetFunction", ctypes.byref(self._handle), module, name.encode())
        call("cuFuncSetAttribute", self._handle, _MAX_DYNAMIC_SHARED, shared)

    def resident(self, threads: int, shared: int) -> int:
        """How many blocks of ``threads`` a multiprocessor holds at once."""
        found = _INT()
        call("cuOccupancyMaxActiveBlocksPerMultiprocessor", ctypes.byref(found), self._handle, threads, shared)
        return found.value

    def prepared(
        self, blocks: int, threads: int, shared: int, stream: Any, arguments: Arguments, how: How = How.ALONE
    ) -> Callable[[], None]:
        """A launch, with what takes time done before. It raises `DriverError`."""
        name, shape = how.value, (blocks, 1, 1, threads, 1, 1, shared)
        launch = getattr(_driver(), name)
        values: tuple[Any, ...]
        if how is How.EARLY:
            early = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION)
            early.value[0] = 1
            configuration = _Configuration((_COUNT * 7)(*shape), stream.handle, ctypes.pointer(early), 1)
            values = (ctypes.addressof(configuration), self._handle, arguments.pointers, None)
            kept: tuple[Any, ...] = (arguments, configuration, early)
        else:
            numbers = [_COUNT(value) for value in shape]
            values = (self._handle, *numbers, POINTER(stream.handle), arguments.pointers)
            values += () if how is How.TOGETHER else (None,)
            kept = (arguments,)

        def launched(kept: tuple[Any, ...] = kept) -> None:  # what the pointers point to lives as long as this
            if code := launch(*values):
                raise _error(name, code)

        return launched


class Module:
    """Compiled kernels in the current context, for as long as that lasts."""

    def __init__(self, content: bytes) -> None:
        self._handle = POINTER()
        call("cuModuleLoadData", ctypes.byref(self._handle), content)

    def numbers(self, name: str) -> npt.NDArray[np.uint32]:
        """A constant array of 32-bit numbers."""
        pointer, size = POINTER(), ctypes.c_size_t()
        call("cuModuleGetGlobal_v2", ctypes.byref(pointer), ctypes.byref(size), self._handle, name.encode())
        found = np.empty(size.value // 4, np.uint32)
        call("cuMemcpyDtoH_v2", found.ctypes.data, pointer, size.value)
        return found

    def function(self, name: str, shared: int = 0) -> Function:
        return Function(self._handle, name, shared)

    def close(self) -> None:
        call("cuModuleUnload", self._handle)
