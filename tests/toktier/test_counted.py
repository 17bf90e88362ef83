from __future__ import annotations

from typing import Any

import pytest

from toktier.counted import count_loops
from toktier.template_environment import environment

COUNTED = [
    "{% for x in l %}{{ loop.index0 }}{{ loop.index }}{{ loop.first }}{{ x }}{% else %}none{% endfor %}",
    "{% for x in l %}{% if loop.first %}a{% elif loop.index > 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for k, v in d.items() %}{{ loop.index ~ k }}{{ v }}{% endfor %}",
    "{% for x in l %}{% for y in l[loop.index0:] %}{{ loop.index }}{{ y }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% set n = loop.index %}{% set m %}{{ loop.first }}{{ n }}{% endset %}{{ m }}{% endfor %}{{ n }}",
    "{% for x in l %}{% with a = loop.index0 %}{{ a }}{% endwith %}{% filter upper %}{{ loop.first }}{% endfilter %}"
    "{% endfor %}",
    "{% for x in absent %}{{ loop.first }}{% else %}nothing{% endfor %}",
    "{% for x in n %}{{ loop.first }}{% endfor %}",
    "{% for a, b in l %}{{ loop.index }}{{ a }}{% endfor %}",
    "{% for x in l|map('upper') %}{{ loop.index }}{{ x }}{% endfor %}",
    "{% for x in [1, 2] %}{{ loop.index }}{{ x }}{% endfor %}",
    "{% macro f(l) %}{% for x in l %}{{ loop.index }}{{ x }}{% endfor %}{% endmacro %}{{ f(l) }}{{ f(d) }}",
    "{% set g = l|map('upper') %}{% for x in g %}{% if loop.first %}{% break %}{% endif %}{% endfor %}{{ g|list }}",
    "{% set counted = 5 %}{% for x in l %}{{ loop.index0 }}{{ counted }}{% endfor %}",
]
NOT = [
    "{% for x in l %}{{ loop.index }}{{ loop.last }}{% endfor %}",
    "{% for x in l %}{{ loop['index'] }}{% endfor %}",
    "{% for x in l %}{% set p = loop %}{{ p.index }}{% endfor %}",
    "{% for x in l recursive %}{{ loop.index }}{% endfor %}",
    "{% for x in l if x != 'b' %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% macro f() %}{{ loop.index }}{% endmacro %}{{ f() }}{% endfor %}",
    "{% macro f() %}{{ caller() }}{% endmacro %}"
    "{% for x in l %}{% call f() %}{{ loop.index }}{% endcall %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}{% for y in l if loop %}{{ y }}{% endfor %}{% endfor %}",
    "{% for x in l %}{{ loop.first }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{% endfor %}",
    "{% set loop = namespace(index=5) %}{% for x in l %}{{ loop.index }}{% set loop.a = 1 %}{% endfor %}",
    "{% set loop = namespace() %}{% for x in l %}{% set loop.a = x %}{% for y in l %}{{ loop.index }}{% endfor %}"
    "{% endfor %}{{ loop.a }}",
]
DATA: dict[str, Any] = {"l": ["a", "b", "c"], "d": {"p": 1, "q": [2]}, "n": None, "loop": 1}


def _seen(source: str, count: bool) -> tuple[str, str]:
    """The text, or the exception."""
    env = environment()
    tree = env.parse(source)
    if count:
        count_loops(env, tree, source)
    try:
        return "ok", env.from_string(tree).render(DATA)
    except Exception as error:
        return type(error).__name__, str(error)


@pytest.mark.parametrize("source", [*COUNTED, *NOT])
def test_a_counted_loop_does_what_the_loop_does(source: str) -> None:
    assert _seen(source, count=True) == _seen(source, count=False)


@pytest.mark.parametrize("source", [*COUNTED, *NOT])
def test_which_loops_are_counted(source: str) -> None:
    env = environment()
    tree = env.parse(source)
    count_loops(env, tree, source)
    made = env.compile(tree, raw=True)
    assert ("in LoopContext(" not in made) is (source in COUNTED)
