"""What kinds of messages there are."""

from __future__ import annotations

from toktier.traits import Traits, together, traits_of


def test_names_that_clients_make_up_are_other() -> None:
    made_up = traits_of({"role": "r1", "content": [{"type": "t1"}, {"type": "text"}, "x"]})
    assert made_up == Traits(frozenset({"other"}), frozenset({"other", "text"}))
    assert traits_of({"role": "r2", "content": [{"type": "text"}, {"type": {}}]}) is made_up


def test_messages_of_one_kind_have_one_object() -> None:
    call = {"role": "assistant", "content": None, "tool_calls": [{}], "reasoning_content": "x"}
    kind = traits_of(call)
    assert kind.contents == {"none", "calls", "reasoning_content"}
    assert traits_of({**call, "content": None, "extra": 1}) is kind
    assert traits_of({"role": "assistant", "content": "x", "reasoning": ""}).contents == {"string", "reasoning"}


def test_kinds_together() -> None:
    one, other = traits_of({"role": "user", "content": "x"}), traits_of({"role": "tool"})
    assert together([]) == Traits(frozenset(), frozenset())
    assert together([one, other, one]) == Traits(frozenset({"user", "tool"}), frozenset({"string", "none"}))
