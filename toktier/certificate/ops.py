"""What a pre-tokenizer does, as a row of three kinds of operations on pieces. `stages` reads a file into them.

- `Split` cuts each piece by a pattern (lemma 1);
- `Rewrite` maps each character of each piece to one or more others, whatever stands beside it;
- `Prefix` puts a character before each piece that does not begin with it (``always``), or before the one at the very
  start of the text only (``first``).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from toktier.certificate.follow import Positions
from toktier.certificate.images import Sides
from toktier.certificate.regex import Node


@dataclass(frozen=True)
class Split:
    """One split: its pattern as a tree, and what becomes of matches and gaps."""

    place: str
    pattern: str
    """For people: the regex, the string in quotes, or the name of the predicate."""
    node: Node = field(repr=False)
    positions: Positions = field(repr=False)
    behaviour: str
    invert: bool


@dataclass(frozen=True)
class Rewrite:
    """A map of characters to non-empty strings: ``sides.left`` the last, ``sides.right`` the first of each."""

    place: str
    name: str
    sides: Sides = field(repr=False)


@dataclass(frozen=True)
class Prefix:
    """``scheme``: ``always`` (every piece) or ``first`` (only at offset 0 of the whole text)."""

    place: str
    scheme: str


Op = Split | Rewrite | Prefix
