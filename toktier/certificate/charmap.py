"""Maps of characters to strings, kept as what they change: a normalizer changes a few thousand characters at most.

Invariants: ``points`` is sorted and free of repetitions; a character that is not in it maps to itself; the string of
``points[k]`` is ``units[starts[k]:starts[k + 1]]``, which may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import CODE_POINTS, Flips, Mask
from toktier.certificate.images import NO_SEAM, Image

Points = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CharMap:
    """``points`` (k,), ``starts`` (k + 1,), ``units`` (starts[-1],): code points."""

    points: Points
    starts: Counts
    units: Points

    @staticmethod
    def of(strings: Mapping[int, str]) -> CharMap:
        points = sorted(strings)
        texts = [strings[p] for p in points]
        units = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4").astype(np.uint32)
        return CharMap(np.array(points, np.uint32), _starts(np.array([*map(len, texts)], np.int64)), units)

    @staticmethod
    def all_to(points: npt.NDArray[np.integer], content: str) -> CharMap:
        """Each of the sorted ``points`` to ``content``."""
        units = np.tile(np.array([*map(ord, content)], np.uint32), len(points))
        return CharMap(points.astype(np.uint32), np.arange(len(points) + 1, dtype=np.int64) * len(content), units)

    @staticmethod
    def unpacked(flat: Flips) -> CharMap:
        k = int(flat[0])
        return CharMap(flat[1 : k + 1], _starts(flat[k + 1 : 2 * k + 1].astype(np.int64)), flat[2 * k + 1 :])

    def packed(self) -> Flips:
        """As one array of uint32, to be kept by `Probe.cached`."""
        head = np.array([len(self.points)], np.uint32)
        return np.concatenate([head, self.points, self.lengths().astype(np.uint32), self.units])

    def lengths(self) -> Counts:
        return np.diff(self.starts)

    def lengths_of(self, chars: npt.NDArray[np.integer]) -> Counts:
        """The lengths of the strings of ``chars``, same shape."""
        return self._found(chars)[2]

    def single(self) -> Mask:
        """Which characters map to exactly one, shape ``(0x110000,)``."""
        mask = np.ones(CODE_POINTS, np.bool_)
        mask[self.points] = self.lengths() == 1
        return mask

    def first(self) -> Image:
        """The first character of each string, `NO_SEAM` where it is empty, shape ``(0x110000,)``."""
        return self._end(self.starts[:-1])

    def last(self) -> Image:
        return self._end(self.starts[1:] - 1)

    def ends(self, image: Image) -> CharMap:
        """The map to ``image`` alone, which is `first` or `last` of this one."""
        return CharMap.from_image(self.points, image[self.points])

    @staticmethod
    def from_image(points: npt.NDArray[np.integer], image: Image) -> CharMap:
        """The sorted ``points`` to ``image``, same shape, and to nothing where that is `NO_SEAM`."""
        kept = image != NO_SEAM
        return CharMap(points.astype(np.uint32), _starts(kept.astype(np.int64)), image[kept].astype(np.uint32))

    def then(self, other: CharMap) -> CharMap:
        """First this, then ``other`` for each character of what this gives."""
        at, hit, lengths = other._found(self.units)
        begins = _starts(lengths)
        within = np.arange(begins[-1]) - np.repeat(begins[:-1], lengths)
        units = np.repeat(self.units, lengths)
        changed = np.repeat(hit, lengths)
        source = np.repeat(np.where(hit, other.starts[at], 0), lengths) + within
        units[changed] = other.units[source[changed]]
        mapped = CharMap(self.points, begins[self.starts], units)
        fresh = np.isin(other.points, self.points, assume_unique=True, invert=True)
        return mapped._with(other._only(fresh))

    def without(self, forbidden: Mask) -> CharMap:
        """This map, but to nothing where ``forbidden``, shape ``(0x110000,)``."""
        points = np.flatnonzero(forbidden)
        kept = np.isin(self.points, points, assume_unique=True, invert=True)
        return self._only(kept)._with(CharMap.all_to(points, ""))

    def _end(self, index: Counts) -> Image:
        image = np.arange(CODE_POINTS, dtype=np.int32)
        some = self.lengths() > 0
        image[self.points] = NO_SEAM
        image[self.points[some]] = self.units[index[some]].astype(np.int32)
        return image

    def _found(self, chars: npt.NDArray[np.integer]) -> tuple[Counts, Mask, Counts]:
        """Of each of ``chars``: its index in ``points``, whether it is there, and the length of its string."""
        at = np.searchsorted(self.points, chars)
        inside = np.minimum(at, max(len(self.points) - 1, 0))
        hit = (self.points[inside] == chars) if len(self.points) else np.zeros(len(chars), np.bool_)
        lengths = self.starts[np.where(hit, at + 1, 0)] - self.starts[np.where(hit, at, 0)]
        return np.where(hit, at, 0), hit, np.where(hit, lengths, 1)

    def _only(self, kept: Mask) -> CharMap:
        lengths = self.lengths()
        return CharMap(self.points[kept], _starts(lengths[kept]), self.units[np.repeat(kept, lengths)])

    def _with(self, other: CharMap) -> CharMap:
        """Both maps, which change no character in common."""
        if not len(other.points):
            return self
        points = np.concatenate([self.points, other.points])
        order = np.argsort(points)
        lengths = np.concatenate([self.lengths(), other.lengths()])[order]
        begins = np.concatenate([self.starts[:-1], other.starts[:-1] + len(self.units)])[order]
        starts = _starts(lengths)
        source = np.repeat(begins - starts[:-1], lengths) + np.arange(starts[-1])
        return CharMap(points[order], starts, np.concatenate([self.units, other.units])[source])


SAME = CharMap(np.zeros(0, np.uint32), np.zeros(1, np.int64), np.zeros(0, np.uint32))
"""The map that changes nothing."""


def _starts(lengths: Counts) -> Counts:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
