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


async def test_what_waits_goes_on_in_turns_of_its_own_first_come_first_served() -> None:
    turn = Turn()
    order: list[tuple[str, int]] = []
    number = 0

    async def count() -> None:
        nonlocal number
        while True:
            await asyncio.sleep(0)
            number += 1

    async def request(name: str, begun: bool = False) -> None:
        await turn.mine(10, begun=begun)
        order.append((name, number))
        work(turn, TURN_S / 4)

    counter = asyncio.create_task(count())
    waiting = [asyncio.create_task(request(name)) for name in "abcd"]
    work(turn, TURN_S)
    await asyncio.sleep(0)
    waiting += [asyncio.create_task(request("begun", begun=True)), asyncio.create_task(request("last"))]
    waiting[2].cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    counter.cancel()
    names = [name for name, _ in order]
    assert sorted(names) == ["a", "b", "begun", "d", "last"]
    assert [name for name in names if name != "begun"] == ["a", "b", "d", "last"]
    assert names.index("begun") < names.index("d")
    turns = [number for _, number in order]
    assert len(set(turns)) == len(turns), "one in each turn"
    assert await turn.mine(0)


async def test_no_more_than_may_wait_do() -> None:
    turn = Turn()
    waiting = [asyncio.create_task(turn.mine(1)) for _ in range(3)]
    work(turn, TURN_S)
    assert await asyncio.gather(*waiting) == [True, False, False]
    assert turn.waiting == 0
    assert await turn.mine(0)


async def test_those_that_leave_are_no_obstacle() -> None:
    turn = Turn()
    waiting = [asyncio.create_task(turn.mine(9)) for _ in range(3)]
    work(turn, TURN_S)
    await asyncio.sleep(0)
    for one in waiting[:2]:
        one.cancel()
    async with asyncio.timeout(20):
        await waiting[2]
