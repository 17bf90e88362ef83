"""The pool with processes that a test makes up: every job ends exactly once, bounds hold, losses are made good."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from tests.support.shadow import JOB, VERDICT, Ends
from toktier.shadow import pool as module
from toktier.shadow.frames import Answer
from toktier.shadow.job import Drop, Job, NotComparable, WorkerState
from toktier.shadow.pool import Pool

EQUAL = replace(VERDICT, kind=None)
BEHAVIOURS = (
    *("verdict", "loaded", "dropped", "dies", "dies_once", "hangs", "garbage", "partial_dies", "partial_hangs"),
    *("unsendable", "unsendable_once", "no_process", "bug"),
)


class Process:
    """A worker process that does what each job's model says."""

    count = 0
    tried: ClassVar[Counter[str]] = Counter()
    lock = threading.Lock()
    gate = threading.Event()
    """Cleared: jobs whose body says so wait."""

    def __init__(self) -> None:
        with Process.lock:
            Process.count += 1
            self.pid = Process.count
        self.alive = True
        self._answers: Iterator[Answer] = iter(())
        self._interrupted = threading.Event()

    @classmethod
    def reset(cls) -> None:
        cls.count, cls.tried = 0, Counter()
        cls.gate = threading.Event()
        cls.gate.set()

    def send(self, job: Job, timeout_s: float) -> None:
        with Process.lock:
            Process.tried[job.request_id] += 1
            again = Process.tried[job.request_id] > 1
        kind = job.model
        if kind == "unsendable" or (kind == "unsendable_once" and not again):
            raise BrokenPipeError
        if kind == "bug":
            raise RuntimeError("a fault of our own")
        self._answers = self._script(kind, again, job)

    def _script(self, kind: str, again: bool, job: Job) -> Iterator[Answer]:
        if job.body == b"gated":
            while not Process.gate.wait(0.005):
                if self._interrupted.is_set():
                    raise EOFError
        if kind in ("dies", "dies_once") and not (kind == "dies_once" and again):
            raise EOFError
        if kind == "garbage":
            raise ValueError
        if kind == "hangs":
            raise TimeoutError
        if kind == "dropped":
            yield Answer(NotComparable(Drop.FILES_CHANGED, "why"), True)
        if kind.startswith("partial"):
            yield Answer(None, False)
            yield Answer(VERDICT, False)
            raise TimeoutError if kind == "partial_hangs" else ConnectionResetError
        if kind == "loaded":
            yield Answer(None, False)
        yield Answer(EQUAL, True)

    def answer(self, timeout_s: float) -> Answer:
        return next(self._answers)

    def interrupt(self) -> None:
        self._interrupted.set()

    def end(self, *, kill: bool) -> int:
        self.alive = False
        return -9 if kill else 0


def no_process_for(failing: Callable[[], bool]) -> Callable[[], Process]:
    def start() -> Process:
        if failing():
            raise OSError("no more processes")
        return Process()

    return start


@pytest.fixture(autouse=True)
def _made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WorkerProcess", Process)
    monkeypatch.setattr(module, "PAUSE_S", 0.0)
    Process.reset()


def job(request_id: object, behaviour: str = "verdict", **changes: Any) -> Job:
    return replace(JOB, request_id=str(request_id), model=behaviour, prepared_at=time.monotonic(), **changes)


def pool_of(ends: Ends, workers: int = 1, jobs: int = 100, nbytes: int = 1 << 20) -> Pool:
    return Pool(workers, jobs, nbytes, 1.0, ends.on_result, ends.on_drop, ends.on_worker)


def settled(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


EXPECTED = {
    "verdict": None,
    "loaded": None,
    "dropped": Drop.FILES_CHANGED,
    "dies": Drop.WORKER_DIED,
    "dies_once": None,
    "hangs": Drop.TIMEOUT,
    "garbage": Drop.WORKER_DIED,
    "partial_dies": None,
    "partial_hangs": None,
    "unsendable": Drop.WORKER_DIED,
    "unsendable_once": None,
    "bug": Drop.INTERNAL_ERROR,
}


@pytest.mark.parametrize("behaviour", EXPECTED)
def test_each_way_to_end(behaviour: str) -> None:
    ends = Ends()
    pool = pool_of(ends)
    with capture_logs() as lines:
        pool.submit(job("r", behaviour))
        ends.wait(1)
        pool.submit(job("after"))
        ends.wait(2)
        settled(lambda: not pool.running)
    assert (pool.waiting, pool._held) == (0, 0)
    pool.close(1)
    assert sorted(ends.all) == ["after", "r"]
    expected = EXPECTED[behaviour]
    assert ends.reasons == ([] if expected is None else [expected])
    if behaviour.startswith("partial"):
        assert ends.results[0][1] == VERDICT, "a verdict without a place is a verdict"
    assert [line["event"] for line in lines] == (["shadow_failed"] if behaviour == "bug" else [])
    assert ends.states[0] is WorkerState.STARTED
    assert ends.states[-1] is WorkerState.STOPPED


def test_a_job_whose_worker_dies_is_tried_again_and_one_that_hangs_is_not() -> None:
    ends = Ends()
    pool = pool_of(ends)
    for behaviour in ("dies", "dies_once", "hangs", "garbage"):
        pool.submit(job(behaviour, behaviour))
    ends.wait(4)
    pool.close(1)
    assert Process.tried == {"dies": 3, "dies_once": 2, "hangs": 1, "garbage": 3}
    died, killed = ends.states.count(WorkerState.DIED), ends.states.count(WorkerState.KILLED)
    assert (died, killed) == (7, 1)
    assert ends.states.count(WorkerState.STARTED) == died + killed


def test_a_worker_that_died_while_idle_costs_no_job() -> None:
    ends = Ends()
    pool = pool_of(ends)
    pool.submit(job(1))
    ends.wait(1)
    process = pool._threads[0]._process
    assert process is not None
    process.alive = False  # type: ignore[misc]
    pool.submit(job(2))
    ends.wait(2)
    pool.close(1)
    assert Process.tried == {"1": 1, "2": 1}
    S, D = WorkerState.STARTED, WorkerState.DIED
    assert ends.states == [S, D, S, WorkerState.STOPPED]


def test_pauses_grow_with_failures_in_a_row_and_end_with_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module, "PAUSE_S", 0.5)
    monkeypatch.setattr(Pool, "_pause", lambda _, seconds: pauses.append(seconds))
    ends = Ends()
    pool = pool_of(ends)
    for k, behaviour in enumerate(["hangs"] * 8 + ["verdict", "hangs", "verdict"]):
        pool.submit(job(k, behaviour))
    ends.wait(11)
    pool.close(1)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 0.5]


def test_no_process_can_be_started_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = True
    monkeypatch.setattr(module, "WorkerProcess", no_process_for(lambda: failing))
    ends = Ends()
    pool = pool_of(ends)
    pool.submit(job(1))
    ends.wait(1)
    failing = False
    pool.submit(job(2))
    ends.wait(2)
    pool.close(1)
    assert [(one.request_id, reason) for one, reason, _ in ends.drops] == [("1", Drop.WORKER_DIED)]
    assert [one.request_id for one, *_ in ends.results] == ["2"]
    assert ends.states == [WorkerState.STARTED, WorkerState.STOPPED]


def test_the_queue_is_bounded_in_jobs() -> None:
    Process.gate.clear()
    ends = Ends()
    pool = pool_of(ends, jobs=3)
    pool.submit(job("running", body=b"gated"))
    settled(lambda: pool.running == 1)
    for k in range(5):
        pool.submit(job(k))
    assert (pool.waiting, pool.running) == (3, 1)
    assert ends.reasons == [Drop.QUEUE_FULL] * 2
    assert ends.all == ["3", "4"]
    Process.gate.set()
    ends.wait(6)
    settled(lambda: not pool.running)
    pool.submit(job("again"))
    ends.wait(7)
    pool.close(1)
    assert len(ends.results) == 5


def test_the_queue_is_bounded_in_bytes_what_runs_included() -> None:
    Process.gate.clear()
    ends = Ends()
    size = job(0).nbytes
    pool = pool_of(ends, nbytes=size + 250_000)
    pool.submit(job("large", text="x" * 1_000_000))
    assert ends.reasons == [Drop.TOO_LARGE]
    pool.submit(job("running", body=b"gated", ids=b"x" * 100_000))
    settled(lambda: pool.running == 1)
    pool.submit(job("waits", ids=b"x" * 100_000))
    pool.submit(job("too many", ids=b"x" * 100_000))
    assert ends.reasons == [Drop.TOO_LARGE, Drop.QUEUE_FULL]
    Process.gate.set()
    ends.wait(4)
    settled(lambda: not pool._held)
    pool.submit(job("fits", ids=b"x" * 200_000))
    ends.wait(5)
    pool.close(1)
    assert [one.request_id for one, *_ in ends.results] == ["running", "waits", "fits"]


def test_what_waits_is_finished_in_the_time_that_a_close_gives() -> None:
    ends = Ends()
    pool = pool_of(ends, workers=2)
    for k in range(20):
        pool.submit(job(k))
    pool.close(10)
    assert len(ends.results) == 20
    assert ends.states.count(WorkerState.STOPPED) == ends.states.count(WorkerState.STARTED)
    pool.submit(job("late"))
    assert ends.reasons == [Drop.SHUTDOWN]
    pool.close(0)
    assert not any(thread.is_alive() for thread in pool._threads)


def test_a_close_drops_what_is_not_finished_in_its_time() -> None:
    Process.gate.clear()
    ends = Ends()
    pool = pool_of(ends)
    for k in range(4):
        pool.submit(job(k, body=b"gated"))
    settled(lambda: pool.running == 1)
    pool.close(0.05)
    assert sorted(ends.all) == ["0", "1", "2", "3"]
    assert ends.reasons == [Drop.SHUTDOWN] * 4
    assert not any(thread.is_alive() for thread in pool._threads)
    assert ends.states == [WorkerState.STARTED, WorkerState.STOPPED]


def test_callbacks_that_raise_harm_nobody() -> None:
    ends = Ends()

    def wrapped(callback: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            callback(*arguments)
            raise RuntimeError("in a callback")

        return call

    pool = Pool(1, 1, 1 << 20, 1.0, wrapped(ends.on_result), wrapped(ends.on_drop), wrapped(ends.on_worker))
    with capture_logs() as lines:
        pool.submit(job("large", text="x" * (2 << 20)))
        pool.submit(job(1))
        ends.wait(2)
        pool.submit(job(2, "dies"))
        ends.wait(3)
        pool.close(1)
    assert sorted(ends.all) == ["1", "2", "large"]
    assert {line["event"] for line in lines} == {"shadow_callback_failed"}


def test_timings_are_in_order() -> None:
    Process.gate.clear()
    ends = Ends()
    pool = pool_of(ends)
    pool.submit(job(1, body=b"gated"))
    pool.submit(job(2))
    time.sleep(0.02)
    Process.gate.set()
    ends.wait(2)
    pool.close(1)
    (_, _, first), (_, _, second) = ends.results
    assert first.check_us >= 15_000
    assert second.queue_us >= 15_000
    for timing in (first, second):
        assert timing.delay_us >= timing.queue_us + timing.check_us - 1


@pytest.mark.parametrize("numbers", [(0, 1, 1, 1.0), (1, 0, 1, 1.0), (1, 1, 0, 1.0), (1, 1, 1, 0.0)])
def test_settings_are_checked(numbers: tuple[int, int, int, float]) -> None:
    ends = Ends()
    with pytest.raises(ValueError, match="must be"):
        Pool(*numbers, ends.on_result, ends.on_drop, ends.on_worker)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(BEHAVIOURS), st.sampled_from([0, 0, 0, 5000, 1 << 21])), max_size=25),
    st.integers(1, 3),
    st.integers(1, 30),
    st.sampled_from([3000, 20_000, 1 << 20]),
    st.sampled_from([None, 0.0, 0.01, 5.0]),
    st.integers(1, 3),
)
def test_every_job_ends_exactly_once(
    plan: list[tuple[str, int]], workers: int, jobs: int, nbytes: int, close_s: float | None, submitters: int
) -> None:
    """Whatever workers do, however many threads submit, and whenever the pool is closed."""
    Process.reset()
    broken = [False]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "WorkerProcess", no_process_for(lambda: broken[0]))
        ends = Ends()
        pool = pool_of(ends, workers, jobs, nbytes)

        def submit(part: int) -> None:
            for k, (behaviour, size) in list(enumerate(plan))[part::submitters]:
                broken[0] = behaviour == "no_process"
                pool.submit(job(k, behaviour, ids=b"x" * size))

        threads = [threading.Thread(target=submit, args=(part,)) for part in range(submitters)]
        for thread in threads:
            thread.start()
        if close_s is not None:
            pool.close(close_s)  # others may still submit
        for thread in threads:
            thread.join()
        if close_s is None:
            ends.wait(len(plan))
        pool.close(5.0)
    assert Counter(ends.all) == Counter(map(str, range(len(plan))))
    assert (pool.waiting, pool.running, pool._held) == (0, 0, 0)
    assert not any(thread.is_alive() for thread in pool._threads)
    started = [event.pid for event in ends.workers if event.state is WorkerState.STARTED]
    gone = [event.pid for event in ends.workers if event.state is not WorkerState.STARTED]
    assert sorted(started) == sorted(gone)
    if close_s is None and not any(behaviour == "no_process" for behaviour, _ in plan):
        reasons = {int(one.request_id): reason for one, reason, _ in ends.drops}
        for k, (behaviour, _) in enumerate(plan):
            assert reasons.get(k) in (EXPECTED[behaviour], Drop.QUEUE_FULL, Drop.TOO_LARGE)
