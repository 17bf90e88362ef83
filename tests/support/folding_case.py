"""The form of a case for folding, and pieces of templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.folding import assistant, calls, prefixes, tool, user
from toktier.folding import Fallback, Unfolds

Request = Any

SCALARS = (0.0, -0.0, 0, False, 1, True, 1.0, "1")


@dataclass(frozen=True)
class Case:
    """``iterations`` is what the last request may run at most, where folding is to have an effect; ``fallback`` what
    must have been said of some request, and ``unfolds`` of the template, where it must not."""

    name: str
    source: str
    requests: list[Request]
    iterations: int | None = None
    fallback: Fallback | None = None
    unfolds: Unfolds | None = None


def loop(body: str, before: str = "", after: str = "") -> str:
    return before + "{% for m in messages %}" + body + "{% endfor %}" + after


COUNTS = "{% set ns.x = ns.x + 1 %}"
NS = "{% set ns = namespace(x=0) %}"
F = "{% macro f() %}" + COUNTS + "{% endmacro %}"
GROW = prefixes(2, 3, 5, 4, 7)
TOOLS = [
    user("a"),
    assistant("", tool_calls=calls("1", "2")),
    tool("x", tool_call_id="1"),
    tool("y", tool_call_id="2"),
]
