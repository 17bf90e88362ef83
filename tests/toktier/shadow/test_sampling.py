"""Which requests are checked."""

from __future__ import annotations

from typing import Any

import pytest

from toktier.reasons import FullEncode, Path
from toktier.shadow import sampling
from toktier.shadow.job import Sampled
from toktier.shadow.sampling import Sampler, Shape, shape_of

USER = {"role": "user", "content": "q"}


def shape(*messages: dict[str, Any], path: Path = Path.INIT, control: int = 0, **more: Any) -> Shape:
    return shape_of({"messages": list(messages or (USER,)), **more}, path, FullEncode.NO_SESSION, control)


def test_a_shape_is_what_decides_through_which_code_a_request_goes() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    different = [
        shape(),
        shape(path=Path.APPEND),
        shape(control=1),
        shape(tools=[{"type": "function"}]),
        shape(chat_template_kwargs={"a": 1}),
        shape(reasoning_effort="low"),
        shape(add_special_tokens=True),
        shape({"role": "system", "content": "s"}, USER),
        shape({"role": "user", "content": [{"type": "text", "text": "q"}]}),
        shape({"role": "user", "content": [{"type": "refusal", "refusal": "q"}]}),
        shape(USER, {"role": "assistant", "content": None, "tool_calls": [call]}),
        shape(USER, {"role": "assistant", "content": "a", "reasoning_content": "r"}),
        shape_of({"messages": [USER]}, Path.INIT, FullEncode.NO_CUT, 0),
    ]
    # template arguments are one thing, whichever way they come
    assert len(set(different)) == len(different) - 1
    assert shape(chat_template_kwargs={"a": 1}) == shape(reasoning_effort="low")


def test_what_a_client_makes_up_makes_no_shapes() -> None:
    assert shape({"role": "king", "content": "q"}) == shape({"role": "queen", "content": "other"})
    parts = [{"type": kind, "text": "x"} for kind in ("a", "b", 7, None, ["c"])]
    assert len({shape({"role": "user", "content": [part]}) for part in parts}) == 1
    assert shape(USER, user="x", seed=5) == shape(USER, USER, user="y")


@pytest.mark.parametrize(("rate", "least", "most"), [(0.0, 0, 0), (0.25, 400, 600), (1.0, 2000, 2000)])
def test_the_rate_is_the_share_that_is_drawn(rate: float, least: int, most: int) -> None:
    sampler = Sampler(rate, 0, False, seed=7)
    drawn = [sampler.wants(shape(), Path.INIT) for _ in range(2000)]
    assert set(drawn) <= {None, Sampled.RATE}
    assert least <= drawn.count(Sampled.RATE) <= most
    again = Sampler(rate, 0, False, seed=7)
    assert [again.wants(shape(), Path.INIT) for _ in range(2000)] == drawn


def test_the_first_of_every_shape_are_checked() -> None:
    sampler = Sampler(0.0, 2, False)
    first, second = shape(), shape(path=Path.APPEND)
    asked = [first, second, first, first, second, second, first]
    wanted = [sampler.wants(one, one.path) for one in asked]
    assert wanted == [Sampled.FIRST, Sampled.FIRST, Sampled.FIRST, None, Sampled.FIRST, None, None]


def test_edits_and_compactions_are_always_checked_where_that_is_asked_for() -> None:
    always, never = Sampler(0.0, 0, True), Sampler(0.0, 0, False)
    for path in (Path.INIT, Path.APPEND, Path.RETRY, Path.EDIT, Path.COMPACTION):
        changed = path in (Path.EDIT, Path.COMPACTION)
        assert always.wants(shape(path=path), path) is (Sampled.CHANGE if changed else None)
        assert never.wants(shape(path=path), path) is None


def test_shapes_are_forgotten_the_one_unseen_for_longest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "_SHAPES", 3)
    sampler = Sampler(0.0, 1, False)
    a, b, c, d = (shape()._replace(roles=frozenset({name})) for name in "abcd")
    assert [sampler.wants(one, Path.INIT) for one in (a, b, c)] == [Sampled.FIRST] * 3
    assert sampler.wants(a, Path.INIT) is None
    assert sampler.wants(d, Path.INIT) is Sampled.FIRST  # b goes
    assert sampler.wants(a, Path.INIT) is None
    assert sampler.wants(b, Path.INIT) is Sampled.FIRST
    assert len(sampler._seen) == 3


@pytest.mark.parametrize(("rate", "first"), [(-0.1, 0), (1.1, 0), (0.5, -1)])
def test_settings_are_checked(rate: float, first: int) -> None:
    with pytest.raises(ValueError, match="rate"):
        Sampler(rate, first, False)
