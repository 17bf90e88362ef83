"""CUDA graphs, which PyCUDA does not have: a few driver calls through ctypes on the streams that PyCUDA makes.

While a stream is captured nothing may be allocated, no default stream used, and nothing synchronised. Memory that a
graph names must outlive it; ``kept`` holds on to the objects.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from typing import Any

_THREAD_LOCAL = 1
"""Other threads (PyTorch's, say) may go on allocating while this one captures."""
_POINTER = ctypes.c_void_p
_SIGNATURES: dict[str, list[Any]] = {
    "cuStreamBeginCapture_v2": [_POINTER, ctypes.c_int],
    "cuStreamEndCapture": [_POINTER, ctypes.POINTER(_POINTER)],
    "cuGraphInstantiateWithFlags": [ctypes.POINTER(_POINTER), _POINTER, ctypes.c_ulonglong],
    "cuGraphUpload": [_POINTER, _POINTER],
    "cuGraphLaunch": [_POINTER, _POINTER],
    "cuGraphExecDestroy": [_POINTER],
    "cuGraphDestroy": [_POINTER],
    "cuGetErrorName": [ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)],
}


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


def _call(name: str, *arguments: Any, quick: bool = False) -> None:
    driver = _driver(quick)
    code = getattr(driver, name)(*arguments)
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(text))
        raise DriverError(name, (text.value or b"unknown error").decode())


class Graph:
    """What `capture` recorded. It is freed by `close`, before its context goes."""

    def __init__(self, executable: _POINTER, kept: tuple[Any, ...]) -> None:
        self._executable: _POINTER | None = executable
        self._kept = kept

    def upload(self, stream: Any) -> None:
        """Makes the first launch as fast as later ones."""
        _call("cuGraphUpload", self._executable, stream.handle)

    def launch(self, stream: Any) -> None:
        _call("cuGraphLaunch", self._executable, stream.handle, quick=True)

    def close(self) -> None:
        if self._executable is not None:
            executable, self._executable = self._executable, None
            _call("cuGraphExecDestroy", executable)


def capture(stream: Any, record: Callable[[], None], kept: tuple[Any, ...] = ()) -> Graph:
    """What ``record`` puts on ``stream``, as a graph. Raises `DriverError`."""
    graph, executable = _POINTER(), _POINTER()
    _call("cuStreamBeginCapture_v2", stream.handle, _THREAD_LOCAL)
    try:
        record()
    finally:  # also where record raised: else the stream stays in capture
        _call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
    try:
        _call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    finally:
        _call("cuGraphDestroy", graph)
    return Graph(executable, kept)
