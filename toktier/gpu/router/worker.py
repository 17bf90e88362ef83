"""One device: the thread that owns it, what waits for it, and what becomes of it when it fails.

Invariants
1. Only the thread touches the device, and so its context. It opens it, checks every tokenizer on it before any request
   is served with it (`Tokenizer.accept`), and closes it.
2. What waits when the thread comes back goes in one launch, as far as it is of one tokenizer and fits. While others are
   known to be on their way (``coming``), and only then, it waits for them, `Limits.window_s` at most.
3. A device that failed is given up as a whole, and what waits for it is told at once. It is opened and checked again
   after a second, and after twice as long each time that it fails again, up to `LAST_RETRY_S`; no request is part of a
   trial. What one tokenizer alone fails with (`toktier.gpu.router.wanted`) is no failure of the device, unless none is
   left.
4. A call that does not come back costs this thread, and the device while it lasts: requests give it up
   (`Limits.timeout_s`), and no second thread ever enters a device.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import structlog

from toktier.errors import is_failure
from toktier.gpu.router.devices import FINAL, Failed, Opener, SegmentEncoder, State
from toktier.gpu.router.jobs import LAST_RETRY_S, Job, Limits, Tally, Tokenizer
from toktier.gpu.router.opened import Opened, checked, encoded
from toktier.gpu.router.wanted import FOR_GOOD, FOR_NOW, Wanted
from toktier.ids import Ids
from toktier.reasons import Gpu

SMALL = 64 << 10
"""Bytes of a launch for which there is memory, or the device is of no use."""
STEADY_S = 60.0
"""A device that works for so long counts as one that has not failed."""

_log = structlog.get_logger("toktier.gpu")


class Worker:
    """One device. Thread-safe; the thread starts at once and is a daemon."""

    def __init__(self, number: int, opener: Opener, limits: Limits, coming: Callable[[], int]) -> None:
        """``coming``: requests that are about to hand something over."""
        self.number = number
        self.limits = limits
        self.tally = Tally()
        self.name: str | None = None
        self.state = State.OPENING
        self.reason: Gpu | None = None
        """Why it is not `State.OK`."""
        self.detail = ""
        self.serves: frozenset[str] = frozenset()
        """Tokenizers that were checked on it."""
        self._open, self._coming = opener, coming
        self._change = threading.Condition()
        self._queue: deque[Job] = deque()
        self._queued = 0
        self._batch: list[Job] = []
        self._gathering = False
        self._wanted = Wanted(limits.first_retry_s)
        self._device: Opened | None = None
        self._retry_at = 0.0
        self._wait_s = limits.first_retry_s
        self._ok_since = self._seen = time.monotonic()
        self._memory_until = 0.0
        self._memory_most = limits.max_bytes
        self._thread = threading.Thread(target=self._run, name=f"toktier-gpu-{number}", daemon=True)
        self._thread.start()

    # from other threads

    @property
    def queued(self) -> int:
        """Bytes that wait or are being encoded."""
        return self._queued

    def add(self, tokenizer: Tokenizer) -> None:
        """Serve it, once it was checked."""
        with self._change:
            self._wanted.add(tokenizer)
            self.serves -= {tokenizer.key}
            self._change.notify_all()

    def remove(self, key: str) -> None:
        """Serve it no longer."""
        with self._change:
            self._wanted.remove(key)
            self.serves -= {key}
            self._change.notify_all()

    def verdict(self, key: str) -> Failed | None:
        """Why it does not take this tokenizer, where it takes others."""
        return self._wanted.verdict(key)

    def most(self) -> int:
        """Bytes that a launch may have at present: fewer for a while after the memory did not suffice."""
        return self.limits.max_bytes if time.monotonic() >= self._memory_until else self._memory_most

    def submit(self, job: Job) -> None:
        """Queue it. Raises `Failed`."""
        size = len(job.raw)
        with self._change:
            if self.state is not State.OK or job.key not in self.serves:
                raise Failed(Gpu.CLOSED if self.state is State.CLOSED else Gpu.PAUSED)
            if self._queued and self._queued + size > self.limits.queue_bytes:
                raise Failed(Gpu.BUSY)
            self._queue.append(job)
            self._queued += size
            self._change.notify_all()

    def wait(self, job: Job) -> Ids:
        """Its answer. Raises `Failed`, also where it waits for its turn, or for the device, longer than the limit."""
        limit = self.limits.timeout_s
        if not job.done.wait(limit):
            with self._change:
                if job.started is None and not job.done.is_set():
                    self._drop(job, Failed(Gpu.BUSY))
                    if time.monotonic() - self._seen >= limit and self.state is State.OK:
                        # Nothing was begun all the while: the thread hangs in something else than a launch.
                        self._become(State.PAUSED, Failed(Gpu.TIMEOUT, "between launches"))
            if job.started is not None and not job.done.wait(max(0.0, job.started + limit - time.monotonic())):
                self._stuck(job)
        if job.failed is not None:
            raise job.failed
        assert job.answer is not None
        return job.answer

    def wake(self) -> None:
        """Nobody is on the way any more."""
        if self._gathering:
            with self._change:
                self._change.notify_all()

    def abandon(self, job: Job) -> None:
        """Nobody wants its answer any more."""
        with self._change:
            if job in self._queue:
                self._drop(job, Failed(Gpu.CLOSED))

    def stop(self) -> None:
        """End the thread, when it has ended what it is at."""
        with self._change:
            self._become(State.CLOSED, Failed(Gpu.CLOSED))
            self._change.notify_all()

    def join(self, wait_s: float) -> None:
        """Wait for that, ``wait_s`` seconds at most."""
        self._thread.join(wait_s)

    def _stuck(self, job: Job) -> None:
        with self._change:
            if job.done.is_set():
                return
            for one in (job, *self._batch):
                one.end(None, Failed(Gpu.TIMEOUT))
            if self.state is State.OK:
                self._become(State.PAUSED, Failed(Gpu.TIMEOUT, f"over {self.limits.timeout_s:g} s"))

    # under the lock

    def _drop(self, job: Job, failed: Failed) -> None:
        """Take it out of the queue."""
        self._queue.remove(job)
        self._queued -= len(job.raw)
        job.end(None, failed)

    def _end_batch(self, answers: Sequence[Ids | Failed], failed: Failed | None) -> int:
        """Tell the jobs of the launch: the first ones their ``answers``, the others ``failed``. Their bytes."""
        batch, self._batch, self._seen = self._batch, [], time.monotonic()
        size = sum(len(job.raw) for job in batch)
        self._queued -= size
        for job, answer in zip(batch, answers, strict=False):
            if isinstance(answer, Failed):
                job.end(None, answer)
            else:
                job.end(answer)
        for job in batch:
            job.end(None, failed)
        return size

    def _become(self, state: State, why: Failed | None = None) -> None:
        """Another state; what waits is told."""
        if self.state is State.CLOSED:
            return
        self.state = state
        self.reason, self.detail = (None, "") if why is None else (why.reason, why.detail)
        if state is State.OK:
            self._ok_since = time.monotonic()
        if state is not State.OK:
            self.serves = frozenset()
            for job in list(self._queue):
                self._drop(job, Failed(Gpu.CLOSED if state is State.CLOSED else Gpu.PAUSED))
        expected = state in (State.OK, State.CLOSED) or self.reason is Gpu.NO_PYCUDA  # an extra, left out
        say = _log.info if expected else _log.warning
        retry_s = None
        if state is State.PAUSED:
            retry_s = self._wait_s
            self._retry_at = time.monotonic() + self._wait_s
            self._wait_s = min(LAST_RETRY_S, 2 * self._wait_s)
        reason = None if self.reason is None else self.reason.value
        fields = {"name": self.name, "reason": reason, "detail": self.detail or None, "retry_s": retry_s}
        say("gpu_device", device=self.number, state=state.value, **fields)

    # the thread

    def _run(self) -> None:
        try:
            while self.state not in (State.CLOSED, State.OFF):
                try:
                    self._turn()
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    _log.exception("gpu_failed", device=self.number)
                    failed = Failed(Gpu.INTERNAL_ERROR, type(error).__name__)
                    with self._change:
                        self._end_batch((), failed)
                    self._failed(failed)
        finally:
            self._give_up()

    def _turn(self) -> None:
        """Whatever is to be done next."""
        with self._change:
            if self.state in (State.CLOSED, State.OFF):
                return
            if self.state is State.PAUSED:
                left = self._retry_at - time.monotonic()
                if left > 0:
                    self._change.wait(left)
                    return
            opening = self.state is not State.OK
        if opening:
            self._give_up()
            try:
                self._device = Opened(self._open(self.number), self.limits.max_bytes)
            except Failed as failed:
                self._failed(failed)
                return
            self.name = self._device.opened.name
        if not self._follow(opening):
            return
        batch = self._take()
        if batch:
            self._serve(batch)

    def _follow(self, opening: bool) -> bool:
        """Encoders for the tokenizers that are wanted and no others. Whether the device may be used."""
        device = self._device
        assert device is not None
        with self._change:
            due = self._wanted.due()
            gone = [key for key, held in device.served.items() if due.get(key) is not held.tokenizer]
            new = [one for key, one in due.items() if key in gone or key not in device.served]
            if new:
                self.serves = frozenset()  # a check takes longer than a request should wait
            for job in list(self._queue):
                if new or job.key in gone:
                    self._drop(job, Failed(Gpu.LOADING))
        for key in gone:
            device.served.pop(key).encoder.close()
        passing: list[tuple[Tokenizer, Failed]] = []
        for tokenizer in new:
            with self._change:
                if self.state is not State.OK and not (opening and self.state is not State.CLOSED):
                    return False
                if not self._wanted.has(tokenizer):
                    continue
            failed = checked(device, tokenizer)
            if failed is None:
                with self._change:
                    self._wanted.accept(tokenizer)
            elif failed.reason in FOR_NOW:
                passing.append((tokenizer, failed))
            elif failed.reason in FOR_GOOD:
                self._refuse(tokenizer, failed)
            else:
                self._failed(failed)
                return False
        if passing and not device.served:
            self._failed(passing[0][1])  # it is of no use to anybody
            return False
        for tokenizer, failed in passing:
            self._refuse(tokenizer, failed)
        with self._change:
            if opening:
                self._become(State.OK)
            if self.state is State.OK:
                served = device.served.items()
                self.serves = frozenset(key for key, held in served if self._wanted.has(held.tokenizer))
        return True

    def _refuse(self, tokenizer: Tokenizer, failed: Failed) -> None:
        with self._change:
            retry_s = self._wanted.refuse(tokenizer, failed)
        levels = {Gpu.SLOWER: _log.info, Gpu.OUT_OF_MEMORY: _log.warning}
        fields = {"reason": failed.reason.value, "detail": failed.detail or None, "retry_s": retry_s}
        levels.get(failed.reason, _log.error)(
            "gpu_tokenizer_refused", device=self.number, digest=tokenizer.key, **fields
        )

    def _take(self) -> list[Job]:
        """What goes in the next launch; nothing where something else is to be done first."""
        with self._change:
            while not self._queue:
                if self.state is not State.OK or self._behind():
                    return []
                self._change.wait(self._wanted.due_in())
            key, size = self._queue[0].key, -1
            batch: list[Job] = []
            self._batch = batch
            until = time.monotonic() + self.limits.window_s
            while True:
                now = time.monotonic()
                for job in list(self._queue):
                    if not batch or (job.key == key and size + 1 + len(job.raw) <= self.most()):
                        self._queue.remove(job)
                        job.started = now
                        batch.append(job)
                        size += 1 + len(job.raw)
                if now >= until or self._coming() <= 0 or size >= self.most():
                    self._seen = now
                    return batch
                self._gathering = True
                self._change.wait(until - now)
                self._gathering = False

    def _behind(self) -> bool:
        """Whether tokenizers came or went, or one is to be tried again."""
        assert self._device is not None
        due, served = self._wanted.due(), self._device.served
        return due.keys() != served.keys() or any(served[key].tokenizer is not one for key, one in due.items())

    def _serve(self, batch: list[Job]) -> None:
        assert self._device is not None
        encoder = self._device.served[batch[0].key].encoder
        started = time.monotonic()
        answers, failed = self._answers(encoder, batch)
        with self._change:
            stuck = self.state is not State.OK
            size = self._end_batch(answers, failed)
            self.tally.launches += 1
            self.tally.jobs += len(batch)
            self.tally.bytes += size
            self.tally.seconds += time.monotonic() - started
        if stuck:
            if self.state is State.PAUSED:
                _log.warning("gpu_came_back", device=self.number, seconds=round(time.monotonic() - started, 1))
            self._give_up()
        elif failed is not None and failed.reason is Gpu.OUT_OF_MEMORY and size > SMALL:
            self._short_of_memory(size)
        elif failed is not None:
            self._failed(failed)
        elif time.monotonic() - self._ok_since > STEADY_S:
            self._wait_s = self.limits.first_retry_s

    def _answers(self, encoder: SegmentEncoder, batch: list[Job]) -> tuple[list[Ids | Failed], Failed | None]:
        """Those of the first jobs of ``batch``, and what became of the others, if there are any.

        A fault that one text has caused (`Gpu.KERNEL_FAULT`) is the answer for that text alone.
        """
        assert self._device is not None
        found: list[Ids | Failed] = []
        groups = [batch]
        while groups:
            group = groups.pop(0)
            try:
                found += encoded(encoder, group)
            except BaseException as error:
                failed = self._device.opened.failure(error)
                if failed.reason is not Gpu.KERNEL_FAULT:
                    return found, failed
                if len(group) == 1:
                    found.append(failed)
                else:
                    groups = [[job] for job in group]
        return found, None

    def _short_of_memory(self, size: int) -> None:
        """Smaller launches only, for a while."""
        with self._change:
            self._memory_most = 1 << max(size - 1, 1).bit_length() - 1
            self._memory_until = time.monotonic() + self._wait_s
            _log.warning("gpu_memory", device=self.number, bytes=size, most=self._memory_most, retry_s=self._wait_s)
            self._wait_s = min(LAST_RETRY_S, 2 * self._wait_s)

    def _failed(self, failed: Failed) -> None:
        with self._change:
            self._become(State.OFF if failed.reason in FINAL else State.PAUSED, failed)
        self._give_up()

    def _give_up(self) -> None:
        device, self._device = self._device, None
        if device is None:
            return
        for held in device.served.values():
            with contextlib.suppress(Exception):  # of a context that is lost, nothing can be freed
                held.encoder.close()
        with contextlib.suppress(Exception):
            device.opened.close()
