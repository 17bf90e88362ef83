"""Worker threads: they come and go as there is work, and work that hangs costs one of them and nothing else."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from proxy.workers import Workers


class Held:
    """Work that ends when it is told to."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.began = threading.Semaphore(0)

    def __call__(self) -> str:
        self.began.release()
        assert self.free.wait(30)
        return "done"


@pytest.fixture
def held() -> Iterator[Held]:
    it = Held()
    yield it
    it.free.set()


@pytest.fixture
def workers() -> Iterator[Workers]:
    it = Workers(2, "test-worker")
    yield it
    it.shutdown()


def threads() -> int:
    return sum(thread.name.startswith("test-worker") for thread in threading.enumerate())


def until(condition: object, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.002)


class PanicException(BaseException):
    """As pyo3 raises it."""


def test_results_and_errors_come_back(workers: Workers) -> None:
    assert workers.submit(divmod, 7, 2).result(10) == (3, 1)
    for error in (ValueError, MemoryError, PanicException, SystemExit):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        assert type(workers.submit(fail).exception(10)) is error
    assert workers.submit(len, "abc").result(10) == 3, "the thread lives on"


def test_no_more_threads_than_allowed_and_none_without_work(workers: Workers, held: Held) -> None:
    until(lambda: threads() == 0)  # those of the test before may be about to end
    futures = [workers.submit(held) for _ in range(6)]
    for _ in range(2):
        assert held.began.acquire(timeout=10)
    assert threads() == 2
    assert not held.began.acquire(timeout=0.05)
    held.free.set()
    assert [future.result(10) for future in futures] == ["done"] * 6
    assert threads() == 2
    workers.shutdown()
    until(lambda: threads() == 0)
    with pytest.raises(RuntimeError):
        workers.submit(len, "")


def test_an_idle_thread_is_used_before_another_is_started(workers: Workers) -> None:
    for _ in range(50):
        workers.submit(len, "").result(10)
        time.sleep(0.0005)
    assert threads() <= 2
    lone = Workers(8, "test-worker-lone")
    for _ in range(50):
        lone.submit(len, "").result(10)
        until(lambda: lone._idle == 1)
    assert sum(thread.name.startswith("test-worker-lone") for thread in threading.enumerate()) == 1
    lone.shutdown()


async def test_work_that_hangs_is_given_up_and_its_thread_replaced(workers: Workers, held: Held) -> None:
    stuck = [asyncio.create_task(workers.run(held, 0.1)) for _ in range(2)]
    waiting = asyncio.create_task(workers.run(lambda: "served", 10))
    for task in stuck:
        with pytest.raises(TimeoutError):
            await task
    assert workers.stuck == 2
    assert await waiting == "served"
    assert await workers.run(lambda: "again", 10) == "again"
    assert not workers.full
    held.free.set()
    async with asyncio.timeout(10):
        while workers.stuck or threads() > 2:
            await asyncio.sleep(0.005)
    assert await workers.run(lambda: "still", 10) == "still"


async def test_too_much_that_hangs_is_said(workers: Workers, held: Held) -> None:
    for number in range(workers.most_stuck):
        assert not workers.full, number
        with pytest.raises(TimeoutError):
            await workers.run(held, 0.02)
    assert workers.full
    held.free.set()
    async with asyncio.timeout(10):
        while workers.full:
            await asyncio.sleep(0.005)


async def test_work_that_never_began_is_not_stuck(workers: Workers, held: Held) -> None:
    for _ in range(2):
        workers.submit(held)
    with pytest.raises(TimeoutError):
        await workers.run(lambda: "late", 0.05)
    assert workers.stuck == 0


async def test_a_caller_that_leaves_does_not_hide_a_hang(workers: Workers, held: Held) -> None:
    task = asyncio.create_task(workers.run(held, 0.2))
    async with asyncio.timeout(10):
        while not held.began.acquire(blocking=False):
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert workers.stuck == 0, "it may still end in time"
    async with asyncio.timeout(10):
        while workers.stuck == 0:
            await asyncio.sleep(0.005)


async def test_results_nobody_waits_for_are_not_held(workers: Workers) -> None:
    class Result:
        pass

    made: list[weakref.ref[Result]] = []
    go = threading.Event()

    def work() -> Result:
        assert go.wait(10)
        result = Result()
        made.append(weakref.ref(result))
        return result

    task = asyncio.create_task(workers.run(work, 60))
    await asyncio.sleep(0.05)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    del task
    go.set()
    async with asyncio.timeout(10):
        while not made or made[0]() is not None:
            await asyncio.sleep(0.01)
            gc.collect()


def test_shutdown_leaves_what_waits_undone(held: Held) -> None:
    workers = Workers(1, "test-worker-closed")
    running, waiting = workers.submit(held), workers.submit(held)
    assert held.began.acquire(timeout=10)
    workers.shutdown(wait=False, cancel_futures=True)
    assert waiting.cancelled()
    held.free.set()
    assert running.result(10) == "done"


def test_a_process_ends_although_a_thread_hangs() -> None:
    code = (
        "import time; from proxy.workers import Workers\n"
        "workers = Workers(1, 'w'); workers.submit(time.sleep, 600); time.sleep(0.1); workers.shutdown(wait=False)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=30, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
