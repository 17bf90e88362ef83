"""Ropes with a fault in them: each breaks one step of the splice (lemma 6), so that a campaign can be tested on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toktier.chunks import CutRule
from toktier.gaps import Gap
from toktier.ids import Ids
from toktier.rope import Rope, Splice


class _Faulty(Rope):
    """An append goes the way of any other change: that is where the faults are."""

    __slots__ = ()

    def append(self, tail: str) -> Splice:
        size = self.chars
        return self.replace(size, size, tail) if size else super().append(tail)


class _SeamsNotAsked(_Faulty):
    """A chunk beside a change is kept without asking whether the seam is still a cut."""

    __slots__ = ()

    def _is_cut(self, rule: CutRule, left: str, right: str, j: int) -> bool:
        return True


class _ChunkLost(_Faulty):
    """The chunk after a change is dropped: the gap ends one chunk too far."""

    __slots__ = ()

    def _widened(self, gaps: list[Gap]) -> list[Gap]:
        done = super()._widened(gaps)
        last = done[-1]
        if last.i > 0 and last.j < len(self._chars) - 1:
            done[-1] = last._replace(j=last.j + 1)
        return done


class _CharacterLost(_Faulty):
    """The text between the kept chunks begins one character too late."""

    __slots__ = ()

    def _widened(self, gaps: list[Gap]) -> list[Gap]:
        done = super()._widened(gaps)
        last = done[-1]
        if last.i > 0 and len(last.text) > 1:
            done[-1] = last._replace(text=last.text[1:])
        return done


class _SeamChanged(_Faulty):
    """The last ID before the changed part becomes another."""

    __slots__ = ()

    def _install(self, gap: Gap, pieces: Sequence[str], counts: Sequence[int], ids: Ids) -> None:
        before = self._tokens[gap.i]
        super()._install(gap, pieces, counts, ids)
        if before:
            self._flat.buffer[before - 1] ^= 1


class _SuffixNotMoved(_Faulty):
    """The IDs after the changed part are taken from one place beside where they stand."""

    __slots__ = ()

    def _install(self, gap: Gap, pieces: Sequence[str], counts: Sequence[int], ids: Ids) -> None:
        super()._install(gap, pieces, counts, ids)
        start, end = self._tokens[gap.i + len(pieces)], self._tokens[-1]
        if gap.i and start < end:
            self._flat.buffer[start:end] = np.roll(self._flat.buffer[start:end], 1)


class _CountOff(_Faulty):
    """The index has one ID too many in the first encoded chunk: right as long as nothing is replaced near it."""

    __slots__ = ()

    def _install(self, gap: Gap, pieces: Sequence[str], counts: Sequence[int], ids: Ids) -> None:
        super()._install(gap, pieces, counts, ids)
        if len(pieces) > 1:
            self._tokens[gap.i + 1] += 1


FAULTS: Mapping[str, type[Rope]] = {
    "seams not asked again": _SeamsNotAsked,
    "a chunk dropped": _ChunkLost,
    "a character dropped": _CharacterLost,
    "an ID changed at the seam": _SeamChanged,
    "the kept suffix moved by one": _SuffixNotMoved,
    "a count off by one": _CountOff,
}
