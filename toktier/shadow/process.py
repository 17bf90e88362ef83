"""The pool's end of one worker process: start it, give it a job, take its answers, end it.

Invariants:
 - Every wait has an end: a socket with a time limit stands for both of the worker's standard streams, so that neither a
   worker that does not read nor one that does not write can hold a thread.
 - The process has the lowest priority from its first import on.
 - It ends with this object, and with this process however that ends: its standard input then ends.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from contextlib import suppress

from toktier.shadow import frames
from toktier.shadow.frames import Answer
from toktier.shadow.job import Job

_START = (
    "import os, sys; os.setpriority(os.PRIO_PROCESS, 0, 19); sys.path[:] = sys.argv[1:]; "
    "from toktier.shadow.worker import main; main()"
)
_LEAVE_S = 2.0
"""Longest wait for a process whose streams have ended."""


class WorkerProcess:
    """Started when it is made. One thread uses it; `interrupt` may be called by any."""

    def __init__(self) -> None:
        """Raises `OSError` where no process can be started."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 (this interpreter, our own module)
                    [sys.executable, "-P", "-c", _START, *sys.path],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,  # a traceback or a panic may quote text
                )
        except BaseException:
            ours.close()
            raise
        self._socket = ours
        self._deadline = 0.0

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, job: Job, timeout_s: float) -> None:
        """Raises `TimeoutError` when nothing goes on for so long, and another `OSError` where the process is gone."""
        self._socket.settimeout(timeout_s)
        for content in frames.pack_job(job):
            self._socket.sendall(frames.head(content))
            self._socket.sendall(content)

    def answer(self, timeout_s: float) -> Answer:
        """The next one.

        Raises `TimeoutError`, and `EOFError`, `ValueError` or another `OSError` where the process has failed.
        """
        self._deadline = time.monotonic() + timeout_s
        return frames.read_answer(self._receive)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def interrupt(self) -> None:
        """Make whoever waits for this process stop waiting, with an error."""
        with suppress(OSError):  # it is gone already
            self._socket.shutdown(socket.SHUT_RDWR)

    def end(self, *, kill: bool) -> int | None:
        """The exit code. Without ``kill`` a process gets a moment to end by itself."""
        self._socket.close()
        if not kill:
            with suppress(subprocess.TimeoutExpired):
                return self._process.wait(_LEAVE_S)
        self._process.kill()
        return self._process.wait()

    def _receive(self, size: int) -> bytes:
        content = bytearray(size)
        view = memoryview(content)
        while view:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._socket.settimeout(left)
            count = self._socket.recv_into(view)
            if not count:
                raise EOFError
            view = view[count:]
        return bytes(content)
