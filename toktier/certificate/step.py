"""Lemma 4, step by step: what one step M of a normalizer promises of a seam (a, b), and why promises compose.

M° is M as it goes on in the middle of a segment: without the prefix that M puts before a segment, and without stripping
its start. A step promises, for all u, v and w and each pair (a, b) that it lets pass:

 (1) M(u a b v) = M(u a) M°(b v);
 (2) M(u a) ends in ``tail[a]``, which is not empty;
 (3) M°(b v) is empty or begins with ``head[b]``, which is not empty;
 (4) if b is active, (1) and (3) need the character after b to be in ``boundary``, or b to end the text; in any case
     M°(b v) is empty or begins with one of the ``heads`` of b's kind, or that kind is `UNKNOWN`;
 (5) if b is a lead and ``head[c]`` is not empty, then M°(b c w) is empty, or ``head[b]``, one character, followed by
     nothing or by a text that begins as (3) and (4) say of c.

A pair passes if ``tail[a]`` and ``head[b]`` are not empty and no (x, y) in ``apart`` has a in x and b in y.

*Composition.* First M, then M'. By (1) of M the text u a b v becomes x a' b' y, where a' is the last of ``tail[a]`` and
b' the first of ``head[b]``, or it becomes x a' alone, when M°(b v) is empty: then M'°(empty) is empty and nothing is
left to show. If M' lets (a', b') pass, (1) of M' gives (1) of both. If M' maps each character on its own, what it makes
of all of ``tail[a]`` and ``head[b]`` is known; otherwise only what it makes of a' and b'. If b' is active in M', its
next character must be in the boundary of M'. If b is a lead of M, that character is ``head[c]`` or one of the kind of
c, or there is none: so all of these must be in that boundary. If b is no lead, it may not stand on the right at all.
(4): what M' makes of each head of a kind is told by (3) of M'; a head that is active again, or may not stand on the
right in M', leaves the kind `UNKNOWN`, and then no later step takes such a character for a good next one. (5): by (5)
of M and of M'.

That ``M°(b v)`` may be empty costs nothing: then T(u a b v) is T(u a) followed by the IDs of an empty text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.certificate.charmap import CharMap
from toktier.certificate.classes import CODE_POINTS, Flips, Mask
from toktier.certificate.images import NO_SEAM, Image, pulled_back

UNKNOWN = NO_SEAM
"""As a head of a kind: nothing is known of what b becomes."""

Apart = tuple[tuple[Mask, Mask], ...]


@dataclass(frozen=True)
class Kinds:
    """``of``: the kind of each active character, `NO_SEAM` for the others, shape ``(0x110000,)``. ``kind`` and
    ``head``, shape ``(n,)`` each: every kind with each of its possible first characters, or `UNKNOWN`."""

    of: Image
    kind: npt.NDArray[np.int32]
    head: npt.NDArray[np.int32]

    @staticmethod
    def of_sets(heads: Mapping[int, Iterable[int]], kinds: Mapping[int, int]) -> Kinds:
        """``kinds``: the name of the kind of each active character; ``heads``: what each kind may begin with."""
        number = {name: k for k, name in enumerate(sorted(heads))}
        of = np.full(CODE_POINTS, NO_SEAM, np.int32)
        of[list(kinds)] = [number[name] for name in kinds.values()]
        pairs = np.array([(number[n], h) for n in heads for h in sorted(heads[n])], np.int32).reshape(-1, 2)
        return Kinds(of, pairs[:, 0], pairs[:, 1])

    @staticmethod
    def unpacked(flat: Flips) -> Kinds:
        n = int(flat[0])
        first, second = flat[1:].astype(np.int32).reshape(2, -1)
        of = np.full(CODE_POINTS, NO_SEAM, np.int32)
        of[first[:n]] = second[:n]
        return Kinds(of, first[n:], second[n:])

    def packed(self) -> Flips:
        """As one array of uint32, to be kept by `Probe.cached`: two rows behind the number of active characters."""
        points = np.flatnonzero(self.active())
        rows = [*points, *self.kind, *self.of[points], *self.head]
        return np.array([len(points), *rows], np.int64).astype(np.uint32)

    def active(self) -> Mask:
        active: Mask = self.of != NO_SEAM
        return active

    def within(self, inside: Mask) -> Mask:
        """Which active characters can only begin with characters ``inside``; both shapes ``(0x110000,)``."""
        beyond = ~inside[self.head] | (self.head == UNKNOWN)
        bad = np.zeros(int(self.kind.max(initial=-1)) + 2, np.bool_)
        bad[self.kind[beyond]] = True
        bad[-1] = True  # what NO_SEAM finds
        result: Mask = ~bad[self.of]
        return result


@dataclass(frozen=True)
class Step:
    """One step, or several in a row. Masks have shape ``(0x110000,)``; ``boundary`` is given where ``kinds`` is.

    ``each``: M maps every character on its own, to ``tail`` = ``head``, maybe to nothing.
    """

    name: str
    conditions: tuple[str, ...]
    tail: CharMap
    head: CharMap
    lead: Mask
    each: bool = False
    kinds: Kinds | None = None
    boundary: Mask | None = None
    apart: Apart = ()
    interior: bool = False

    def then(self, after: Step) -> Step:
        """This step followed by ``after``."""
        left, right = self.tail.last(), self.head.first()
        tail, head = self.tail, self.head
        if not after.each:
            tail, head = tail.ends(left), head.ends(right)
        head = head.then(after.head)
        lead = self.lead & pulled_back(after.lead, right)
        kinds, boundary = self.kinds, self.boundary
        if after.kinds is not None and after.boundary is not None:
            needing = pulled_back(after.kinds.active(), right)
            head = head.without(needing & ~self.lead)
            follows = pulled_back(after.boundary, right)
            if self.kinds is not None:
                follows &= ~self.kinds.active() | self.kinds.within(after.boundary)
            boundary = follows if boundary is None else boundary & follows
        if kinds is not None or after.kinds is not None:
            kinds = _kinds(self, after, right)
        apart = tuple((pulled_back(x, left), pulled_back(y, right)) for x, y in after.apart)
        return Step(
            f"{self.name}, {after.name}",
            self.conditions + after.conditions,
            tail.then(after.tail),
            head,
            lead,
            self.each and after.each,
            kinds,
            boundary,
            self.apart + apart,
            self.interior or after.interior,
        )


def each(name: str, condition: str, mapping: CharMap) -> Step:
    """A step that maps each character on its own: (1) holds for every pair."""
    return Step(name, (condition,), mapping, mapping, mapping.single(), each=True)


def _kinds(before: Step, after: Step, right: Image) -> Kinds:
    of = np.full(CODE_POINTS, NO_SEAM, np.int32)
    kind, head = np.zeros(0, np.int32), np.zeros(0, np.int32)
    if after.kinds is not None:
        later = pulled_back(after.kinds.active(), right)
        of[later] = after.kinds.of[right[later]]
        kind, head = after.kinds.kind, after.kinds.head
    if before.kinds is not None:
        onwards = after.head.first()
        if after.kinds is not None:
            onwards[after.kinds.active()] = UNKNOWN  # active twice: not followed up
        base = int(kind.max(initial=-1)) + 1
        heads = np.where(before.kinds.head == UNKNOWN, UNKNOWN, onwards[before.kinds.head])
        active = before.kinds.active()
        of[active] = before.kinds.of[active] + base
        kind = np.concatenate([kind, before.kinds.kind + base]).astype(np.int32)
        head = np.concatenate([head, heads]).astype(np.int32)
    return Kinds(of, kind, head)
