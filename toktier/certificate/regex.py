"""Split patterns as trees, each read as its own reference engine reads it.

Invariants:
- every `Atom` matches exactly one code point, and ``Atom.text``, given to the engine alone, matches the same ones;
- a construct that is not listed in the dialect's module is refused by name and place, never guessed at.
"""

from __future__ import annotations

from enum import Enum

from toktier.certificate.fancy import FancyParser
from toktier.certificate.nodes import (
    GREEDY,
    LAZY,
    POSSESSIVE,
    Alt,
    Atom,
    Atomic,
    Look,
    Node,
    Repeat,
    Seq,
    escape,
)
from toktier.certificate.oniguruma import Parser

__all__ = [
    "GREEDY",
    "LAZY",
    "POSSESSIVE",
    "Alt",
    "Atom",
    "Atomic",
    "Dialect",
    "Look",
    "Node",
    "Repeat",
    "Seq",
    "escape",
    "parse",
    "parse_string",
]


class Dialect(Enum):
    """How a pattern is read. The value is the parser."""

    ONIGURUMA = Parser
    FANCY = FancyParser


def parse(pattern: str, where: str = "pattern", dialect: Dialect = Dialect.ONIGURUMA) -> Node:
    """The tree of ``pattern``. Raises `Refusal` naming the construct; ``where`` leads its place."""
    parser: Parser = dialect.value(pattern, where)
    return parser.parse()


def parse_string(string: str, where: str = "pattern") -> Node:
    """The tree of a Split by a plain string: its characters one after the other."""
    return Seq(tuple(Atom(escape(c), f"{where}, character {i}", literal=c) for i, c in enumerate(string)))
