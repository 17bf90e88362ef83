"""Which session a request continues."""

from __future__ import annotations

from tests.support.sessions import SYSTEM, Bench, Messages, chat, render, say
from toktier.fingerprint import Group, fingerprint
from toktier.reasons import Path
from toktier.session_search import search


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
    store = bench.store
    found = search(wanted, store._index, store._ends, store._tenants["t"])
    assert found is not None
    assert names[found.id].hint == wanted.hint


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
