from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.folding import assistant, calls, run, user
from toktier.folding import Folded, FoldState
from toktier.folding.plan import program
from toktier.template import ChatTemplate, RenderRequest
from toktier.template_environment import environment

AGE = "{{ 'new' if loop.index0 > t else 'old' }}"
CALLS = "{% for c in m.tool_calls %}{{ loop.index }}{{ c.function | tojson }}{% endfor %}"
SHOWS = "{% for c in m.tool_calls %}{{ s }}{% endfor %}"
IN_A_BRANCH = (
    "{% if m.role == 'user' and not loop.first %}{% set s = t %}{{ s }}"
    "{% elif m.role == 'assistant' %}{% set s = m.content %}{% if '!' in s %}{% set s = s.split('!')[0] %}{% endif %}"
    + AGE
    + "{% if s %}"
    + CALLS.replace("{{ loop.index }}", "{{ s }}")
    + "{% endif %}.{% endif %}"
)
FOUND = {
    "the item alone": (AGE + CALLS, 1),
    "between what is not": (CALLS + AGE + CALLS, 2),
    "a name that is assigned in the same branch": (IN_A_BRANCH, 1),
    "a name of its own": (AGE + CALLS.replace("{{ loop", "{% set d = c.id %}{{ d }}{{ loop"), 1),
    "a macro of its arguments": (AGE + CALLS.replace("c.function |", "g(c) |"), 1),
    "reached at times": ("{% if loop.index0 > t %}" + CALLS + "{% endif %}.", 1),
    "reached at times, with a name": (
        "{% set s = m.role %}{% if loop.index0 > t %}" + CALLS + "{{ s }}{% endif %}.",
        1,
    ),
    "a name that is not always assigned": (
        "{% if m.role == 'user' %}{% set s = 1 %}{% endif %}" + AGE + CALLS + SHOWS,
        1,
    ),
    "an outer value of a name of its own": (
        AGE + "{% for c in m.tool_calls %}{{ y }}{% set y = c.id %}{{ y }}{% endfor %}",
        1,
    ),
    "nothing dear": (AGE + "{{ m.content }}{{ m.role }}", 0),
    "an argument": (AGE + CALLS.replace("{{ loop", "{{ t }}{{ loop"), 0),
    "a neighbour": (AGE + CALLS.replace("{{ loop", "{{ (messages[t] or {}).role }}{{ loop"), 0),
    "a name that is assigned now and then": (
        "{% set s = 1 %}{% if loop.index0 > t %}{% set s = 2 %}{% endif %}" + SHOWS,
        0,
    ),
    "a name of such a name": (
        "{% set s = 'a' ~ t %}{% set r = s ~ 'b' %}" + AGE + "{% for c in m.tool_calls %}{{ r }}{% endfor %}",
        0,
    ),
    "an iterator": (
        "{% set i = m.tool_calls | map(attribute='id') %}"
        + AGE
        + "{% for c in i %}{{ c }}{% endfor %}{{ i | list | length }}",
        0,
    ),
    "a namespace": (AGE + CALLS.replace("{{ loop", "{% set ns.x = c.id %}{{ loop") + "{{ ns.x }}", 0),
    "a namespace that is read": (AGE + CALLS.replace("{{ loop", "{{ ns.x }}{{ loop") + "{% set ns.x = m.role %}", 0),
    "a macro with a free name": (AGE + CALLS.replace("c.function |", "h(c) |"), 0),
    "an item with another value": ("{% set m = {'tool_calls': m.tool_calls, 'role': t} %}" + AGE + CALLS, 0),
    "a block's value": ("{% set s %}" + AGE + "{% endset %}" + SHOWS, 0),
}
"""A body, and how many stretches are found."""
TALK = [
    user("a"),
    assistant("b!c", tool_calls=calls("x", "y")),
    user("d"),
    assistant("", tool_calls=calls("z")),
    assistant("e"),
    assistant("f", tool_calls=calls("v")),
]
EDITED = [*TALK[:1], assistant("b!c", tool_calls=calls("y")), user("d", tool_calls=calls("q")), *TALK[3:]]
REQUESTS: list[tuple[list[dict[str, Any]], dict[str, Any]]] = [
    *((TALK, {"t": t}) for t in (0, 3, -1, 9)),
    (EDITED, {"t": 9}),
    *((EDITED, {"t": t}) for t in (-1, 9, 2)),
    (TALK, {"t": 2, "y": 1}),
    *((TALK[:4], {"t": t, "y": t}) for t in (0, 2)),
    *((TALK, {"t": t, "s": t}) for t in (1, 5, 0)),
]


def _source(body: str) -> str:
    return (
        "{% macro g(p) %}{{ p.function.name }}{% endmacro %}{% macro h(p) %}{{ p.id }}{{ t }}{% endmacro %}"
        "{% set ns = namespace(x=0) %}{% for m in messages %}" + body + "{% endfor %}{{ ns.x }}"
    )


@pytest.mark.parametrize("name", FOUND)
def test_what_is_a_stretch(name: str) -> None:
    body, count = FOUND[name]
    (plan,) = program(environment(), _source(body)).loops
    assert plan.stretches == count


@pytest.mark.parametrize("name", FOUND)
def test_stretches_are_as_if_they_had_run(name: str) -> None:
    seen = run(_source(FOUND[name][0]), REQUESTS)
    assert not seen.mismatches
    assert set(seen.fallbacks) == {None}


def _written(body: str, requests: list[tuple[list[dict[str, Any]], dict[str, Any]]]) -> list[int]:
    """How often each render wrote JSON."""
    template = ChatTemplate({"default": _source(body)})
    write = template.environment.filters["tojson"]
    written: list[int] = []

    def counting(value: Any) -> str:
        written[-1] += 1
        return str(write(value))

    template.environment.filters["tojson"] = counting
    folded = Folded.of(template)
    assert isinstance(folded, Folded)
    state = FoldState(folded)
    for messages, kwargs in requests:
        written.append(0)
        rendered = state.render(RenderRequest(json.loads(json.dumps(messages)), None, kwargs))
        assert rendered.fell_back is None
        if len(written) > 2:
            state = state.clone()
    return written


def test_a_stretch_runs_once_for_an_item() -> None:
    assert _written(AGE + CALLS, REQUESTS[:5]) == [4, 0, 0, 0, 2]
    assert _written("{% if loop.index0 > t %}" + CALLS + "{% endif %}", REQUESTS[:4]) == [4, 0, 3, 0]
    assert _written(FOUND["an argument"][0], REQUESTS[:3]) == [4, 4, 4]
