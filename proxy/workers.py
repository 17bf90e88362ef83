"""Threads for the work of requests.

Invariants
1. Work that never ends (an engine that hangs, a template that loops) costs one thread and nothing else: whoever waited
   gives it up (`Workers.run`), and another thread takes its place until it does end.
2. At most `Workers.most_stuck` threads are lost that way; from then on no work is taken that may hang (`Workers.full`).
3. The process can end whatever the threads do: they are daemons.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Job:
    __slots__ = ("call", "future")

    def __init__(self, call: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self.call = call

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self.call()
        except BaseException as error:  # a panic of native code is no Exception
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class Workers(Executor):
    """At most ``threads`` threads that work, besides those that are stuck. Thread-safe."""

    def __init__(self, threads: int, name: str) -> None:
        self.most_stuck = max(4, threads)
        self._name = name
        self._most = threads
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._given_up: set[Future[Any]] = set()
        self._closed = False

    @property
    def stuck(self) -> int:
        """Threads that are at work which nobody waits for any more."""
        return len(self._given_up)

    @property
    def full(self) -> bool:
        """Whether too many threads are stuck to take more work that may hang."""
        return self.stuck >= self.most_stuck

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """As `concurrent.futures.Executor.submit`. Raises RuntimeError after `shutdown`."""
        job = _Job(lambda: fn(*args, **kwargs))
        with self._lock:
            if self._closed:
                raise RuntimeError("the workers have ended")
            self._jobs.put(job)
            if self._idle:
                self._idle -= 1  # of the thread that will take it
            elif self._threads < self._most + self.stuck:
                self._start()
        return job.future

    async def run(self, call: Callable[[], _T], timeout_s: float) -> _T:
        """``call()`` in a thread. Raises TimeoutError after ``timeout_s`` seconds; the work is given up then.

        A caller that is cancelled leaves the work to its end, or until it is given up.
        """
        loop = asyncio.get_running_loop()
        future = self.submit(call)
        limit = loop.call_later(timeout_s, self._give_up, weakref.ref(future))  # the result is not to be held so long
        try:
            async with asyncio.timeout(timeout_s):
                result = await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            raise
        except BaseException:
            limit.cancel()
            self._give_up(weakref.ref(future))
            raise
        limit.cancel()
        return result

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """No more work is taken. Threads end after what they are at; nobody waits for them."""
        with self._lock:
            self._closed = True
            threads = self._threads
        while cancel_futures and not self._jobs.empty():
            job = self._jobs.get()
            if job is not None:
                job.future.cancel()
        for _ in range(threads):
            self._jobs.put(None)

    def _start(self) -> None:
        self._threads += 1
        threading.Thread(target=self._work, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _give_up(self, held: weakref.ref[Future[Any]]) -> None:
        future = held()
        with self._lock:
            if future is None or future.done():
                return
            self._given_up.add(future)
            if not self._jobs.empty() and not self._closed:
                self._start()
        future.add_done_callback(self._came_back)

    def _came_back(self, future: Future[Any]) -> None:
        with self._lock:
            self._given_up.discard(future)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                break
            job.run()
            del job
            with self._lock:
                if self._threads > self._most + self.stuck:
                    self._threads -= 1
                    return
                if not self._closed and self._jobs.empty():
                    self._idle += 1
        with self._lock:
            self._threads -= 1
