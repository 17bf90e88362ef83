"""The store: what is forgotten when, and what it is counted for."""

from __future__ import annotations

import gc
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.sessions import Bench, chat, render, say
from tests.support.small_bpe import CountingEngine
from toktier import sessions
from toktier.fingerprint import Group, fingerprint
from toktier.reasons import Path
from toktier.sessions import SessionStore


def test_the_budget_evicts_the_least_recently_used() -> None:
    bench = Bench()
    bench.ask(chat("probe"), tenant="probe")
    one = bench.store.nbytes
    bench.store.clear()
    bench.assert_empty()
    bench.store.configure(4 * one + one // 2, 1.0, 60.0)
    for k in range(4):
        bench.ask(chat(f"s {k}"), settings=bytes([k]))
    assert bench.ask(chat("s 0"), settings=bytes([0]))[0] is Path.RETRY
    bench.ask(chat("s 4"), settings=bytes([4]))
    assert len(bench.store) == 4
    assert bench.store.nbytes <= 4 * one + one // 2
    assert bench.store.evictions["budget"] == 1
    assert bench.ask(chat("s 0"), settings=bytes([0]))[0] is Path.RETRY
    assert bench.ask(chat("s 1"), settings=bytes([1]))[0] is Path.INIT


def test_a_tenant_cannot_hold_more_than_its_share() -> None:
    bench = Bench()
    bench.ask(chat("probe"))
    one = bench.store.nbytes
    bench.store.clear()
    bench.store.configure(10 * one, 0.35, 60.0)
    for k in range(2):
        bench.ask(chat("quiet"), tenant="quiet", settings=bytes([k]))
    for k in range(30):
        bench.ask(chat("loud"), tenant="loud", settings=bytes([k]))
        assert bench.store._tenant_bytes["loud"] <= 3.5 * one
    assert bench.store.evictions["tenant_share"] == 27
    assert bench.ask(chat("quiet"), tenant="quiet", settings=bytes([0]))[0] is Path.RETRY


def test_a_session_that_is_too_large_is_served_and_not_kept() -> None:
    bench = Bench(budget=20_000)
    small = chat("a", system=False)
    bench.ask(small)
    assert bench.ask(chat("the fox " * 5000))[0] is Path.INIT
    assert len(bench.store) == 1
    assert bench.ask(small)[0] is Path.RETRY
    assert bench.ask([*small, say("assistant", "the fox " * 5000)])[0] is Path.APPEND
    bench.assert_empty()


@pytest.mark.parametrize(("words", "turns"), [(2, 1), (300, 1), (5, 40), (4000, 1)])
def test_what_sessions_hold_is_what_they_are_counted_for(words: int, turns: int) -> None:
    bench = Bench()
    count = 4 if words > 1000 else 400 // (turns + 3)

    def fill(start: int) -> None:
        for k in range(start, start + count):
            messages = [say("user", f"{k} {turn} " + "the fox " * words) for turn in range(turns)]
            wanted = fingerprint(Group("t", "m", b""), messages, [{"name": f"f{k}"}])
            with bench.store.lease(wanted, bench.encoder) as lease:
                lease.rope.set(render(messages))
                lease.commit(bytes(turns))

    fill(0)  # what is made once
    before = bench.store.nbytes
    gc.collect()
    tracemalloc.start()
    try:
        fill(count)
        for engine in (bench.encoder.window, bench.encoder.reference):
            assert isinstance(engine, CountingEngine)
            engine.seen.clear()  # it keeps what it was asked
        gc.collect()
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    counted = bench.store.nbytes - before
    assert 0.8 * held < counted < 1.5 * held


def test_unused_sessions_expire() -> None:
    bench = Bench(ttl=60)
    bench.ask(chat("old"))
    bench.clock.now += 40
    bench.ask(chat("new"), settings=b"x")
    bench.clock.now += 30
    assert bench.ask(chat("old"))[0] is Path.INIT
    assert bench.store.evictions["ttl"] == 1
    assert bench.ask(chat("new"), settings=b"x")[0] is Path.RETRY
    bench.clock.now += 61
    with bench.store.lease(fingerprint(Group("z", "z", b""), []), bench.encoder):
        pass
    bench.assert_empty()


def test_sessions_expire_without_a_request_too() -> None:
    bench = Bench(ttl=60)
    for number in range(50):
        bench.ask(chat(f"number {number}"), settings=bytes([number]))
    bench.clock.now += 30
    bench.ask(chat("new"), settings=b"x")
    bench.clock.now += 31
    bench.store.expire()
    bench.consistent()
    assert (len(bench.store), bench.store.evictions["ttl"]) == (1, 50)
    bench.clock.now += 30
    bench.store.expire()
    bench.store.expire()
    bench.assert_empty()


def test_a_session_in_use_is_not_evicted() -> None:
    bench = Bench(budget=40_000)
    messages = chat("a")
    *_, name = bench.ask(messages)
    more = [*messages, say("assistant", "b")]
    wanted = fingerprint(Group("t", "m", b""), more)
    with bench.store.lease(wanted, bench.encoder) as lease:
        for k in range(10):
            other = fingerprint(Group("t", "m", bytes([k])), messages)
            with bench.store.lease(other, bench.encoder) as inner:
                inner.rope.set(render(messages))
                inner.commit(bytes(len(messages)))
        assert lease.session in {s.id for s in bench.store._all}
        lease.rope.set(render(more))
        lease.commit(bytes(len(more)))
    assert bench.ask(more)[::2] == (Path.RETRY, name)


class Walked(OrderedDict[Any, None]):
    """Counts the sessions that are looked at."""

    looked_at = 0

    def __iter__(self) -> Iterator[Any]:
        for key in super().__iter__():
            self.looked_at += 1
            yield key


def test_making_room_looks_at_what_goes_and_at_no_more() -> None:
    bench = Bench(ttl=10**9)
    for k in range(60):
        bench.ask(chat(f"s {k}"), settings=bytes([k]))
    bench.store._all = walked = Walked(bench.store._all)
    bench.store.configure(bench.store.nbytes, 1.0, 10.0**9)
    walked.looked_at = 0
    for k in range(20):
        messages = chat(f"t {k}")
        with bench.store.lease(fingerprint(Group("t", "m", bytes([100 + k])), messages), bench.encoder) as lease:
            lease.rope.set(render(messages))
            lease.commit(bytes(len(messages)))
    assert bench.store.evictions["budget"] == 20
    assert walked.looked_at <= 20 * 3  # the oldest, whether it has expired; what goes; what might go next
    bench.consistent()


class CountingLock:
    """The store's lock. ``drops``: how many sessions went each time it was held."""

    def __init__(self, store: SessionStore) -> None:
        self._store, self._lock = store, store._lock
        self.drops: list[int] = []

    def __enter__(self) -> None:
        self._lock.acquire()
        self._before = sum(self._store.evictions.values())

    def __exit__(self, *_: object) -> None:
        self.drops.append(sum(self._store.evictions.values()) - self._before)
        self._lock.release()


@pytest.mark.parametrize("by", ["who may wait", "who may not", "nobody"])
def test_making_much_room_lets_others_have_the_lock_in_between(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(ttl=10**9)
    store = bench.store
    for k in range(100):
        bench.ask(chat(f"s {k}"), settings=bytes([k]))
    monkeypatch.setattr(sessions, "_DROPS", 5 * (sessions._DROP + 2) - 1)  # five sessions of two messages
    store.configure(store.nbytes // 2, 1.0, 10.0**9)
    store._lock = lock = CountingLock(store)  # type: ignore[assignment]
    if by != "nobody":
        messages = chat("new")
        wanted = fingerprint(Group("t", "m", b"new"), messages)
        with store.lease(wanted, bench.encoder, wait=by == "who may wait") as lease:
            lease.rope.set(render(messages))
            lease.commit(bytes(len(messages)))
    if by == "who may not":
        assert sum(lock.drops) == 5
        assert store.nbytes > store._budget
    if by != "who may wait":
        store.expire()
    assert store.nbytes <= store._budget
    assert 45 <= sum(lock.drops) <= 60
    assert max(lock.drops) == 5
    bench.consistent()


def test_limits_are_checked() -> None:
    for arguments in ((-1, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.5, 1.0), (1, 1.0, 0.0)):
        with pytest.raises(ValueError):
            SessionStore(*arguments)
