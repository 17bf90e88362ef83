"""The places at which a body reads something from outside its iteration: what a folded loop depends on.

A `Site` is an expression (by its text) and the way it is read:

- ``VALUE``: an expression of names bound outside the loop. What counts is its value, and which iterations asked for it.
- ``THRESHOLD``: the same, compared with the number of the iteration (``loop.index0 > ns.last``). When the value moves
  from s to t, only iterations with a number between the two can come out differently.
- ``LIST``: a name that is indexed, sliced or iterated. What counts is which positions were read.
- ``OUTER``: a name that the body assigns to and that exists outside too. Every iteration may have read it.

Sites are numbered through the whole template, since macros are shared by loops.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from jinja2 import nodes

from toktier.folding.scans import Lookup


class Read(Enum):
    VALUE = "value"
    THRESHOLD = "threshold"
    LIST = "list"
    OUTER = "outer"


@dataclass(frozen=True, slots=True)
class Site:
    """``offset``: of a threshold, c in ``number + c <op> value``. ``attribute``: (namespace, attribute) where it is
    nothing but that, so that a loop which writes to it can leave it out."""

    number: int
    read: Read
    node: nodes.Expr
    offset: int = 0
    attribute: tuple[str, str] | None = None


class Sites:
    def __init__(self) -> None:
        self.all: list[Site] = []
        self.lookups: list[Lookup] = []
        self._known: dict[tuple[str, Read, int], int] = {}

    def add(self, read: Read, node: nodes.Expr, offset: int = 0, attribute: tuple[str, str] | None = None) -> int:
        """The number of the site; the same one for the same expression, read in the same way."""
        key = (repr(node), read, offset)
        number = self._known.get(key)
        if number is None:
            number = self._known[key] = len(self.all)
            self.all.append(Site(number, read, node, offset, attribute))
        return number


@dataclass(slots=True)
class Part:
    """What a body or a macro does, by itself: the sites that it reads, what it writes and which macros it calls."""

    sites: set[int] = field(default_factory=set)
    writes: set[tuple[str, str]] = field(default_factory=set)
    """(namespace, attribute)"""
    reads: set[tuple[str, str]] = field(default_factory=set)
    """Attributes of namespaces that are read and may be written by the loop."""
    calls: set[str] = field(default_factory=set)
    lookups: set[int] = field(default_factory=set)
    """Numbers of `Sites.lookups`."""

    def add(self, other: Part) -> None:
        """What ``other`` does is done as well."""
        self.sites |= other.sites
        self.writes |= other.writes
        self.reads |= other.reads
        self.calls |= other.calls
        self.lookups |= other.lookups
