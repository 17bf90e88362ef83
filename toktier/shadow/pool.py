"""Jobs wait in a bounded queue; one thread for each worker process gives it one after the other.

Invariants:
 - Every submitted job ends exactly once, in `on_result` or in `on_drop`, whatever happens to workers and callbacks.
 - `submit` waits for nothing and raises nothing; what does not fit is dropped at once, in the caller's thread.
 - At most ``queue_jobs`` jobs wait, and those that wait and those that run hold at most ``queue_bytes`` together.
 - A worker that dies or does not answer is replaced when the next job is there, after a pause that grows with the
   failures in a row. The job of one that died is tried `TRIES` times, that of one that did not answer is not.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog

from toktier.shadow.job import Drop, Job, NotComparable, Timing, Verdict, WorkerEvent, WorkerState
from toktier.shadow.process import WorkerProcess

PAUSE_S = 0.1
PAUSE_MOST_S = 30.0
"""Before a worker is replaced: doubled with every failure in a row, from the first to the second."""
TRIES = 3
"""Workers that a job may lose before it is dropped as their end."""
JOIN_S = 5.0
"""Longest wait for a thread that was told to end; one whose callback hangs is left behind."""

_log = structlog.get_logger("toktier.shadow")

OnResult = Callable[[Job, Verdict, Timing], None]
OnDrop = Callable[[Job, Drop, str], None]
"""The last argument says more, in our words; it may be empty."""
OnWorker = Callable[[WorkerEvent], None]


class _Waiting(NamedTuple):
    job: Job
    nbytes: int
    since: float


class Pool:
    """Checks jobs in worker processes. Thread-safe.

    Callbacks come from the pool's threads, `on_drop` also from within `submit`; they must not wait long. What they
    raise is logged. Processes start with the first job.
    """

    def __init__(
        self,
        workers: int,
        queue_jobs: int,
        queue_bytes: int,
        timeout_s: float,
        on_result: OnResult,
        on_drop: OnDrop,
        on_worker: OnWorker,
    ) -> None:
        """``timeout_s``: longest silence of a worker that has a job. Its start and a load of a model count apart."""
        if min(workers, queue_jobs, queue_bytes) < 1 or timeout_s <= 0:
            raise ValueError("workers, queue_jobs and queue_bytes must be >= 1, timeout_s > 0")
        self._queue_jobs = queue_jobs
        self._queue_bytes = queue_bytes
        self._timeout_s = timeout_s
        self._on_result, self._on_drop, self._on_worker = on_result, on_drop, on_worker
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue: deque[_Waiting] = deque()
        self._held = 0
        self._running = 0
        self._closed = False
        self._stopped = False
        self._threads = [_Runner(self, number) for number in range(workers)]
        for thread in self._threads:
            thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that no worker has yet."""
        return len(self._queue)

    @property
    def running(self) -> int:
        """Jobs that a worker has."""
        return self._running

    def submit(self, job: Job) -> None:
        """Have ``job`` checked, if there is room. Waits for nothing, raises nothing."""
        nbytes = job.nbytes
        with self._lock:
            reason = self._why_not(nbytes)
            if reason is None:
                self._queue.append(_Waiting(job, nbytes, time.monotonic()))
                self._held += nbytes
                self._changed.notify()
        if reason is not None:
            self._drop(job, reason)

    def close(self, timeout_s: float) -> None:
        """Finish what waits and runs within ``timeout_s`` seconds, drop the rest, end the workers."""
        deadline = time.monotonic() + timeout_s
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            self._stopped = True
            left = [*self._queue]
            self._queue.clear()
            self._held -= sum(waiting.nbytes for waiting in left)
            self._changed.notify_all()
        for waiting in left:
            self._drop(waiting.job, Drop.SHUTDOWN)
        for thread in self._threads:
            thread.interrupt()
            thread.join(JOIN_S)

    # for the threads

    def _why_not(self, nbytes: int) -> Drop | None:
        if self._closed:
            return Drop.SHUTDOWN
        if nbytes > self._queue_bytes:
            return Drop.TOO_LARGE
        full = len(self._queue) >= self._queue_jobs or self._held + nbytes > self._queue_bytes
        return Drop.QUEUE_FULL if full else None

    def _next(self) -> _Waiting | None:
        """Blocks until there is a job; None when there will be none any more."""
        with self._changed:
            while not self._queue and not self._closed:
                self._changed.wait()
            if not self._queue:
                return None
            self._running += 1
            return self._queue.popleft()

    def _end(self, waiting: _Waiting) -> None:
        with self._lock:
            self._running -= 1
            self._held -= waiting.nbytes

    def _drop(self, job: Job, reason: Drop, detail: str = "") -> None:
        _call(lambda: self._on_drop(job, reason, detail))

    def _report(self, state: WorkerState, pid: int, exit_code: int | None = None) -> None:
        _call(lambda: self._on_worker(WorkerEvent(state, pid, exit_code)))

    def _pause(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped, seconds)


class _Runner(threading.Thread):
    """Feeds one worker process."""

    def __init__(self, pool: Pool, number: int) -> None:
        super().__init__(name=f"toktier-shadow-{number}", daemon=True)
        self._pool = pool
        self._process: WorkerProcess | None = None
        self._failures = 0

    def run(self) -> None:
        pool = self._pool
        while (waiting := pool._next()) is not None:
            started = time.monotonic()
            try:
                outcome: Verdict | NotComparable = self._check(waiting.job)
            except Exception as error:  # whatever it is, the job has to end
                _log.exception("shadow_failed")
                outcome = NotComparable(Drop.INTERNAL_ERROR, type(error).__name__)
            ended = time.monotonic()
            if isinstance(outcome, NotComparable):
                pool._drop(waiting.job, outcome.reason, outcome.detail)
            else:
                timing = Timing(
                    queue_us=_microseconds(waiting.since, started),
                    check_us=_microseconds(started, ended),
                    delay_us=_microseconds(waiting.job.prepared_at, ended),
                )
                _call(partial(pool._on_result, waiting.job, outcome, timing))
            pool._end(waiting)
        self._leave(WorkerState.STOPPED, kill=pool._stopped)

    def interrupt(self) -> None:
        """Called when the pool has stopped: the job at hand is given up."""
        process = self._process
        if process is not None:
            process.interrupt()

    def _check(self, job: Job) -> Verdict | NotComparable:
        """A job whose worker dies gets another: somebody may have killed it. After some it counts as the cause."""
        tries = 1
        outcome = self._tried(job)
        while isinstance(outcome, NotComparable) and outcome.reason is Drop.WORKER_DIED and tries < TRIES:
            tries += 1
            outcome = self._tried(job)
        return outcome

    def _tried(self, job: Job) -> Verdict | NotComparable:
        pool = self._pool
        verdict: Verdict | None = None
        try:
            process = self._ready()
            if process is None:
                return NotComparable(Drop.SHUTDOWN)
            process.send(job, pool._timeout_s)
            while True:
                answer = process.answer(pool._timeout_s)
                if answer.final and answer.result is not None:
                    self._failures = 0
                    return answer.result
                if isinstance(answer.result, Verdict):
                    verdict = answer.result
        except TimeoutError:
            lost = NotComparable(Drop.TIMEOUT)
            self._lose(WorkerState.KILLED)
        except (OSError, EOFError, ValueError) as error:
            lost = NotComparable(Drop.WORKER_DIED, type(error).__name__)
            self._lose(WorkerState.DIED)
        if verdict is not None:
            return verdict  # all that is missing is where in the text it is
        return NotComparable(Drop.SHUTDOWN) if pool._stopped else lost

    def _ready(self) -> WorkerProcess | None:
        """A live worker; None where the pool has stopped. Raises `OSError` where none can be started."""
        if self._process is not None and not self._process.alive:
            self._lose(WorkerState.DIED)
        if self._process is None:
            if self._failures:
                self._pool._pause(min(PAUSE_S * 2 ** (self._failures - 1), PAUSE_MOST_S))
            if not self._pool._stopped:
                self._process = WorkerProcess()
                self._pool._report(WorkerState.STARTED, self._process.pid)
        # The pool stops first and looks for the process then; here it is the other way round, so one sees the other.
        return None if self._pool._stopped else self._process

    def _lose(self, state: WorkerState) -> None:
        self._failures += 1
        stopped = self._pool._stopped
        self._leave(WorkerState.STOPPED if stopped else state, kill=stopped or state is WorkerState.KILLED)

    def _leave(self, state: WorkerState, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is not None:
            self._pool._report(state, process.pid, process.end(kill=kill))


def _call(callback: Callable[[], None]) -> None:
    try:
        callback()
    except Exception:
        _log.exception("shadow_callback_failed")


def _microseconds(start: float, end: float) -> int:
    return max(0, round((end - start) * 1e6))
