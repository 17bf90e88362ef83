"""The tree of a split pattern. Every `Atom` matches exactly one code point."""

from __future__ import annotations

from dataclasses import dataclass

GREEDY, LAZY, POSSESSIVE = "greedy", "lazy", "possessive"


@dataclass(frozen=True)
class Atom:
    """One code point. ``text`` is a self-contained pattern."""

    text: str
    place: str
    literal: str | None = None
    """The code point, where the atom stands for itself and case counts."""
    unfolded: str | None = None
    """Where case is ignored: the pattern without that option."""
    predicate: str | None = None
    """Where no regex tells the set: the name of a predicate of the engine's, in `predicates`."""


@dataclass(frozen=True)
class Alt:
    branches: tuple[Node, ...]


@dataclass(frozen=True)
class Seq:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    body: Node
    low: int
    high: int | None
    kind: str


@dataclass(frozen=True)
class Atomic:
    body: Node


@dataclass(frozen=True)
class Look:
    """A lookahead over one code point: any of ``atoms`` (``negative``: none of them, or the end of the text)."""

    negative: bool
    atoms: tuple[Atom, ...]


Node = Atom | Alt | Seq | Repeat | Atomic | Look


def escape(char: str) -> str:
    """``char`` as a pattern that matches it alone."""
    return f"\\x{{{ord(char):x}}}"
