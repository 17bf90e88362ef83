"""All devices: which one gets a request's segments, and what is counted.

Requests go round among the devices that serve their tokenizer, to the one with the least text waiting. A text that is
longer than one launch takes goes in several, on all of them. Where no device can take it, the reason is that of the
first one: a reason that ends (`State.OPENING`) before one that does not.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from toktier.gpu.router.devices import Failed, Opener, State
from toktier.gpu.router.jobs import Job, Limits, Tokenizer
from toktier.gpu.router.scratch import give
from toktier.gpu.router.segments import Segments
from toktier.gpu.router.worker import Worker
from toktier.gpu.vocabulary import BREAK_ID
from toktier.ids import Ids
from toktier.reasons import Gpu

_BREAK: Ids = np.array([BREAK_ID], np.uint32)


@dataclass(frozen=True)
class DeviceState:
    """For people and metrics."""

    number: int
    name: str | None
    state: State
    reason: Gpu | None
    detail: str
    queued: int
    """Bytes."""


class Router:
    """The devices of this process. Thread-safe."""

    def __init__(self, opener: Opener, devices: Sequence[int], limits: Limits | None = None) -> None:
        """Opens the devices in threads of their own and returns at once. They are closed by `close`, at the latest when
        the process ends: a thread that is ended by the interpreter while it has a context aborts the process."""
        self.limits = limits or Limits()
        self.outcomes: Counter[Gpu] = Counter()
        """Texts by what became of them. Written under the lock; may be read at any time."""
        self.chars = 0
        """Characters that devices have encoded."""
        self._lock = threading.Lock()
        self._turn = 0
        self._coming = 0
        self._spared: set[int] = set()
        self.workers = [Worker(number, opener, self.limits, lambda: self._coming) for number in devices]
        atexit.register(self.close)

    # set-up

    def spare(self, thread: int) -> None:
        """The thread of this identity (`threading.get_ident`) must never wait: it gets `Gpu.AT_ONCE`."""
        self._spared.add(thread)

    def add(self, tokenizer: Tokenizer) -> None:
        """Serve it, on every device that it was checked on."""
        for worker in self.workers:
            worker.add(tokenizer)

    def remove(self, key: str) -> None:
        """Serve it no longer."""
        for worker in self.workers:
            worker.remove(key)

    def close(self, wait_s: float = 2.0) -> None:
        """End the threads. What waits is told; a call that does not come back is left alone after ``wait_s``."""
        atexit.unregister(self.close)
        for worker in self.workers:
            worker.stop()
        end = time.monotonic() + wait_s
        for worker in self.workers:
            worker.join(max(0.0, end - time.monotonic()))

    # requests

    @contextmanager
    def coming(self) -> Iterator[None]:
        """Around the work before `encode`: another request may wait a moment, to share a launch."""
        with self._lock:
            self._coming += 1
        try:
            yield
        finally:
            with self._lock:
                self._coming -= 1
                last = self._coming == 0
            for worker in self.workers if last else ():
                worker.wake()

    def refuses(self, key: str) -> Gpu | None:
        """Why no device can take a text now; None where one can. Asked before any work is done for it."""
        if threading.get_ident() in self._spared:
            return Gpu.AT_ONCE
        if any(key in worker.serves for worker in self.workers):
            return None
        return min((self._why_not(worker, key) for worker in self.workers), key=lambda why: why is not Gpu.LOADING)

    def encode(self, key: str, segments: Segments) -> Ids:
        """The IDs of the segments, one after the other, with `toktier.gpu.vocabulary.BREAK_ID` for each break; most
        often in a row (`toktier.gpu.router.scratch`). Raises `Failed`; a device may then still read the segments."""
        usable = [worker for worker in self.workers if key in worker.serves]
        if not usable:
            raise Failed(Gpu.PAUSED)
        most = min(worker.most() for worker in usable)
        parts = segments.parts(most)
        if parts is None:
            raise Failed(Gpu.TOO_LARGE if most == self.limits.max_bytes else Gpu.OUT_OF_MEMORY)
        handed: list[tuple[Worker, Job]] = []
        try:
            for raw, count in parts:
                job = Job(key, raw, count)
                handed.append((self._hand(usable, job), job))
            answers = [worker.wait(job) for worker, job in handed]
        except Failed:
            for worker, job in handed:
                worker.abandon(job)
            raise
        if len(answers) == 1:
            return answers[0]
        joined = np.concatenate([part for ids in answers for part in (_BREAK, ids)][1:])
        give(*answers)
        return joined

    def count(self, outcome: Gpu, chars: int) -> None:
        """A text of so many characters was encoded here, or not."""
        with self._lock:
            self.outcomes[outcome] += 1
            if outcome is Gpu.USED:
                self.chars += chars

    # what there is

    def states(self) -> list[DeviceState]:
        """Of all devices, in the order of the configuration."""
        return [DeviceState(w.number, w.name, w.state, w.reason, w.detail, w.queued) for w in self.workers]

    def _hand(self, usable: Sequence[Worker], job: Job) -> Worker:
        """To the first that takes it: one may have failed, or have too much to do, since it was asked. Raises `Failed`
        with the first one's reason."""
        first: Failed | None = None
        for worker in self._order(usable):
            try:
                worker.submit(job)
            except Failed as failed:
                first = first or failed
            else:
                return worker
        assert first is not None
        raise first

    def _order(self, usable: Sequence[Worker]) -> list[Worker]:
        """The one with the least text waiting first; those with as much go round."""
        with self._lock:
            self._turn += 1
            turn = self._turn
        order = [usable[(turn + k) % len(usable)] for k in range(len(usable))]
        return sorted(order, key=lambda worker: worker.queued)

    @staticmethod
    def _why_not(worker: Worker, key: str) -> Gpu:
        if (refused := worker.verdict(key)) is not None:
            return refused.reason
        if worker.state is State.OFF and worker.reason is not None:
            return worker.reason
        if worker.state is State.CLOSED:
            return Gpu.CLOSED
        return Gpu.PAUSED if worker.state is State.PAUSED else Gpu.LOADING
