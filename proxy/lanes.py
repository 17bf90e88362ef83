"""Worker threads in two lanes, so that long requests do not hold up short ones.

Invariants
1. Work on a body of `LONG_BYTES` or more never takes a thread of the short lane, nor a place in its queue.
2. In each lane no more work waits for a thread than the caller allows; further work is refused, with 429. So much may
   wait for a turn of the event loop, too; what comes beyond that is for a thread.
3. Work that waits when its request is cancelled is never done. (`proxy.workers` has what becomes of work that hangs.)

The long lane has fewer threads where there are many: what they do in Python they do in turn, and every one of them that
waits for the interpreter makes the event loop wait longer for it. The encoders work on all cores by themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from proxy import errors
from proxy.workers import Workers

LONG_BYTES = 128 << 10
"""Such a body takes about a millisecond to parse, and some ten to render and encode where nothing is kept of it."""

TURN_S = 0.008
"""Seconds that the event loop may work on small requests by itself before it looks after everything else again."""

_T = TypeVar("_T")


class Turn:
    """The event loop's present turn: many small requests in one would keep it as long as a large one does.

    What comes when it is over waits for another one, and is not given to a thread: it is nearly all work for the
    interpreter, of which there is one, and a thread that has it makes the loop wait.
    """

    def __init__(self) -> None:
        self._spent = 0.0
        self._due = False
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def over(self) -> bool:
        """Whether what comes now has to wait."""
        return self._spent >= TURN_S

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def mine(self, most_waiting: int, *, begun: bool = False) -> bool:
        """Waits until the caller may work: who comes first is the first, but for those that have ``begun``. False, at
        once, where more than ``most_waiting`` would wait.
        """
        if not self._waiting and not self.over:
            return True
        if len(self._waiting) >= most_waiting:
            return False
        place = asyncio.get_running_loop().create_future()
        if begun:
            self._waiting.appendleft(place)
        else:
            self._waiting.append(place)
        self._end_soon()
        await place
        return True

    @contextmanager
    def work(self) -> Iterator[None]:
        """Around work that is done on the loop."""
        self._end_soon()
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spent += time.perf_counter() - start

    def _end_soon(self) -> None:
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._next)  # runs in the next turn

    def _next(self) -> None:
        """Another turn begins. One of those that wait goes on in it, whoever else comes."""
        self._due = False
        self._spent = 0.0
        while self._waiting:
            place = self._waiting.popleft()
            if not place.cancelled():
                place.set_result(None)
                self._end_soon()
                break


class _Lane(Workers):
    """Knows how much waits. Used from the event loop; only `_over` is called by threads."""

    def __init__(self, threads: int, name: str) -> None:
        super().__init__(threads, name)
        self._size = threads
        self._open: set[Future[Any]] = set()

    @property
    def waiting(self) -> int:
        return max(0, len(self._open) - self._size - self.stuck)

    def admit(self, most_waiting: int) -> None:
        """Raises `ApiError` 429 where one more would be more than may wait."""
        if len(self._open) - self._size - self.stuck >= most_waiting:
            raise errors.workers_busy()

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        future = super().submit(fn, *args, **kwargs)
        self._open.add(future)
        future.add_done_callback(self._open.discard)  # also when it is cancelled while it waits
        return future


class Lanes:
    """The threads that read, render and encode. ``threads``: of the short lane. Use it from the event loop."""

    def __init__(self, threads: int) -> None:
        self.short = _Lane(threads, "toktier-worker")
        """Also for TokTier's own small work: for that its queue has no limit."""
        self.turn = Turn()
        self._long = _Lane(min(threads, max(2, threads // 2)), "toktier-worker-long")

    @property
    def waiting(self) -> int:
        """Pieces of work that wait for a thread, in both lanes, or for a turn of the loop."""
        return self.short.waiting + self._long.waiting + self.turn.waiting

    @property
    def stuck(self) -> int:
        """Threads, in both lanes, at work that nobody waits for any more."""
        return self.short.stuck + self._long.stuck

    def full(self, size: int) -> bool:
        """Whether so many threads of the lane for ``size`` bytes are stuck that it takes no more work that may hang."""
        return self._lane(size).full

    async def run(self, size: int, what: Callable[[], _T], most_waiting: int, timeout_s: float | None = None) -> _T:
        """``what()``, in a thread of the lane for a body of ``size`` bytes.

        Raises `ApiError` 429, and TimeoutError after ``timeout_s`` seconds, where that is given.
        """
        lane = self._lane(size)
        lane.admit(most_waiting)
        if timeout_s is not None:
            return await lane.run(what, timeout_s)
        return await asyncio.wrap_future(lane.submit(what))

    def _lane(self, size: int) -> _Lane:
        return self._long if size >= LONG_BYTES else self.short

    def shutdown(self) -> None:
        """What waits is dropped; what runs is not waited for."""
        for lane in (self.short, self._long):
            lane.shutdown(wait=False, cancel_futures=True)
