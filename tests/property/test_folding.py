"""Random templates, random sessions: the incremental render is the full one, or says that it is not incremental."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from toktier.folding.strict import plain, reuse, same
from tools.folding.differential import run
from tools.folding.random_templates import RandomTemplate

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.sampled_from(["", "1", "a"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1 << 40))
def test_random_templates_render_as_in_full(seed: int) -> None:
    source = RandomTemplate(seed).source
    try:
        report = run(str(seed), source, 20, seed)
    except ValueError as unfoldable:
        assert ":" in str(unfoldable)  # noqa: PT017
        return
    assert report.mismatches == 0, (source, report.example)


def test_many_random_templates_fold_and_render() -> None:
    """Otherwise the property above would be empty."""
    outputs = iterations = messages = 0
    for seed in range(20):
        try:
            report = run(str(seed), RandomTemplate(seed).source, 20, seed)
        except ValueError:
            continue
        outputs += report.outputs
        iterations += report.iterations
        messages += report.messages
    assert outputs > 100
    assert iterations < messages * 2


def _shown(value: object) -> str:
    return repr(value)  # tells apart types, signs and the order of keys


@given(VALUES, VALUES)
def test_the_same_is_what_shows_the_same(a: object, b: object) -> None:
    assert plain(a)
    assert same(a, b) == (_shown(a) == _shown(b))


@given(st.lists(VALUES, max_size=6), st.lists(VALUES, max_size=6), st.integers(0, 6))
def test_reuse_gives_the_new_list_with_old_objects(old: list[object], new: list[object], known: int) -> None:
    known = min(known, len(old), len(new))
    new = [*old[:known], *new[known:]]
    out, fresh = reuse(old, new, known)
    assert [*map(_shown, out)] == [*map(_shown, new)]
    assert [place for place in range(len(out)) if place >= len(old) or out[place] is not old[place]] == fresh


@pytest.mark.parametrize("value", [(1, 2), {"a": object()}, {1: 2}, [iter(())], range(2), len])
def test_what_is_not_json_is_not_plain(value: object) -> None:
    assert plain(value) == (value == (1, 2))
