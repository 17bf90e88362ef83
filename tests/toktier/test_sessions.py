"""The store: what forks, edits and retries do to the sessions that they continue."""

from __future__ import annotations

from typing import Any

from tests.support.sessions import Bench, Messages, chat, render, say
from toktier.fingerprint import Group, common_prefix, common_suffix, fingerprint, strict
from toktier.reasons import Path


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
