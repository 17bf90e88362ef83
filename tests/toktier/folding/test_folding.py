from __future__ import annotations

import json
from contextlib import suppress

import pytest

from tests.support import folding_cases, folding_odd_cases, folding_state_cases
from tests.support.folding import assistant, calls, folded, run, tool, unfoldable, user
from tests.support.folding_case import Case
from toktier.errors import TakesLong
from toktier.folding import FoldState, Unfolds, compiled, fold
from toktier.folding.explain import explained
from toktier.folding.indexes import Lookups
from toktier.template import RenderRequest, environment
from tools.folding.differential import Ticks


@pytest.mark.parametrize(
    "case", [*folding_cases.CASES, *folding_odd_cases.CASES, *folding_state_cases.CASES], ids=lambda case: case.name
)
def test_every_trap(case: Case) -> None:
    seen = run(case.source, case.requests)
    assert not seen.mismatches
    if case.unfolds is not None:
        assert unfoldable(case.source).reason is case.unfolds
    elif case.fallback is not None:
        assert case.fallback in seen.fallbacks
    else:
        assert seen.iterations
        assert set(seen.fallbacks) == {None}
    if case.iterations is not None:
        assert seen.iterations[-1] <= case.iterations


@pytest.mark.parametrize("steps", range(4))
def test_numbers_of_ranges_are_right_where_two_threads_count_further(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = folded("{% for i in range(n) %}{{ i }},{% endfor %}")

    def text(size: int) -> str:
        return FoldState(made).render(RenderRequest([], None, {"n": size})).chunks.text()

    left = [False] + [True] * steps

    def interrupted(given: list[int]) -> int:
        size = len(given)
        if left and not left.pop():
            text(2 * size + 1)  # another thread comes in between
        return size

    monkeypatch.setattr(fold, "_integers", list(range(4)))
    monkeypatch.setattr(fold, "len", interrupted, raising=False)
    for size in (5, 9, 40, 100):
        assert text(size) == "".join(f"{number}," for number in range(size))
    assert not left


def test_chunks_are_plain_strings_where_the_template_escapes() -> None:
    """Whoever adds to Jinja's own kind of string gets what is added escaped as well."""
    made = folded(
        "{% for m in messages %}{% endfor %}{% autoescape true %}{{ messages[0].content }}{% endautoescape %}"
    )
    chunks = [*FoldState(made).render(_request([user("<")])).chunks]
    assert chunks == ["&lt;"]
    assert {type(chunk) for chunk in chunks} == {str}


def test_what_folding_cannot_compile_is_rendered_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise SyntaxError("CANARY")

    monkeypatch.setattr(compiled, "program", broken)
    source = "{% for m in messages %}{{ m.role }}{% endfor %}"
    made = unfoldable(source)
    assert (made.reason, made.detail) == (Unfolds.BROKEN, "SyntaxError")
    told = explained(environment(), source)
    assert (told["folds"], told["reason"]) == ("no", "broken")


GROWING = """
{%- set ns = namespace(last=-1, seen='') -%}
{%- for m in messages[::-1] -%}
  {%- if m.role == 'user' -%}{%- set ns.last = messages|length - 1 - loop.index0 -%}{%- break -%}{%- endif -%}
{%- endfor -%}
{%- for m in messages -%}
  {%- for o in messages -%}{%- for c in o.tool_calls -%}
    {%- if c.id == m.tool_call_id -%}<{{ c.function.name }}>{%- endif -%}
  {%- endfor -%}{%- endfor -%}
  {{- m.role }}{{ m.content if loop.index0 > ns.last else '-' }}
{%- endfor -%}"""
FIRST = [user("a"), assistant("b", tool_calls=calls("x", "y")), tool("c", tool_call_id="x"), assistant("d")]
SECOND = [*FIRST, tool("e", tool_call_id="y"), assistant("f", tool_calls=calls("z")), user("g")]
THIRD = [*FIRST[:1], assistant("b", tool_calls=calls("y")), *FIRST[2:], tool("h", tool_call_id="z"), assistant("i")]
TURNS = ((FIRST, SECOND, THIRD), (SECOND, FIRST, SECOND), (FIRST, THIRD, THIRD), (THIRD, SECOND, FIRST))
"""What is kept, what is given up, and what follows."""


def _request(messages: list[dict[str, object]]) -> RenderRequest:
    return RenderRequest(json.loads(json.dumps(messages)))


@pytest.mark.parametrize("ticks", range(0, 80, 3))
def test_a_render_that_is_stopped_leaves_the_state_of_the_last_one(ticks: int) -> None:
    made = folded(GROWING)
    state = FoldState(made)
    for kept, given_up, following in TURNS:
        state.render(_request(kept))
        before = state.kept
        with suppress(TakesLong):
            state.render(_request(given_up), None, Ticks(ticks), _nobody)
        assert state.kept == before
        rendered = state.render(_request(following))
        assert rendered.chunks.text() == made.template.render(_request(following))
        assert rendered.fell_back is None
    assert made.counts.snapshot()["raised"] == len(TURNS)


def test_what_a_stopped_render_found_changed_is_not_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    touched = Lookups.touched

    def forgetful(self: Lookups) -> set[int]:
        places = touched(self)
        self.settle()
        return places

    other = [FIRST[0], assistant("b", tool_calls=calls("y")), *FIRST[2:]]  # as many messages, and no call x
    for wrong in (False, True):
        if wrong:
            monkeypatch.setattr(Lookups, "touched", forgetful)
        made = folded(GROWING)
        state = FoldState(made)
        state.render(_request(FIRST))
        with pytest.raises(TakesLong):
            state.render(_request(other), accept=_nobody)
        got = state.render(_request(other)).chunks.text()
        assert (got != made.template.render(_request(other))) is wrong


def test_what_is_not_accepted_was_told_truly_and_is_not_kept() -> None:
    made = folded(GROWING)
    state = FoldState(made)
    first = state.render(_request(FIRST))
    told: list[tuple[int, int]] = []

    def accept(common: int, chars: int) -> None:
        told.append((common, chars))
        if len(told) < 3:
            raise TakesLong("twice")

    for _ in range(2):
        with pytest.raises(TakesLong):
            state.render(_request(SECOND), accept=accept)
        assert first.chunks.text() == made.template.render(_request(FIRST))
    rendered = state.render(_request(SECOND), accept=accept)
    assert told == [(rendered.common, rendered.chars)] * 3
    assert rendered.chars == len(made.template.render(_request(SECOND)))
    with pytest.raises(RuntimeError):
        first.chunks.text()


def _nobody(_common: int, _chars: int) -> None:
    raise TakesLong("accepted by nobody")
