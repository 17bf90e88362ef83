"""Lemma 1: what one split stage does at a seam (a, b), from the pattern's Glushkov positions.

The matches of pattern R on ``u a b v`` are those on ``u a`` followed by those on ``b v`` (the seam is *transparent*) if
 (i) no pair (x, y) of R's follow relation has a in x and b in y: then every path that has consumed a fails on b as it
     fails at the end of the text; and
 (ii) no lookahead that can be evaluated right after an atom containing a has a body containing b: at the end of the
     text the body does not match, so elsewhere its outcome on b is that at the end.
The follow relation is over-approximated: lookaheads are transparent in it, greedy, lazy and possessive count alike, and
``{n,m}`` loops. Whatever order the engine tries paths in, it tries the same ones on both texts. R must not be nullable.

The stage has a piece boundary at a transparent seam (the seam is *strict*) as `StageRule` says, by two sets:
- cov: characters that lie in a match wherever they stand, whatever surrounds them;
- nev: characters in no atom, hence in no match.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import Mask
from toktier.certificate.regex import POSSESSIVE, Alt, Atom, Atomic, Look, Node, Repeat, Seq
from toktier.errors import Refusal

BEHAVIOURS = ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous")


@dataclass
class Positions:
    """Glushkov positions of a pattern: its atoms and its lookaheads, in order of their occurrence.

    ``follow`` holds (x, y): y may come right after atom x; y is an atom or a lookahead. ``inside`` lists the atoms of
    all positions, those inside lookaheads last.
    """

    atoms: list[Atom] = field(default_factory=list)
    looks: list[tuple[int, ...]] = field(default_factory=list)
    """Per lookahead: the indices of its body's atoms in ``atoms``."""
    consuming: list[int] = field(default_factory=list)
    """Indices of the atoms outside lookaheads."""
    follow: set[tuple[int, int]] = field(default_factory=set)
    evaluated_after: set[tuple[int, int]] = field(default_factory=set)
    """(x, k): lookahead k may be evaluated right after atom x."""
    index: dict[int, int] = field(default_factory=dict)
    """id of an `Atom` object of the tree to its index."""


MOST_ATOMS = 1000
"""The longest patterns that are published have some sixty."""
_MOST_PAIRS = 200_000


def positions(node: Node, place: str) -> Positions:
    """Positions and follow relation of a tree. Raises `Refusal` for a nullable pattern, or one of very many atoms."""
    p = Positions()
    nullable, _, _ = _glushkov(node, p)
    if nullable:
        raise Refusal("pattern that can match the empty string", place)
    return p


_Set = frozenset[int]


def _glushkov(node: Node, p: Positions) -> tuple[bool, _Set, _Set]:
    """(nullable, first, last). In first, lookahead k is ``-1 - k``; a lookahead is nullable and never last."""
    if isinstance(node, Atom):
        i = _add(node, p)
        p.consuming.append(i)
        return False, frozenset((i,)), frozenset((i,))
    if isinstance(node, Look):
        p.looks.append(tuple(_add(a, p) for a in node.atoms))
        return True, frozenset((-len(p.looks),)), frozenset()
    if isinstance(node, Alt):
        parts = [_glushkov(b, p) for b in node.branches]
        return (
            any(n for n, _, _ in parts),
            frozenset().union(*(f for _, f, _ in parts)),
            frozenset().union(*(last for _, _, last in parts)),
        )
    if isinstance(node, Seq):
        nullable, first, last = True, frozenset[int](), frozenset[int]()
        for item in node.items:
            n, f, end = _glushkov(item, p)
            _join(last, f, p)
            first = first | f if nullable else first
            last = last | end if n else end
            nullable = nullable and n
        return nullable, first, last
    n, f, end = _glushkov(node.body, p)
    if isinstance(node, Repeat):
        if node.high is None or node.high > 1:
            _join(end, f, p)
        n = n or node.low == 0
    return n, f, end


def _add(atom: Atom, p: Positions) -> int:
    if len(p.atoms) == MOST_ATOMS:
        raise Refusal(f"pattern of more than {MOST_ATOMS:,} characters and classes", atom.place)
    p.index[id(atom)] = len(p.atoms)
    p.atoms.append(atom)
    return len(p.atoms) - 1


def _join(last: _Set, first: _Set, p: Positions) -> None:
    for x in last:
        for y in first:
            if y >= 0:
                p.follow.add((x, y))
            else:
                p.evaluated_after.add((x, -1 - y))
    if len(p.follow) > _MOST_PAIRS:
        raise Refusal(f"pattern of more than {_MOST_PAIRS:,} ways from one character to the next", p.atoms[-1].place)


class _Coverage:
    """cov, by three predicates per node and next character c, each a mask over the classes of c.

    - sure: the node succeeds from every position of every text, with no way for the engine to prune that;
    - skip: a way through the node that consumes nothing is open when the next character is c;
    - takes: the node succeeds when the next character is c, whatever follows.
    R is not nullable, so takes(R, c) puts c into a match wherever the search reaches it.
    """

    def __init__(self, p: Positions, holds: Mask) -> None:
        self._p = p
        self._holds = holds
        self._none = np.zeros(holds.shape[1], np.bool_)

    def sure(self, node: Node) -> bool:
        if isinstance(node, Repeat):
            return node.low == 0 or self.sure(node.body)
        if isinstance(node, Atomic):
            return self.sure(node.body)
        if isinstance(node, Seq):
            return all(self.sure(i) for i in node.items)
        if isinstance(node, Alt):
            return any(self.sure(b) for b in node.branches)
        return False

    def skip(self, node: Node) -> Mask:
        if isinstance(node, Look):
            inside = self._union(node.atoms)
            return ~inside if node.negative else inside
        if isinstance(node, Repeat) and node.low == 0:
            # a possessive repeat is skipped only where it cannot begin to consume c
            return ~self._starts(node.body) if node.kind == POSSESSIVE else ~self._none
        if isinstance(node, Atomic):
            return self.skip(node.body) & ~self._starts(node.body)
        if isinstance(node, Seq):
            return ~_any([self._none, *(~self.skip(i) for i in node.items)])
        if isinstance(node, Alt):
            return _any([self.skip(b) for b in node.branches])
        return self._none

    def takes(self, node: Node) -> Mask:
        if isinstance(node, Atom):
            return self._row(node)
        if isinstance(node, Look):
            return self.skip(node)
        if isinstance(node, Repeat):
            if node.low == 0:
                return ~self._none
            return self.takes(node.body) if node.low == 1 else self._none
        if isinstance(node, Atomic):
            return self.takes(node.body)
        if isinstance(node, Alt):
            return _any([self.takes(b) for b in node.branches])
        found, reached = self._none, ~self._none
        for i, item in enumerate(node.items):
            if all(self.sure(rest) for rest in node.items[i + 1 :]):
                found = found | (reached & self.takes(item))
            reached = reached & self.skip(item)
        return found | reached  # all skipped: the empty sequence succeeds

    def _starts(self, node: Node) -> Mask:
        """Characters that the node may consume first, over-approximated by all of its atoms' characters."""
        if isinstance(node, Atom):
            return self._row(node)
        if isinstance(node, Look):
            return self._none
        if isinstance(node, Seq):
            children: Sequence[Node] = node.items
        elif isinstance(node, Alt):
            children = node.branches
        else:
            children = (node.body,)
        return _any([self._none, *(self._starts(c) for c in children)])

    def _row(self, atom: Atom) -> Mask:
        row: Mask = self._holds[self._p.index[id(atom)]]
        return row

    def _union(self, atoms: Sequence[Atom]) -> Mask:
        return _any([self._row(a) for a in atoms])


def _any(masks: Sequence[Mask]) -> Mask:
    result: Mask = np.logical_or.reduce(np.stack(masks))
    return result


def covered(node: Node, p: Positions, holds: Mask) -> Mask:
    """cov of a pattern, over classes; ``holds[i, c]``: atom i of ``p`` holds class c."""
    return _Coverage(p, holds).takes(node)


@dataclass(frozen=True)
class StageRule:
    """Both matrices have shape ``(classes, classes)``, indexed by the classes of a and of b."""

    transparent: Mask
    strict: Mask


def stage_rule(node: Node, p: Positions, left: Mask, right: Mask, behaviour: str, invert: bool) -> StageRule:
    """Lemma 1 for one stage. ``left[i, c]``: atom i of ``p`` holds what class c of a is when the stage sees it;
    ``right`` the same for b. Where no step before the stage rewrites the text the two are the same.

    A piece boundary stands between a match and what is beside it, except where the behaviour joins them. HF's fold
    joins a match to the gap before it (MergedWithPrevious), to the gap after it (MergedWithNext), or runs of a kind
    (Contiguous); ``invert`` swaps matches and gaps. Two gaps side by side are one piece under every behaviour.
    """
    span = _pairs(p.follow, left, right)
    bodies = np.stack([right[list(k)].any(axis=0) for k in p.looks]) if p.looks else right[:0]
    span |= _pairs(p.evaluated_after, left, bodies)
    transparent = ~span
    a, b = covered(node, p, left)[:, None], covered(node, p, right)[None, :]
    if behaviour == "Isolated" or (behaviour == "Removed" and not invert):
        edge = a | b
    elif behaviour == "Removed":  # the pieces are the matches, and no match spans the seam
        edge = np.ones_like(span)
    elif behaviour == "MergedWithPrevious":
        edge = (b if invert else a) & np.ones_like(span)
    elif behaviour == "MergedWithNext":
        edge = (a if invert else b) & np.ones_like(span)
    elif behaviour == "Contiguous":
        never_a, never_b = ~_any(list(left[p.consuming]))[:, None], ~_any(list(right[p.consuming]))[None, :]
        edge = (a & never_b) | (never_a & b)
    else:
        raise ValueError(behaviour)
    return StageRule(transparent, transparent & edge)


def _pairs(relation: set[tuple[int, int]], left: Mask, right: Mask) -> Mask:
    """(a, b) such that some (x, y) of the relation has a in ``left[x]`` and b in ``right[y]``."""
    if not relation:
        return np.zeros((left.shape[1], right.shape[1]), np.bool_)
    table = np.zeros((left.shape[0], right.shape[0]), np.float32)
    x, y = zip(*relation, strict=True)
    table[list(x), list(y)] = 1
    product: npt.NDArray[np.float32] = left.T.astype(np.float32) @ table @ right.astype(np.float32)
    return product > 0
