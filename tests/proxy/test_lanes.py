"""The event loop's own work on requests is bounded in each of its turns. (The lanes are tested with the chat route.)"""

from __future__ import annotations

import asyncio
import time

import pytest

from proxy.lanes import TURN_S, Turn


def work(turn: Turn, seconds: float, *, fails: bool = False) -> None:
    with turn.work():
        time.sleep(seconds)
        if fails:
            raise ZeroDivisionError


async def test_a_turn_is_over_after_some_work_and_the_next_one_begins_anew() -> None:
    turn = Turn()
    for _ in range(3):
        assert not turn.over
        work(turn, TURN_S / 2)
        with pytest.raises(ZeroDivisionError):
            work(turn, TURN_S / 2, fails=True)
        assert turn.over
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_many_at_once_are_not_all_done_in_one_turn() -> None:
    turn = Turn()
    done = []

    async def request() -> None:
        done.append(not turn.over)
        if done[-1]:
            work(turn, TURN_S / 4)

    await asyncio.gather(*(request() for _ in range(20)))
    assert 1 <= sum(done) <= 4
