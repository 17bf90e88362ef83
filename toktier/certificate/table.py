"""The derived rule as tables: which pairs of characters are cuts, asked one by one or over a whole text.

Invariants:
- a pair's answer is a function of the two characters and, where `IF_NEXT` says so, of the class of the next one;
- ``kinds`` hold `NO`, `YES`, or conditions that must all hold: `IF_NEXT` (the class of the character after b is in
  ``boundary``), `IF_APART` (lemma 3: no merge joins the symbols at the seam);
- surrogates stand at no cut.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import Mask
from toktier.certificate.joins import Joins

NO, YES, IF_NEXT, IF_APART = 0, 1, 2, 4


@dataclass(frozen=True)
class Table:
    """``classes``: the class of each code point, shape ``(0x110000,)``, uint8 or uint16. ``matrix``: the kind of each
    pair of classes of a and b, shape ``(n, n)``, uint8. ``boundary``: shape ``(n,)``. ``joins``: where some kind has
    `IF_APART`."""

    classes: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    matrix: npt.NDArray[np.uint8]
    boundary: Mask
    joins: Joins | None = None


@dataclass(frozen=True)
class TableCuts:
    """Cuts by a table. Immutable, thread-safe. It is a `toktier.chunks.CutRule`."""

    table: Table
    interior: bool = False
    """Whether chunks other than the first are read with the character before them (`docs/proof.md`, interior)."""
    needs_next: bool = field(init=False)
    _classes: Sequence[int] = field(init=False, repr=False)
    _matrix: bytes = field(init=False, repr=False)
    _boundary: bytes = field(init=False, repr=False)

    def __post_init__(self) -> None:
        table = self.table
        wide = table.classes.dtype != np.uint8
        put = object.__setattr__
        put(self, "needs_next", bool((table.matrix & IF_NEXT).any()))
        put(self, "_classes", array("H", table.classes.tobytes()) if wide else table.classes.tobytes())
        put(self, "_matrix", table.matrix.tobytes())
        put(self, "_boundary", table.boundary.tobytes())

    def is_cut(self, text: str, i: int) -> bool:
        """Whether T(text) = T(text[:i]) + X(text[i:]) is certified, ``0 < i < len(text)``."""
        classes, a, b = self._classes, ord(text[i - 1]), ord(text[i])
        kind = self._matrix[classes[a] * len(self._boundary) + classes[b]]
        if kind <= YES:
            return kind == YES
        if kind & IF_NEXT and not (i + 1 < len(text) and self._boundary[classes[ord(text[i + 1])]]):
            return False
        joins = self.table.joins
        return not kind & IF_APART or (joins is not None and joins.apart(a, b))

    def cuts(self, text: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """All cuts i with ``max(start, 1) <= i <= min(stop, len(text) - 1)``, sorted, shape ``(n,)``."""
        low = max(start, 1)
        high = len(text) - 1 if stop is None else min(stop, len(text) - 1)
        if high < low:
            return np.empty(0, np.int64)
        table = self.table
        window = text[low - 1 : high + 2]
        points = np.frombuffer(window.encode("utf-32-le", "surrogatepass"), "<u4")
        k = table.classes.take(points)
        m = high - low + 1
        at = k[:m].astype(np.uint32)
        at *= len(table.matrix)
        at += k[1 : m + 1]
        kinds = table.matrix.reshape(-1).take(at)
        if self.needs_next:
            met = np.zeros(m, np.bool_)
            met[: len(k) - 2] = table.boundary.take(k[2:])
            kinds[(kinds & IF_NEXT).astype(np.bool_) & ~met] = NO
        if table.joins is None:
            return np.flatnonzero(kinds) + low
        asked = np.flatnonzero(kinds & IF_APART)
        kinds[asked[~table.joins.apart_many(points[asked], points[asked + 1])]] = NO
        return np.flatnonzero(kinds) + low
