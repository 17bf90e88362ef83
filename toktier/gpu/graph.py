"""CUDA graphs of what is put on a stream of PyCUDA's.

While a stream is captured nothing may be allocated, no default stream used, and nothing synchronised. Memory that a
graph names must outlive it; ``kept`` holds on to the objects.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Any

from toktier.gpu.driver import POINTER, DriverError, call

__all__ = ["DriverError", "Graph", "capture"]

_THREAD_LOCAL = 1
"""Other threads (PyTorch's, say) may go on allocating while this one captures."""


class Graph:
    """What `capture` recorded. It is freed by `close`, before its context goes."""

    def __init__(self, executable: POINTER, kept: tuple[Any, ...]) -> None:
        self._executable: POINTER | None = executable
        self._kept = kept

    def upload(self, stream: Any) -> None:
        """Makes the first launch as fast as later ones."""
        call("cuGraphUpload", self._executable, stream.handle)

    def launch(self, stream: Any) -> None:
        call("cuGraphLaunch", self._executable, stream.handle, quick=True)

    def close(self) -> None:
        if self._executable is not None:
            executable, self._executable = self._executable, None
            call("cuGraphExecDestroy", executable)


def capture(stream: Any, record: Callable[[], None], kept: tuple[Any, ...] = ()) -> Graph:
    """What ``record`` puts on ``stream``, as a graph. Raises `DriverError`."""
    graph, executable = POINTER(), POINTER()
    call("cuStreamBeginCapture_v2", stream.handle, _THREAD_LOCAL)
    try:
        try:
            record()
        except BaseException:  # the stream must not stay in capture; what that says is not what went wrong
            with contextlib.suppress(DriverError):
                call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
            raise
        call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
        call("cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, 0)
    finally:
        if graph:
            call("cuGraphDestroy", graph)
    return Graph(executable, kept)
