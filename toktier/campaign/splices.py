"""Ropes with a fault in them: each breaks one step of the splice (lemma 6), so that a campaign can be tested on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from toktier.appends import Resumed, resumed
from toktier.chunks import ChunkEncoder, CutRule
from toktier.gaps import Gap
from toktier.ids import Ids
from toktier.leaves import Leaves
from toktier.rope import Rope, Splice


class _Faulty(Rope):
    """An append goes the way of any other change: that is where these faults are."""

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
            self._flat.buffer[self._flat.begin + before - 1] ^= 1


class _SuffixNotMoved(_Faulty):
    """The IDs after the changed part are taken from one place beside where they stand."""

    __slots__ = ()

    def _install(self, gap: Gap, pieces: Sequence[str], counts: Sequence[int], ids: Ids) -> None:
        super()._install(gap, pieces, counts, ids)
        begin = self._flat.begin
        start, end = begin + self._tokens[gap.i + len(pieces)], begin + self._tokens[-1]
        if gap.i and start < end:
            self._flat.buffer[start:end] = np.roll(self._flat.buffer[start:end], 1)


class _CountOff(_Faulty):
    """The index has one ID too many in the first encoded chunk: right as long as nothing is replaced near it."""

    __slots__ = ()

    def _install(self, gap: Gap, pieces: Sequence[str], counts: Sequence[int], ids: Ids) -> None:
        super()._install(gap, pieces, counts, ids)
        if len(pieces) > 1:
            self._tokens[gap.i + 1] += 1


def _old_end(encoder: ChunkEncoder, leaves: Leaves, begin: int, count: int, tail: str) -> Resumed:
    return Resumed(leaves.chars, 0, "")


class _OldEndNotAsked(Rope):
    """An append takes the old end for a cut."""

    __slots__ = ()

    _resumed = staticmethod(_old_end)


def _one_less(encoder: ChunkEncoder, leaves: Leaves, begin: int, count: int, tail: str) -> Resumed:
    found = resumed(encoder, leaves, begin, count, tail)
    return found._replace(tokens=max(0, found.tokens - 1))


class _BehindMiscounted(Rope):
    """An append keeps one ID too many of those behind the last cut."""

    __slots__ = ()

    _resumed = staticmethod(_one_less)


def _one_back(encoder: ChunkEncoder, leaves: Leaves, begin: int, count: int, tail: str) -> Resumed:
    found = resumed(encoder, leaves, begin, count, tail)
    if found.at - begin < 2 or found.at == leaves.chars:
        return found
    behind = leaves.text(found.at - 1, leaves.chars)
    return Resumed(found.at - 1, len(encoder.one(behind)) >> 2, behind)


class _BesideTheCut(Rope):
    """An append begins one character before the last cut, where there may be none."""

    __slots__ = ()

    _resumed = staticmethod(_one_back)


def _nothing_behind(encoder: ChunkEncoder, leaves: Leaves, begin: int, count: int, tail: str) -> Resumed:
    found = resumed(encoder, leaves, begin, count, tail)
    return found._replace(behind=found.behind[1:]) if found.at > begin else found


class _BehindDropped(Rope):
    """An append encodes one character too few of those behind the last cut."""

    __slots__ = ()

    _resumed = staticmethod(_nothing_behind)


class _WrongSeal(Rope):
    """An append leaves a wrong seam: the IDs are right as long as nothing is replaced near it."""

    __slots__ = ()

    def _extend(self, tail: str, shared: bool = False) -> Splice:
        chunks = len(self._chars)
        splice = super()._extend(tail, shared)
        if len(self._chars) > chunks:
            self._moved(chunks - 1)
        return splice

    def _moved(self, seam: int) -> None:
        raise NotImplementedError


class _SealMisplaced(_WrongSeal):
    """One character too late."""

    __slots__ = ()

    def _moved(self, seam: int) -> None:
        self._chars[seam] += 1


class _SealMiscounted(_WrongSeal):
    """One ID too many before it."""

    __slots__ = ()

    def _moved(self, seam: int) -> None:
        self._tokens[seam] += 1


class _NotCompared(Rope):
    """An append tells the first ID that it encoded as the first that changed."""

    __slots__ = ()

    def _extend(self, tail: str, shared: bool = False) -> Splice:
        splice = super()._extend(tail, shared)
        return splice._replace(first_changed=splice.kept_prefix)


FAULTS: Mapping[str, type[Rope]] = {
    "seams not asked again": _SeamsNotAsked,
    "a chunk dropped": _ChunkLost,
    "a character dropped": _CharacterLost,
    "an ID changed at the seam": _SeamChanged,
    "the kept suffix moved by one": _SuffixNotMoved,
    "a count off by one": _CountOff,
    "the old end not asked by an append": _OldEndNotAsked,
    "an ID too many kept by an append": _BehindMiscounted,
    "an append begun beside a cut": _BesideTheCut,
    "a character dropped by an append": _BehindDropped,
    "the seam of an append misplaced": _SealMisplaced,
    "the IDs before the seam of an append miscounted": _SealMiscounted,
    "the IDs of an append not compared": _NotCompared,
}
OF_APPENDS = frozenset(name for name, rope in FAULTS.items() if not issubclass(rope, _Faulty))
"""Faults of an append's own way, which there is for a `ChunkEncoder.plain` only."""
