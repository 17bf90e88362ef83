"""The tier following what changed: bodies read beside earlier ones, renders and IDs of which most is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path as File
from random import Random
from typing import Any

import pytest

import toktier.tier as tier_module
from proxy.ingest import Ingest, _Again
from proxy.jsonspan import Parsed
from tests.support.feed import LIMITS, Feed, written
from tests.support.models import qwen3
from tests.support.tiers import LONG, body, maker, say, tool
from toktier.errors import CannotEncode, InvalidText, TakesLong, TemplateFailure, Unrenderable
from toktier.folding import FoldState
from toktier.known import Source as BodySource
from toktier.postprocessor import SpecialTokens
from toktier.profiles.sglang import SglangProfile
from toktier.quarantine import Quarantine, Source
from toktier.reasons import Cause, FullEncode, FullRender, Path
from toktier.rope import Rope
from toktier.sessions import SessionStore
from toktier.tier import ModelTier
from toktier.written import BLOCK
from tools.traffic.sessions import Session

PLAIN = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
LAST_ONE = "{% for m in messages %}{% if loop.last %}LAST {% endif %}{{ m.content }} \n{% endfor %}"
ESCAPED = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% autoescape true %}{{ messages[-1].content }}{% endautoescape %}<end>"
)
NOT_FOLDED = "{% for m in messages recursive %}{{ m.content }} \n{% endfor %}"


@pytest.fixture(scope="module")
def make() -> Callable[..., ModelTier]:
    return maker()


def talk(turns: int) -> list[dict[str, Any]]:
    messages = [say("system", LONG), say("user", "start")]
    for k in range(turns):
        messages += [say("assistant", f"answer {k} {LONG[:900]}"), say("user", f"question {k} {LONG[:300]}")]
    return messages


@pytest.mark.parametrize("seed", range(8))
def test_agents_sessions_get_the_ids_of_a_full_render(make: Callable[..., ModelTier], seed: int) -> None:
    feed = Feed(make())
    sessions = [Session(f"{seed}-{k}", chars=12_000, turn_chars=250) for k in range(2)]
    for number in range(40):
        session = sessions[number % 2]
        feed.ask(session.step().body, session.name if seed % 2 else None)
    assert feed.shared > feed.messages / 2
    assert feed.renders[None] > 25, feed.renders


@pytest.mark.parametrize("source", [PLAIN, LAST_ONE, ESCAPED, NOT_FOLDED])
def test_other_templates(make: Callable[..., ModelTier], source: str) -> None:
    feed = Feed(make(source))
    session = Session("other", chars=9_000, turn_chars=200, features=frozenset({"non_ascii", "literals"}))
    for _ in range(40):
        prepared = feed.ask(session.step().body)
        assert (prepared.iterations is None) == (source is NOT_FOLDED)
    if source is NOT_FOLDED:
        assert set(feed.renders) == {"unfoldable"}
    else:
        assert feed.renders[None] > 25
        assert set(feed.renders) <= {None, "nothing_kept"}


def test_the_other_engines_rules_follow_too(make: Callable[..., ModelTier]) -> None:
    tier = make()
    tier.profile = SglangProfile()
    feed = Feed(tier)
    session = Session("sglang", chars=9_000, turn_chars=200, features=frozenset({"tools", "parts", "reasoning"}))
    refused = 0
    for _ in range(60):
        request = session.step().body
        try:
            tier.profile.normalise(request, tier.template, tier.settings)
        except Unrenderable:
            refused += 1
            with pytest.raises(Unrenderable):
                feed.ask(request)
        else:
            feed.ask(request)
    assert refused < 10
    assert feed.renders[None] > 35
    assert feed.shared > feed.messages / 2


def test_an_append_reads_renders_and_writes_what_is_new(make: Callable[..., ModelTier]) -> None:
    feed = Feed(make())
    messages = talk(30)
    first = feed.ask(body(*messages))
    assert (first.path, first.full_render) == (Path.INIT, FullRender.NOTHING_KEPT)
    assert feed.shared == 0
    assert first.iterations is not None
    assert first.iterations >= len(messages)
    for k in range(4):
        known = len(messages)
        messages += [say("assistant", f"a{k}"), say("user", f"q{k}")]
        shared = feed.shared
        grown = feed.ask(body(*messages))
        assert (grown.path, grown.full_render, grown.full) == (Path.APPEND, None, None)
        assert feed.shared - shared == known
        assert grown.scanned < 2000
        assert grown.first_changed_message == known
        assert grown.written is not None
        assert first.written is not None
        same = grown.first_changed // BLOCK
        assert same > 0
        assert all(grown.written[1].blocks[i] is first.written[1].blocks[i] for i in range(same))
        first = grown
        assert grown.iterations == 4  # two loops, two messages
    again = feed.ask(body(*messages))
    assert (again.path, again.full_render, again.scanned) == (Path.RETRY, None, 0)


def test_edits_forks_and_going_back_follow_too(make: Callable[..., ModelTier]) -> None:
    feed = Feed(make())
    messages = talk(12)
    feed.ask(body(*messages))
    edited = [*messages[:4], say("assistant", "changed"), *messages[5:], say("assistant", "x"), say("user", "y")]
    prepared = feed.ask(body(*edited))
    assert (prepared.path, prepared.full_render, prepared.cause) == (Path.EDIT, None, Cause.MESSAGES_EDITED)
    assert prepared.scanned < len(prepared.text) / 3
    back = feed.ask(body(*messages, say("assistant", "other"), say("user", "branch")))
    assert (back.path, back.full_render) == (Path.APPEND, None)
    fork = feed.ask(body(*edited, say("assistant", "z"), say("user", "again")))
    assert (fork.path, fork.full_render, fork.session) == (Path.APPEND, None, prepared.session)
    shorter = feed.ask(body(*messages[:20]))
    assert (shorter.path, shorter.full_render) == (Path.EDIT, None)


def test_tools_and_arguments_are_looked_at_although_the_messages_are_known(make: Callable[..., ModelTier]) -> None:
    feed = Feed(make())
    messages = talk(4)
    feed.ask(body(*messages, tools=[tool("a"), tool("b")], tool_choice="auto"))
    feed.ask(body(*messages, tools=[tool("a"), tool("b")], tool_choice="none"))
    changed = feed.ask(body(*messages, tools=[tool("b"), tool("a")], tool_choice="auto"))
    assert changed.cause is Cause.TOOLS_CHANGED
    feed.ask(body(*messages))
    feed.ask(body(*messages, chat_template_kwargs={"enable_thinking": False}))
    feed.ask(body(*messages, tools=[tool("a")], chat_template_kwargs={"enable_thinking": True}))
    assert feed.shared > 4 * len(messages)


def test_a_developer_among_known_messages(make: Callable[..., ModelTier]) -> None:
    """The rules make a system message of it, and one of all system messages where there are several."""
    feed = Feed(make(PLAIN))
    messages = [say("developer", LONG), *talk(3)[1:]]
    for _ in range(3):
        feed.ask(body(*messages))
        messages += [say("assistant", "a"), say("user", "q")]
    messages += [say("developer", "be brief")]
    for _ in range(3):
        feed.ask(body(*messages))
        messages += [say("assistant", "a"), say("user", "q")]
    assert feed.shared > 3 * 8


@pytest.mark.parametrize(
    "others", [(), (say("system", "be brief"), say("developer", "and kind"))], ids=["one", "three"]
)
def test_an_append_to_a_developers_session_costs_what_is_new(
    make: Callable[..., ModelTier], monkeypatch: pytest.MonkeyPatch, others: tuple[Any, ...]
) -> None:
    """Nothing that is known is hashed, compared or converted again, so the event loop may do it."""
    monkeypatch.setattr("toktier.tier._LARGE_SOURCE", 1000)
    monkeypatch.setattr("toktier.tier.AT_ONCE_S", 60.0)  # what is counted here is messages
    feed = Feed(make(PLAIN))
    messages = [say("developer", LONG), *talk(20)[1:], *others]
    feed.ask(body(*messages))
    packed: list[int] = []
    leads: list[int | None] = []
    fingerprint, render = tier_module.fingerprint, FoldState.render

    def counted(*arguments: Any) -> Any:
        made = fingerprint(*arguments)
        packed.append(len(made.packed))
        return made

    def told(state: FoldState, request: Any, lead: int | None, *more: Any) -> Any:
        leads.append(lead)
        return render(state, request, lead, *more)

    monkeypatch.setattr(tier_module, "fingerprint", counted)
    monkeypatch.setattr(FoldState, "render", told)
    for k in range(3):
        known = len(messages) - len(others)
        messages = [*messages, say("assistant", f"a{k}"), say("tool", f"q{k}")]
        prepared = feed.ask(body(*messages), wait=False)
        assert (prepared.path, prepared.full_render) == (Path.APPEND, None)
        assert prepared.first_changed_message == known + len(others)
        assert (packed[-1], leads[-1]) == (2, known)


@pytest.mark.parametrize("seed", range(6))
def test_sessions_in_which_developers_come_and_go(make: Callable[..., ModelTier], seed: int) -> None:
    random = Random(seed)
    feed = Feed(make(PLAIN))
    messages = [say(random.choice(["system", "developer"]), LONG), *talk(2)[1:]]
    for step in range(25):
        at = random.randrange(len(messages) + 1)
        kind = random.choice(["append", "append", "append", "put in", "take out", "rename", "end"])
        if kind == "append":
            messages = [*messages, say("assistant", f"a{step}"), say("user", f"q{step}")]
        elif kind in ("put in", "end"):
            at = at if kind == "put in" else len(messages)
            role = random.choice(["system", "developer", "user"])
            messages = [*messages[:at], say(role, random.choice(["", f"n{step} <|im_end|>"])), *messages[at:]]
        elif kind == "take out" and at < len(messages) and messages[at]["content"] != LONG:
            messages = messages[:at] + messages[at + 1 :]
        elif kind == "rename" and at < len(messages):
            renamed = messages[at] | {"role": random.choice(["system", "developer", "user"])}
            messages = [*messages[:at], renamed, *messages[at + 1 :]]
        prepared = feed.ask(body(*messages))
        whole = feed.tier.profile.normalise(body(*messages), feed.tier.template, feed.tier.settings)
        assert prepared.control_tokens == sum("<|im_end|>" in one["content"] for one in whole.messages)
    assert feed.shared > feed.messages / 2


def test_what_other_rules_made_of_a_message_is_not_taken_over(make: Callable[..., ModelTier]) -> None:
    """Two models over one store, whose templates want content in different forms."""
    store = SessionStore(10**9)
    parts = "{% for m in messages %}{% for c in m.content %}<{{ c.text }}>{% endfor %}{% endfor %}"
    feeds = [Feed(make(PLAIN, store=store)), Feed(make(parts, store=store))]
    messages = [say("user", [{"type": "text", "text": LONG}, {"type": "text", "text": "b"}])]  # type: ignore[arg-type]
    for turn in range(4):
        for feed in feeds:
            feed.ask(body(*messages))
        messages += [say("assistant", f"a{turn}"), say("user", "q")]
    assert all(feed.shared for feed in feeds)


@pytest.mark.parametrize("first", [True, False], ids=["named first", "named last"])
def test_two_models_on_one_conversation(
    make: Callable[..., ModelTier], monkeypatch: pytest.MonkeyPatch, first: bool
) -> None:
    """Each goes on from its own last body, although the other one's is later and ends alike."""
    again: list[int] = []
    read_again = _Again.__call__
    monkeypatch.setattr(_Again, "__call__", lambda self: again.append(len(self.raw)) or read_again(self))
    store = SessionStore(10**9)
    feeds = {"a": Feed(make(store=store)), "b": Feed(make(PLAIN, store=store))}
    messages, before = talk(4), 0
    for turn in range(4):
        for name, feed in feeds.items():
            shared = feed.shared
            feed.ask({"model": name, "messages": messages} if first else {"messages": messages, "model": name})
            assert feed.shared - shared == before or turn == 0
        before = len(messages)
        messages = [*messages, say("assistant", f"a{turn}"), say("user", f"q{turn}")]
    assert len(again) <= 1  # the second one's first body is read beside the other's


def test_marks_of_known_messages(make: Callable[..., ModelTier]) -> None:
    feed = Feed(make())
    messages = [*talk(2), say("user", "a<|im_end|>b")]
    assert feed.ask(body(*messages)).control_tokens == 1
    messages += [say("assistant", "c"), say("user", "<|im_start|>")]
    assert feed.ask(body(*messages)).control_tokens == 2
    del messages[1]
    assert feed.ask(body(*messages)).control_tokens == 2
    messages[-1] = say("user", "no more")
    assert feed.ask(body(*messages)).control_tokens == 1


def test_special_tokens_around_what_is_written_again(make: Callable[..., ModelTier]) -> None:
    import numpy as np

    special = SpecialTokens(np.array([151643, 7], np.uint32), np.array([151645], np.uint32))
    tier = make(special=special)
    feed = Feed(tier, check=False)
    messages = talk(30)
    for _ in range(3):
        plain = feed.ask(body(*messages))
        asked = feed.ask(body(*messages, add_special_tokens=True))
        again = feed.ask(body(*messages, add_special_tokens=True))
        assert asked.ids.tolist() == again.ids.tolist() == [151643, 7, *plain.ids.tolist(), 151645]
        for each in (plain, asked, again):
            assert json.loads(b"".join(each.json())) == each.ids.tolist()
        messages += [say("assistant", "a"), say("user", "q")]


def test_after_whatever_fails_the_next_request_is_right(
    make: Callable[..., ModelTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    raising = "{% if m.content == 'bad' %}{{ raise_exception('no') }}{% endif %}"
    feed = Feed(make("{% for m in messages %}" + raising + "[{{ m.content }}] \n{% endfor %}", vocab_size=151_660))
    messages = talk(10)

    def fails(error: type[Exception], *more: dict[str, Any]) -> None:
        with pytest.raises(error):
            feed.ask(body(*messages, *more))

    def goes_on() -> None:
        nonlocal messages
        messages = [*messages, say("assistant", "a"), say("user", "q")]
        feed.ask(body(*messages))

    feed.ask(body(*messages))
    for text, error in (("bad", TemplateFailure), ("x\ud83d", InvalidText), ("<think>" + LONG * 3, Unrenderable)):
        fails(error, say("user", text))
        goes_on()
        fails(error, say("user", text))
        feed.ask(body(*messages))

    def gives_up(*_: Any) -> None:
        raise CannotEncode("e", "P")

    def breaks(*_: Any, **__: Any) -> None:
        raise MemoryError

    for where, what, error in (
        (Rope, "follow", Unrenderable),
        (Rope, "follow", MemoryError),
        (FoldState, "render", MemoryError),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, what, gives_up if error is Unrenderable else breaks)
            fails(error, say("assistant", "a"), say("user", "other"))
        goes_on()
    extend = Rope._extend

    def half(rope: Rope, *arguments: Any, **more: Any) -> Any:
        extend(rope, *arguments, **more)
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(Rope, "_extend", half)
        fails(MemoryError, say("assistant", "a"), say("user", "other"))
    goes_on()


def test_a_caller_that_does_not_wait_is_right_later(make: Callable[..., ModelTier]) -> None:
    slow = "{% for m in messages %}{% for i in range(20000) %}{% set x = i %}{% endfor %}{{ m.content }} \n{% endfor %}"
    feed = Feed(make(slow))
    messages = talk(6)
    for _ in range(2):
        with pytest.raises(TakesLong):
            feed.ask(body(*messages), wait=False)
        feed.ask(body(*messages))
        messages += [say("assistant", "a"), say("user", "q")]


@pytest.mark.parametrize(("limit", "value"), [("AT_ONCE_S", 0.0), ("AT_ONCE_CHARS", 0)])
def test_what_took_long_goes_on_from_where_the_session_was(
    make: Callable[..., ModelTier], monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    feed = Feed(make())
    messages = talk(8)
    feed.ask(body(*messages))
    for k in range(3):
        messages += [say("assistant", f"a{k}"), say("user", f"q{k}")]
        with monkeypatch.context() as patch:
            patch.setattr(f"toktier.tier.{limit}", value)
            with pytest.raises(TakesLong):
                feed.ask(body(*messages), wait=False)
        grown = feed.ask(body(*messages))
        assert (grown.path, grown.full_render) == (Path.APPEND, None)
        assert grown.common > len(grown.text) - 1500
    messages += [say("assistant", "a"), say("tool", "b")]
    monkeypatch.setattr("toktier.tier.AT_ONCE_S", 60.0)
    assert feed.ask(body(*messages), wait=False).full_render is None


def test_an_edit_before_many_messages_is_for_who_may_wait(
    make: Callable[..., ModelTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toktier.tier._AFTER_CHANGE", 10)
    monkeypatch.setattr("toktier.tier.AT_ONCE_S", 60.0)  # messages are counted here, whatever time the machine takes
    feed = Feed(make())
    messages = talk(8)
    feed.ask(body(*messages))
    for turn in range(2):
        messages[2] = say("assistant", f"edited {turn}")
        with pytest.raises(TakesLong, match="the messages"):
            feed.ask(body(*messages), wait=False)
        assert feed.ask(body(*messages)).path is Path.EDIT
    messages += [say("assistant", "a"), say("tool", "b")]
    assert feed.ask(body(*messages), wait=False).path is Path.APPEND


def test_in_quarantine_nothing_that_was_kept_is_used(
    make: Callable[..., ModelTier], tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    quarantine = Quarantine(tmp_path / "quarantine.json")
    tier = make(quarantine=quarantine)
    feed = Feed(tier)
    messages = talk(5)
    feed.ask(body(*messages))
    messages += [say("assistant", "a"), say("user", "q")]
    quarantine.add(qwen3().digest_of_files, Path.APPEND, Source.SHADOW, model="m", request_id="r", at_reference=False)
    (kept,) = tier.store.sources(Ingest(written(body(*messages)), LIMITS, tier.store, "t")._keys)
    kept.made.messages[1]["content"] = "wrong"  # type: ignore[union-attr]
    feed.check = False
    with monkeypatch.context() as patch:
        for name in ("follow", "set"):
            patch.setattr(Rope, name, lambda *_: pytest.fail("the rope is not to be used"))
        patch.setattr(FoldState, "render", lambda *_: pytest.fail("nor the session's render"))
        prepared = feed.ask(body(*messages))
    assert feed.shared
    assert (prepared.path, prepared.full, prepared.full_render) == (
        Path.APPEND,
        FullEncode.QUARANTINED,
        FullRender.QUARANTINED,
    )
    feed._check(prepared, body(*messages))
    # an edit is trusted, a compaction is not: which of the two it is shows in the full render
    quarantine.lift()
    quarantine.add(
        qwen3().digest_of_files, Path.COMPACTION, Source.SHADOW, model="m", request_id="r", at_reference=False
    )
    feed = Feed(make(quarantine=quarantine))
    messages = talk(5)
    feed.ask(body(*messages))
    edited = feed.ask(body(*messages[:-1]))
    assert (edited.path, edited.full, edited.full_render) == (Path.EDIT, None, FullRender.QUARANTINED)
    assert feed.ask(body(*messages[:3])).full is FullEncode.QUARANTINED
    assert feed.ask(body(*messages[:-1], say("user", "z"))).full is None


def read_beside(tier: ModelTier, messages: list[dict[str, Any]]) -> tuple[Ingest, Parsed, BodySource]:
    """A body that shares messages with the one before."""
    ingest = Ingest(written(body(*messages)), LIMITS, tier.store, "t")
    parsed = ingest.beside()
    assert parsed is not None
    assert parsed.shared
    source = ingest.source(parsed)
    assert source is not None
    return ingest, parsed, source


def test_what_is_forgotten_between_reading_and_preparing_is_not_used(make: Callable[..., ModelTier]) -> None:
    tier = make()
    feed = Feed(tier)
    messages = talk(5)
    feed.ask(body(*messages))
    messages += [say("assistant", "a"), say("user", "q")]
    ingest, parsed, source = read_beside(tier, messages)
    assert source.before is not None
    assert source.before.made is not None
    source.before.made.messages[1]["content"] = "wrong"
    tier.store.clear()
    prepared = tier.prepare("t", parsed.outline, source=source)
    feed._check(prepared, body(*messages))
    assert not tier.store.sources(ingest._keys)
    # a body that was looked for before is not kept either: what it may have been read beside is not asked
    ingest = Ingest(written(body(*talk(7))), LIMITS, tier.store, "t")
    known = len(tier.store)
    tier.store.clear()
    feed._check(tier.prepare("t", ingest.whole().value, source=ingest.source(ingest.whole())), body(*talk(7)))
    assert (len(tier.store), known) == (0, 1)


def test_a_large_body_that_shared_what_is_forgotten_is_read_by_who_may_wait(
    make: Callable[..., ModelTier], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toktier.tier._LARGE_SOURCE", 1000)
    tier = make()
    feed = Feed(tier)
    messages = talk(5)
    feed.ask(body(*messages))
    messages += [say("assistant", "a"), say("user", "q")]
    _, parsed, source = read_beside(tier, messages)
    tier.store.clear()
    with monkeypatch.context() as patch:
        patch.setattr(_Again, "__call__", lambda _: pytest.fail("the whole is not to be read here"))
        with pytest.raises(TakesLong, match="the messages"):
            tier.prepare("t", parsed.outline, wait=False, source=source)
    feed._check(tier.prepare("t", parsed.outline, source=source), body(*messages))


def test_bodies_are_found_by_their_own_tenant_only_and_go_with_their_session(make: Callable[..., ModelTier]) -> None:
    tier = make()
    messages = talk(8)
    one, other = Feed(tier, "one"), Feed(tier, "other")
    one.ask(body(*messages))
    small = tier.store.nbytes
    assert small > 2 * len(written(body(*messages)))
    other.ask(body(*messages))
    assert other.beside == 0
    one.ask(body(*messages, say("assistant", "a"), say("user", "q")))
    assert one.beside == 1
    assert tier.store.nbytes == sum(session.nbytes for session in tier.store._all)
    keys = sum(len(session.memory.source.keys) for session in tier.store._all if session.memory.source)
    assert len(tier.store._bodies) == keys > 0
    tier.store.configure(0, 1.0, 3600)
    one.ask(body(say("user", "x")))
    tier.store.clear()
    assert not tier.store._bodies
    assert tier.store.nbytes == 0


def test_a_session_that_is_too_large_is_kept_without_what_only_saves_work(make: Callable[..., ModelTier]) -> None:
    messages = talk(30)
    tier = make()
    Feed(tier).ask(body(*messages))
    (session,) = tier.store._all
    least = session.nbytes - session.memory.nbytes
    assert least < tier.store.nbytes / 2
    for budget, path in ((2 * least, Path.APPEND), (least // 2, Path.INIT)):
        store = SessionStore(budget)
        feed = Feed(make(store=store))
        feed.ask(body(*messages))
        assert store.nbytes <= budget
        assert not store._bodies
        grown = feed.ask(body(*messages, say("assistant", "a"), say("user", "q")))
        assert (grown.path, grown.full_render, feed.beside) == (path, FullRender.NOTHING_KEPT, 0)
        assert store.evictions["too_large"] == (0 if path is Path.APPEND else 2)


def test_the_same_sessions_from_many_threads(make: Callable[..., ModelTier]) -> None:
    tier = make()
    base = talk(4)
    Feed(tier).ask(body(*base))

    def client(k: int) -> int:
        feed = Feed(tier)
        messages = list(base)
        for turn in range(5):
            messages += [say("assistant", f"{k % 3} said {turn}"), say("user", f"go on {turn} {k % 2}")]
            feed.ask(body(*messages))
        return feed.shared

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(client, range(6)))


def test_short_bodies_are_not_kept(make: Callable[..., ModelTier]) -> None:
    tier = make()
    feed = Feed(tier)
    feed.ask(body(say("user", "q")))
    feed.ask(body(say("user", "q"), say("assistant", "a")))
    assert feed.beside == 0
    assert not tier.store._bodies
