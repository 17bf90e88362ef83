"""Lemma 5's pairs taken out of a table: what literals single out gets classes of its own.

A pass of literals looks at its own text: the raw one at the characters themselves, the normalised one at their images.
So a character is told by its class and by what each pass sees of it on either side of a seam, where that stands in a
literal (its *labels*). Characters equal in all of this stay together: under a normalizer that puts out few characters
(ByteLevel) one literal singles out a good part of all code points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import CODE_POINTS, Flips, Mask, members
from toktier.certificate.images import Image
from toktier.certificate.joins import Joins
from toktier.certificate.literals import LiteralRule
from toktier.certificate.table import NO, Table
from toktier.errors import Refusal

MOST_CLASSES = 16_384
"""The matrix has a byte for each pair. Published files have up to a few hundred."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Pass:
    """A pass of literals: its rule, what it sees of a and of b, and which raw a and b it sees as white space."""

    rule: LiteralRule
    left: Image
    right: Image
    space_left: Flips
    space_right: Flips


def without_literals(
    classes: npt.NDArray[np.uint16],
    matrix: npt.NDArray[np.uint8],
    boundary: Mask,
    joins: Joins | None,
    passes: Sequence[Pass],
) -> Table:
    """The table of ``matrix`` without what the passes forbid. Raises `Refusal` where it would have too many classes."""
    asked = [_Asked(one, classes, matrix) for one in passes]
    labels = [label for one in asked for label in (one.left, one.right)]
    touched = np.flatnonzero(np.logical_or.reduce([label.of != 0 for label in labels]))
    key = classes[touched].astype(np.int64)
    for label in labels:
        key = np.unique(key * (len(label.number) + 1) + label.of[touched], return_inverse=True)[1]
    _, first, own = np.unique(key, return_index=True, return_inverse=True)
    n = len(matrix)
    if n + len(first) > MOST_CLASSES:
        raise Refusal(f"more than {MOST_CLASSES:,} character classes", "added_tokens")
    table = classes.astype(np.int64)
    table[touched] = n + own
    origin = np.concatenate([np.arange(n), classes[touched[first]].astype(np.int64)])
    wide = matrix[np.ix_(origin, origin)]
    for one in asked:
        one.forbid(wide, np.concatenate([np.full(n, -1), touched[first]]), table)
    edge = boundary[origin]
    merged, kept = _equal(wide, edge)
    final = merged[table]
    assert final.shape == (CODE_POINTS,)
    return Table(
        np.ascontiguousarray(final.astype(np.uint8 if len(kept) <= 256 else np.uint16)),
        np.ascontiguousarray(wide[np.ix_(kept, kept)]),
        edge[kept].copy(),
        joins,
    )


class _Label:
    """``of``: the number of each character by what it is seen as, from 1 on, 0 for others, shape ``(0x110000,)``."""

    def __init__(self, points: Iterable[int], image: Image) -> None:
        chosen = sorted(set(points))
        self.number = {point: k for k, point in enumerate(chosen, 1)}
        if not chosen:
            self.of = np.zeros(CODE_POINTS, np.int32)
            return
        numbers = np.zeros(CODE_POINTS + 1, np.int32)  # the last one is for `NO_SEAM`
        numbers[chosen] = np.arange(1, len(chosen) + 1)
        self.of = numbers[image]

    def classes(self, classes: npt.NDArray[np.uint16], count: int) -> Mask:
        """Which classes have a character of each number, shape ``(numbers + 1, count)``."""
        found = np.zeros((len(self.number) + 1, count), np.bool_)
        points = np.flatnonzero(self.of)
        found[self.of[points], classes[points]] = True
        return found


class _Asked:
    """What a pass forbids, as far as there is a cut to be taken away."""

    def __init__(self, given: Pass, classes: npt.NDArray[np.uint16], matrix: npt.NDArray[np.uint8]) -> None:
        self._given = given
        rule = given.rule
        pairs = sorted(rule.pairs)
        left = _Label((a for a, _ in pairs), given.left)
        right = _Label((b for _, b in pairs), given.right)
        reached = left.classes(classes, len(matrix)).astype(np.float32) @ (matrix != NO).astype(np.float32) > 0
        ends = right.classes(classes, len(matrix))
        self.pairs = [(a, b) for a, b in pairs if (reached[left.number[a]] & ends[right.number[b]]).any()]
        self.left = _Label({a for a, _ in self.pairs} | rule.never_left | rule.before_space, given.left)
        self.right = _Label({b for _, b in self.pairs} | rule.never_right | rule.after_space, given.right)

    def forbid(self, wide: npt.NDArray[np.uint8], example: Numbers, table: Numbers) -> None:
        """Takes it out of ``wide``. ``example``: a character of each class that was made for labels, or -1; ``table``:
        the class of each character."""
        rule = self._given.rule
        rows, columns = _rows(self.left, example), _rows(self.right, example)
        for a, b in self.pairs:
            wide[np.ix_(rows[a], columns[b])] = NO
        for a in rule.never_left:
            wide[rows[a], :] = NO
        for b in rule.never_right:
            wide[:, columns[b]] = NO
        after = np.unique(table[members(self._given.space_right)])
        for a in rule.before_space:
            wide[np.ix_(rows[a], after)] = NO
        before = np.unique(table[members(self._given.space_left)])
        for b in rule.after_space:
            wide[np.ix_(before, columns[b])] = NO


def _rows(label: _Label, example: Numbers) -> dict[int, Numbers]:
    """The classes of what is seen as each point."""
    numbers = np.where(example < 0, 0, label.of[example])
    order = np.argsort(numbers, kind="stable")
    edges = np.searchsorted(numbers[order], np.arange(1, len(label.number) + 2))
    return {point: order[edges[k - 1] : edges[k]] for point, k in label.number.items()}


def _equal(wide: npt.NDArray[np.uint8], edge: Mask) -> tuple[Numbers, Numbers]:
    """Classes that no pair tells apart are one: the number of each, and the first class of each number."""
    known: dict[bytes, int] = {}
    columns = np.ascontiguousarray(wide.T)
    kept: list[int] = []
    merged = np.zeros(len(wide), np.int64)
    for k in range(len(wide)):
        row = hashlib.sha256(wide[k].tobytes() + columns[k].tobytes() + edge[k].tobytes()).digest()
        if row not in known:
            known[row] = len(kept)
            kept.append(k)
        merged[k] = known[row]
    return merged, np.array(kept)
