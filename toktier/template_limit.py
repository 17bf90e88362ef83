"""How long one render may take and how much it may make: some templates are slow on hostile or very many messages.

A template is compiled to Python. Whatever in it can go on without end goes through a loop, a macro or a call block, so
each of their bodies begins with a look at the clock (`guarded` puts it there). What is made is counted as it comes out.

Invariants
1. A guarded template renders what the template renders: the look prints nothing and binds nothing.
2. A render stops at most one iteration of its innermost loop after its deadline. What one expression does in one call
   (a filter, a method of a string) is not interrupted; it takes time in proportion to what it works on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.runtime import Context

from toktier.counted import count_loops

_TICK = "\0tick"
_DEADLINE = "\0deadline"
"""Names that no template can write."""
_PIECES = 256
"""Pieces of text that are counted at once."""


@dataclass(frozen=True, slots=True)
class RenderLimit:
    """``seconds`` of time, by the clock on the wall, and ``chars`` of text."""

    seconds: float = math.inf
    chars: float = math.inf


class OverLimit(Exception):
    """The render was stopped; ``limit`` is "time" or "size"."""

    def __init__(self, limit: str) -> None:
        super().__init__(limit)
        self.limit = limit


@jinja2.pass_context
def _tick(context: Context, _value: object) -> None:
    if time.perf_counter() > context.parent[_DEADLINE]:
        raise OverLimit("time")


def guarded(env: jinja2.Environment, source: str) -> jinja2.Template:
    """``source``, compiled with the looks at the clock. Render it with `render`."""
    tree = env.parse(source)
    count_loops(env, tree, source)
    guard(env, tree)
    return env.from_string(tree)


def guard(env: jinja2.Environment, tree: nodes.Template, watched: Collection[str] = ()) -> None:
    """Puts the looks into ``tree``, which is to be compiled in ``env``. Its renders need what `deadline` gives.

    ``watched``: names of macros, and of targets of loops in them, before each of whose runs somebody else looks.
    """
    env.filters[_TICK] = _tick
    loops = [
        node
        for node in tree.find_all(nodes.For)
        if not (isinstance(node.target, nodes.Name) and node.target.name in watched)
    ]
    bodies = [
        *(node.body for node in loops),
        *(node.body for node in tree.find_all(nodes.Macro) if node.name not in watched),
        *(node.body for node in tree.find_all(nodes.CallBlock)),
    ]
    for body in bodies:
        look = nodes.ExprStmt(nodes.Filter(nodes.Const(None), _TICK, [], [], None, None))
        body.insert(0, look.set_lineno(body[0].lineno if body else 1))
    tree.set_environment(env)


def deadline(at: float) -> dict[str, Any]:
    """The argument that guarded templates look at: a time of `time.perf_counter`."""
    return {_DEADLINE: at}


def render(template: jinja2.Template, arguments: Mapping[str, Any], limit: RenderLimit) -> str:
    """The text of a template made by `guarded`. Raises `OverLimit`, and whatever the template raises."""
    end = time.perf_counter() + limit.seconds
    context = template.new_context({**arguments, **deadline(end)})
    made = template.root_render_func(context)
    pieces: list[str] = []
    size = 0
    while more := list(islice(made, _PIECES)):
        size += sum(map(len, more))
        if size > limit.chars:
            raise OverLimit("size")
        if time.perf_counter() > end:
            raise OverLimit("time")
        pieces += more
    return "".join(pieces)
