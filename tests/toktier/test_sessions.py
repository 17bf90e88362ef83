"""The store: which session a request continues, what forks and retries do, and what is forgotten when."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.small_bpe import small_encoder, truth
from toktier import sessions
from toktier.chunks import ChunkEncoder
from toktier.fingerprint import Fingerprint, Group, common_prefix, common_suffix, fingerprint, strict
from toktier.reasons import Path
from toktier.sessions import SessionBusy, SessionStore

Messages = list[dict[str, Any]]
SYSTEM = {"role": "system", "content": "you are a fox. " * 200}


def say(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def chat(*texts: str, system: bool = True) -> Messages:
    roles = itertools.cycle(["user", "assistant"])
    return [*([SYSTEM] if system else []), *(say(role, text) for role, text in zip(roles, texts, strict=False))]


def render(messages: Messages, tools: Messages | None = None) -> str:
    head = "".join(f"tool {tool['name']} \n" for tool in tools or [])
    return head + "".join(f"<{m['role']}> {m['content']} \n" for m in messages)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A store with requests put through it as the tier does."""

    def __init__(self, budget: int = 10**9, share: float = 1.0, ttl: float = 60.0) -> None:
        self.clock = Clock()
        self.store = SessionStore(budget, share, ttl, self.clock)
        self.encoder = small_encoder()

    def ask(
        self,
        messages: Messages,
        tools: Messages | None = None,
        *,
        tenant: str = "t",
        model: str = "m",
        settings: bytes = b"",
        hint: str | None = None,
    ) -> tuple[Path, int, str]:
        """The path, the characters scanned and the session's name. The IDs are checked."""
        wanted = fingerprint(Group(tenant, model, settings), messages, tools, hint)
        text = render(messages, tools)
        with self.store.lease(wanted, self.encoder) as lease:
            splice = lease.rope.set(text)
            assert lease.rope.ids.tolist() == truth(text)
            path = lease.path(len(text))
            lease.commit(lease.marks + bytes(len(messages) - lease.shared))
        self.consistent()
        return path, splice.scanned, lease.session

    def consistent(self) -> None:
        store = self.store
        assert store.nbytes == sum(s.nbytes for s in store._all) == sum(store._tenant_bytes.values())
        assert len(store._index) == sum(len(s.chain) for s in store._all)
        assert all(s in store._index.latest(key, len(store)) for s in store._all for key in s.chain)
        assert len(store._ends) == len(store)
        assert all(s in store._ends.latest(s.chain[-1], len(store)) for s in store._all)
        assert [s for s in store._all if not s.alive or s.pins] == []
        assert sum(map(len, store._tenants.values())) == len(store)

    def assert_empty(self) -> None:
        store = self.store
        assert not store._all
        assert not store._index
        assert not store._ends
        assert not store._tenants
        assert not store._tenant_bytes
        assert store.nbytes == 0


def test_equality_is_strict_about_types_order_and_sign() -> None:
    values = [1, 1.0, True, "1", 0.0, -0.0, None, [], {}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, 10**30, "\ud800", [[]]]
    forms = [strict(value) for value in values]
    assert len(set(forms)) == len(values)
    key = "".join(["ro", "le"])
    assert strict({"role": 1}) == strict({key: 1}), "object identity must not count"
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert strict(deep) != strict(deep)


def test_common_ends_are_found_at_every_length() -> None:
    letters = [bytes([c]) for c in range(20)]
    for k in range(21):
        other = letters[:k] + [b"x"] * (20 - k)
        assert common_prefix(letters, other) == k
        assert common_suffix(letters[::-1], other[::-1], 20) == k
        assert common_suffix(letters[::-1], other[::-1], 5) == min(k, 5)
    assert common_prefix([], letters) == 0


def test_a_conversation_grows_in_place() -> None:
    bench = Bench()
    texts = ["hello fox"]
    path, _, session = bench.ask(chat(*texts))
    assert path is Path.INIT
    for turn in range(20):
        texts.append(f"turn {turn} the lazy dog")
        path, scanned, same = bench.ask(chat(*texts))
        assert (path, same) == (Path.APPEND, session)
        assert scanned < 1500
    assert len(bench.store) == 1


def test_a_retry_is_a_no_op() -> None:
    bench = Bench()
    bench.ask(chat("a", "b"))
    before = dict(bench.store._index._held)
    assert bench.ask(chat("a", "b"))[:2] == (Path.RETRY, 0)
    assert bench.store._index._held == before
    assert len(bench.store) == 1


def test_forks_leave_the_old_session_alone() -> None:
    bench = Bench()
    long = chat(*[f"turn {k} of the fox" for k in range(11)])
    *_, main = bench.ask(long, hint="s1")
    title = [say("system", "make a title"), *long[1:2]]
    assert bench.ask(title, hint="s1")[0] is Path.INIT
    memory = [say("system", "extract memories"), *long[1:]]
    path, _, session = bench.ask(memory, hint="s1")
    assert path is Path.EDIT
    assert session != main
    path, _, session = bench.ask([*long[:9], say("user", "go back")], hint="s1")
    assert path is Path.EDIT
    assert session != main
    assert bench.ask(long, hint="s1") == (Path.RETRY, 0, main)
    path, scanned, session = bench.ask([*long, say("assistant", "b"), say("user", "c")], hint="s1")
    assert (path, session) == (Path.APPEND, main)
    assert scanned < 1200
    assert len(bench.store) == 4


def test_two_continuations_of_one_session_one_after_the_other() -> None:
    bench = Bench()
    *_, first = bench.ask(chat("a"))
    assert bench.ask(chat("a", "b", "c"))[2] == first
    path, _, second = bench.ask(chat("a", "x", "y"))
    assert path is Path.EDIT
    assert second != first
    assert bench.ask(chat("a", "b", "c", "d"))[::2] == (Path.APPEND, first)
    assert bench.ask(chat("a", "x", "y", "z"))[::2] == (Path.APPEND, second)


def test_an_edited_first_message_is_found_by_the_rest() -> None:
    bench = Bench()
    turns = [f"turn {k} " + "the quick brown fox " * 50 for k in range(30)]
    bench.ask(chat(*turns))
    for k in range(12):
        bench.ask([say("system", f"other {k}"), say("user", f"hello {k}")])
    edited = [say("system", "it is tuesday. " * 200), *chat(*turns, "more")[1:]]
    # The eight newest of the group do not hold it any more: exact, but a full encode.
    assert bench.ask(edited)[0] is Path.INIT
    bench.ask(chat(*turns))
    again = [say("system", "it is wednesday. " * 200), *chat(*turns, "more")[1:]]
    path, scanned, _ = bench.ask(again)
    assert path is Path.EDIT
    assert scanned < 12_000


def test_an_edit_in_the_middle_and_a_compaction() -> None:
    bench = Bench()
    turns = [f"turn {k} " + "the quick brown fox " * 50 for k in range(30)]
    bench.ask(chat(*turns))
    pruned = [*turns]
    pruned[6] = "cleared"
    path, scanned, _ = bench.ask(chat(*pruned))
    assert path is Path.EDIT
    assert scanned < 6000
    path, scanned, _ = bench.ask([SYSTEM, say("user", "summary"), *chat(*turns)[-3:]])
    assert path is Path.COMPACTION
    assert scanned < 6000


def test_changed_tools_are_an_edit_of_the_same_conversation() -> None:
    bench = Bench()
    a, b = {"name": "a"}, {"name": "b"}
    messages = chat(*["the fox " * 300] * 5)
    *_, first = bench.ask(messages, [a, b])
    path, scanned, second = bench.ask(messages, [b, a])
    assert path is Path.EDIT
    assert second != first
    assert scanned < 5000
    assert bench.ask(messages, [a, b]) == (Path.RETRY, 0, first)
    assert bench.ask([*messages, say("user", "x")], [b, a])[::2] == (Path.APPEND, second)


def test_nothing_crosses_tenants_models_or_settings() -> None:
    bench = Bench()
    messages = chat("a", "b", "c")
    bench.ask(messages, hint="h")
    assert bench.ask(messages, tenant="u", hint="h")[0] is Path.INIT
    assert bench.ask(messages, model="n", hint="h")[0] is Path.INIT
    assert bench.ask(messages, settings=b"thinking", hint="h")[0] is Path.INIT
    assert bench.ask(messages, tenant="tm", model="", hint="h")[0] is Path.INIT
    assert bench.ask(messages, hint="h")[0] is Path.RETRY
    edited = [say("system", "x"), *messages[1:]]
    assert bench.ask(edited, tenant="v", hint="h")[0] is Path.INIT


def test_a_hint_breaks_a_tie() -> None:
    bench = Bench()
    *_, first = bench.ask(chat("a", "b"), hint="one")
    bench.ask(chat("a", "b", "c"), hint="one")
    *_, second = bench.ask(chat("a", "x", "c"), hint="two")
    *_, third = bench.ask(chat("a", "b"), hint="two")
    assert third not in (first, second)
    bench.ask(chat("a", "b"), hint="one")
    names = {s.id: s for s in bench.store._all}
    wanted = fingerprint(Group("t", "m", b""), chat("a", "new"), None, "two")
    found = bench.store._find(wanted)
    assert found is not None
    assert names[found.id].hint == wanted.hint


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


def test_many_sessions_with_the_same_messages_are_not_all_compared() -> None:
    bench = Bench(ttl=10**6)
    messages = [say("user", "hi")]

    def tools(k: int) -> Messages:
        return [{"name": f"f{k}"}]

    for k in range(200):
        bench.ask(messages, tools(k))
    assert len(bench.store) == 200
    assert bench.ask(messages, tools(199))[0] is Path.RETRY
    assert bench.ask(messages, tools(150))[0] is Path.RETRY
    looked_at = 0

    class Tools(tuple[bytes, ...]):
        def __eq__(self, other: object) -> bool:
            nonlocal looked_at
            looked_at += 1
            return tuple(self) == other

        __hash__ = tuple.__hash__

    for session in bench.store._all:
        session.tools = Tools(session.tools)
    bench.ask(messages, tools(1000))
    assert 0 < looked_at <= 70


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


def test_nobody_waits_for_a_session_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "HELD_S", 0.05)
    bench = Bench()
    messages = chat("a", "b")
    bench.ask(messages)
    more = [*messages, say("user", "c")]
    with bench.store.lease(fingerprint(Group("t", "m", b""), more), bench.encoder) as hung:
        assert bench.ask(more)[0] is Path.INIT, "begun anew"
        assert bench.ask([*more, say("assistant", "d")])[0] is Path.APPEND
        before = bench.store.nbytes
        hung.rope.set(render(more))
        hung.commit(bytes(len(more)))
    bench.consistent()
    assert bench.store.nbytes == before, "what comes back late is not kept"


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


def test_a_request_that_fails_leaves_the_store_as_it_was() -> None:
    bench = Bench()
    messages = chat("a", "b")
    bench.ask(messages)
    before = (dict(bench.store._index._held), bench.store.nbytes)
    for failing in ([*messages, say("user", "\ud800")], [SYSTEM, say("user", "\ud800")]):
        with (
            pytest.raises(Exception, match="surrogate"),
            bench.store.lease(fingerprint(Group("t", "m", b""), failing), bench.encoder) as lease,
        ):
            lease.rope.set(render(failing))
    bench.consistent()
    assert (dict(bench.store._index._held), bench.store.nbytes) == before
    assert bench.ask(messages)[0] is Path.RETRY


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt, type("PanicException", (BaseException,), {})])
def test_a_rope_that_may_be_half_changed_is_given_to_nobody(error: type[BaseException]) -> None:
    bench = Bench()
    messages = chat("a", "b")
    bench.ask(messages)
    more, other = [*messages, say("user", "c")], [*messages, say("user", "d")]
    group = Group("t", "m", b"")
    waiting: list[list[int]] = []

    def wait() -> None:
        with bench.store.lease(fingerprint(group, other), bench.encoder) as lease:
            lease.rope.set(render(other))
            waiting.append(lease.rope.ids.tolist())
            lease.commit(bytes(len(other)))

    waiter = threading.Thread(target=wait)

    def fail() -> None:
        with bench.store.lease(fingerprint(group, more), bench.encoder) as lease:
            waiter.start()
            while next(iter(bench.store._all)).pins != 2:
                time.sleep(0.001)
            lease.rope.set(render(more))
            lease.rope._buffer[:] = 7
            raise error

    (session,) = bench.store._all
    with pytest.raises(error):
        fail()
    waiter.join(10)
    assert waiting == [truth(render(other))]
    bench.consistent()
    assert session not in bench.store._all
    assert bench.ask(other)[0] is Path.RETRY


def test_clearing_while_a_request_is_in_flight() -> None:
    bench = Bench()
    messages = chat("a")
    bench.ask(messages)
    more = [*messages, say("user", "b")]
    with bench.store.lease(fingerprint(Group("t", "m", b""), more), bench.encoder) as lease:
        bench.store.clear()
        lease.rope.set(render(more))
        assert lease.rope.ids.tolist() == truth(render(more))
        lease.commit(bytes(len(more)))
    bench.assert_empty()


def test_a_lease_from_before_a_clear_stores_nothing_whatever_it_is() -> None:
    """One that begins a session, one that copies another, one that extends one: none comes back."""
    messages = chat("a", "b")
    begun = [chat("x"), chat("a", "other"), [*messages, say("user", "c")]]
    for wanted in begun:
        bench = Bench()
        bench.ask(messages)
        with bench.store.lease(fingerprint(Group("t", "m", b""), wanted), bench.encoder) as lease:
            lease.rope.set(render(wanted))
            bench.store.clear()
            lease.commit(bytes(len(wanted)))
        bench.assert_empty()
        assert bench.ask(wanted)[0] is Path.INIT
        assert bench.ask(wanted)[0] is Path.RETRY


def test_who_waited_while_all_was_forgotten_gets_nothing_of_it() -> None:
    """The session that it waited for may be the one that went wrong."""
    bench = Bench()
    messages = chat("a")
    bench.ask(messages)
    more = [*messages, say("assistant", "b")]
    inside, done = threading.Event(), threading.Event()

    def hold() -> None:
        with bench.store.lease(fingerprint(Group("t", "m", b""), more), bench.encoder):
            inside.set()
            assert done.wait(5)

    def waits() -> bool:
        return any(session.pins == 2 for session in bench.store._all)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(5)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(bench.ask, more)
        while not waits():
            time.sleep(0.001)
        bench.store.clear()
        done.set()
        path, scanned, _ = asked.result(5)
    holder.join()
    assert (path, scanned) == (Path.INIT, len(render(more)))
    assert bench.ask(more)[0] is Path.RETRY


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


def test_many_conversations_may_begin_alike() -> None:
    """Thousands of agents have one system prompt: each still finds its own, and all can go."""
    bench = Bench(ttl=10**6)
    store, encoder = bench.store, bench.encoder

    def ask(k: int, *more: str) -> tuple[Path, str]:
        messages = [{"role": "system", "content": "one prompt for all"}, *chat(f"task {k}", *more, system=False)]
        wanted = fingerprint(Group("t", "m", b""), messages)
        text = render(messages)
        with store.lease(wanted, encoder) as lease:
            lease.rope.set(text)
            path = lease.path(len(text))
            lease.commit(bytes(len(messages)))
        return path, lease.session

    names = [ask(k)[1] for k in range(300)]
    assert len(set(names)) == 300
    for k in (0, 7, 150, 299):
        assert ask(k, "answer", "next") == (Path.APPEND, names[k])
    bench.consistent()
    for session in list(store._all)[::2]:
        store._drop(session)
    bench.consistent()
    assert len(store) == 150
    bench.clock.now += 10**7
    store.expire()
    bench.assert_empty()


def test_an_empty_message_list_is_not_kept() -> None:
    bench = Bench()
    assert bench.ask([])[0] is Path.INIT
    bench.assert_empty()


def test_marks_follow_the_messages() -> None:
    bench = Bench()

    def marks(messages: Messages) -> bytes:
        wanted = fingerprint(Group("t", "m", b""), messages)
        with bench.store.lease(wanted, bench.encoder) as lease:
            lease.rope.set(render(messages))
            new = lease.marks + bytes("!" in m["content"] for m in messages[lease.shared :])
            lease.commit(new)
        return new

    assert marks(chat("a!", "b")) == bytes([0, 1, 0])
    assert marks(chat("a!", "b", "c!")) == bytes([0, 1, 0, 1])
    assert marks(chat("a!", "b!", "c")) == bytes([0, 1, 1, 0])
    assert marks(chat("a!", "b", "c!")) == bytes([0, 1, 0, 1])


def test_limits_are_checked() -> None:
    for arguments in ((-1, 1.0, 1.0), (1, 0.0, 1.0), (1, 1.5, 1.0), (1, 1.0, 0.0)):
        with pytest.raises(ValueError):
            SessionStore(*arguments)


def test_two_continuations_at_the_same_time_are_both_right() -> None:
    """The second waits for the first, finds the session gone on, and works on a copy."""
    bench = Bench()
    base = chat("a")
    *_, name = bench.ask(base)
    inside, done = threading.Event(), threading.Event()
    seen: list[tuple[str, list[int]]] = []

    def run(messages: Messages, wait: bool) -> None:
        wanted = fingerprint(Group("t", "m", b""), messages)
        with bench.store.lease(wanted, bench.encoder) as lease:
            if wait:
                inside.set()
                assert done.wait(5)
            lease.rope.set(render(messages))
            seen.append((lease.session, lease.rope.ids.tolist()))
            lease.commit(bytes(len(messages)))

    one, two = [*base, say("assistant", "b")], [*base, say("assistant", "x")]
    first = threading.Thread(target=run, args=(one, True))
    second = threading.Thread(target=run, args=(two, False))
    first.start()
    assert inside.wait(5)
    second.start()
    done.set()
    first.join()
    second.join()
    assert seen[0] == (name, truth(render(one)))
    assert seen[1][0] != name
    assert seen[1][1] == truth(render(two))
    bench.consistent()


def test_a_caller_that_does_not_want_to_wait_is_told() -> None:
    bench = Bench()
    base = chat("a")
    bench.ask(base)
    wanted = fingerprint(Group("t", "m", b""), [*base, say("assistant", "b")])
    with bench.store.lease(wanted, bench.encoder):
        with pytest.raises(SessionBusy), bench.store.lease(wanted, bench.encoder, wait=False):
            pytest.fail("the session is in use")
        other = fingerprint(Group("t", "other", b""), base)
        with bench.store.lease(other, bench.encoder, wait=False) as lease:
            assert lease.previous is None
    bench.consistent()
    with bench.store.lease(wanted, bench.encoder, wait=False) as lease:
        assert lease.previous == len(base)


def test_stress_with_many_threads_stays_exact_and_leaves_nothing_behind() -> None:
    """Growing, retried, forked and compacted conversations of three tenants under a budget that is always short."""
    store = SessionStore(120_000, 0.6, 60.0)
    encoder: ChunkEncoder = small_encoder()
    paths: dict[Path, int] = dict.fromkeys(Path, 0)
    lock = threading.Lock()
    shared = [chat(f"start {k}") for k in range(4)]

    def request(rng: random.Random, tenant: str, messages: Messages) -> None:
        wanted: Fingerprint = fingerprint(Group(tenant, "m", b""), messages, None, rng.choice([None, "h"]))
        text = render(messages)
        with store.lease(wanted, encoder) as lease:
            lease.rope.set(text)
            ids = lease.rope.ids.copy()
            path = lease.path(len(text))
            lease.commit(lease.marks + bytes(len(messages) - lease.shared))
        assert ids.tolist() == truth(text)
        with lock:
            paths[path] += 1

    def client(seed: int) -> None:
        rng = random.Random(seed)
        tenant = f"t{seed % 3}"
        messages = list(rng.choice(shared))
        for step in range(30):
            match rng.randrange(8):
                case 0:
                    pass
                case 1:
                    messages = messages[: rng.randint(1, len(messages))]
                case 2:
                    messages = [SYSTEM, say("user", f"summary {seed} {step}"), *messages[-2:]]
                case 3:
                    at = rng.randrange(len(messages))
                    messages = [*messages[:at], say("user", f"edit {seed} {step}"), *messages[at + 1 :]]
                case _:
                    messages = [*messages, say("assistant", f"word {rng.randrange(3)} " * rng.randint(1, 40))]
            request(rng, tenant, messages)

    with ThreadPoolExecutor(8) as pool:
        for future in [pool.submit(client, seed) for seed in range(12)]:
            future.result()
    assert all(paths[path] > 0 for path in Path if path is not Path.BYPASS), paths
    assert sum(store.evictions.values()) > 0
    assert store.nbytes <= 120_000
    assert all(session.pins == 0 and session.alive for session in store._all)
    store.clear()
    assert not any([store._all, store._index, store._ends, store._tenants, store._tenant_bytes, store.nbytes])
