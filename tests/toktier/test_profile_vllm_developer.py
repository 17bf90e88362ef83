"""Rule 10 beside an earlier request: what is taken over is what would be made anew."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from toktier.known import Known, Made, Run
from toktier.profiles.vllm_developer import Converted, as_system
from toktier.template import wire_place

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant")
MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text},
    st.sampled_from(ROLES),
    st.sampled_from(["", "a", "b"]) | st.just([{"type": "text", "text": "c"}]),
)


def plainly(messages: list[Message]) -> tuple[list[Message], tuple[int, ...]] | None:
    """The rule as vLLM has it, and the places that the first message comes from."""
    if all(one["role"] != "developer" for one in messages):
        return None
    places = tuple(place for place, one in enumerate(messages) if one["role"] in ROLES[:2])
    rest = [one for one in messages if one["role"] not in ROLES[:2]]
    if places == (0,):
        return [{**messages[0], "role": "system"}, *rest], places
    texts = [one["content"] if isinstance(one["content"], str) else "c" for one in map(messages.__getitem__, places)]
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *rest], places


def known_of(messages: list[Message], shared: tuple[Run, ...]) -> Known:
    made = as_system(messages, None)
    systems, given = (None, messages) if made is None else (made.systems, made.messages)
    return Known(cast(Made, SimpleNamespace(messages=messages, systems=systems, given=given)), shared)


def check(messages: list[Message], known: Known | None) -> Converted | None:
    got, expected = as_system(messages, known), plainly(messages)
    assert (got is None) == (expected is None)
    if got is None or expected is None:
        return None
    assert list(map(repr, got.messages)) == list(map(repr, expected[0]))
    assert got.systems == expected[1]
    rest = [place for place in range(len(messages)) if place not in got.systems]
    assert [wire_place(got.systems, at) for at in range(len(got.messages))] == [got.systems[0], *rest]
    before = 0
    for run in got.shared:
        assert known is not None
        assert run.size > 0
        assert run.at >= before
        before = run.at + run.size
        pairs = zip(got.messages[run.at : before], known.made.given[run.old : run.old + run.size], strict=True)
        assert all(one is other for one, other in pairs)
    return got


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_any_two_requests(data: st.DataObject) -> None:
    old = data.draw(st.lists(MESSAGES, max_size=6))
    messages: list[Message] = []
    runs: list[Run] = []
    for _ in range(data.draw(st.integers(0, 4))):
        messages += data.draw(st.lists(MESSAGES, max_size=2))
        first = data.draw(st.integers(0, len(old)))
        size = data.draw(st.integers(0, len(old) - first))
        if size:
            runs.append(Run(len(messages), first, size))
            messages += old[first : first + size]
    check(messages, None)
    check(messages, known_of(old, tuple(runs)))


def talk(*roles: str) -> list[Message]:
    return [{"role": role, "content": f"{place}"} for place, role in enumerate(roles)]


def shared(old: list[Message], new: list[Message], *runs: Run) -> tuple[Run, ...]:
    got = check(new, known_of(old, runs))
    assert got is not None
    return got.shared


def test_what_an_append_takes_over() -> None:
    more = talk("user", "assistant")
    for roles, size in (
        (("developer", "user", "assistant"), 3),
        (("user", "developer", "system", "assistant"), 3),
        (("system", "user", "developer", "developer"), 2),
    ):
        old = talk(*roles)
        assert shared(old, [*old, *more], Run(0, 0, len(old))) == (Run(0, 0, size),)
        # of other texts another message is made
        assert shared(old, [*old, *more, *talk("system")], Run(0, 0, len(old))) == (Run(1, 1, size - 1),)


def test_the_first_message_is_another_where_it_does_not_stand_first() -> None:
    old = talk("developer", "user")
    assert shared(old, [*talk("user"), *old], Run(1, 0, 2)) == (Run(2, 1, 1),)
    assert shared(old, [*old[1:], *old[:1]], Run(0, 1, 1), Run(1, 0, 1)) == (Run(1, 1, 1),)
    # where it had no developer, nothing is known of what the template was given
    old = talk("system", "user")
    assert shared(old, [*old, *talk("developer")], Run(0, 0, 2)) == ()
