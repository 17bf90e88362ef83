"""Literals of added tokens in the bytes of a text, leftmost-longest, without a loop over the text.

Candidates are places with the first byte of a literal; those are thinned by the first two bytes and then by the first
eight, all in numpy; what is left is compared whole. UTF-8 synchronises itself, so no match begins inside a character.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.gpu.router.scratch import Bytes, flags

Places = npt.NDArray[np.int64]

MOST = 65_536
"""Candidates that are compared whole: each costs a microsecond, under the interpreter's lock."""
_PREFIX = 8
_FEW = 4


class TooMany(Exception):
    """More than `MOST` candidates."""


@dataclass(frozen=True)
class Found:
    """Matches in order, which do not overlap; shape ``(n,)`` each."""

    starts: Places
    lengths: Places
    ids: npt.NDArray[np.int64]


_NOTHING = np.empty(0, np.int64)
NOTHING = Found(_NOTHING, _NOTHING, _NOTHING)


class Finder:
    """Looks for literals, each with its ID. Immutable, thread-safe."""

    def __init__(self, literals: Mapping[bytes, int]) -> None:
        """``literals``: UTF-8, none empty."""
        self._ids = dict(literals)
        self._first = np.zeros(256, np.bool_)
        self._second = np.zeros((256, 256), np.bool_)
        prefixes: dict[int, set[int]] = {}
        lengths: dict[bytes, set[int]] = {}
        for literal in literals:
            self._first[literal[0]] = True
            if len(literal) > 1:
                self._second[literal[0], literal[1]] = True
            else:
                self._second[literal[0]] = True
            size = min(len(literal), _PREFIX)
            prefixes.setdefault(size, set()).add(int.from_bytes(literal[:size], "little"))
            lengths.setdefault(literal[:1], set()).add(len(literal))
        self._firsts = np.flatnonzero(self._first).tolist()
        self._prefixes = [
            (np.uint64((1 << 8 * size) - 1), np.array(sorted(keys), np.uint64)) for size, keys in prefixes.items()
        ]
        self._lengths = {first: sorted(own, reverse=True) for first, own in lengths.items()}

    def __bool__(self) -> bool:
        return bool(self._ids)

    def find(self, text: Bytes) -> Found:
        """Matches in ``text``, shape ``(n,)``. Raises `TooMany`."""
        at = self._candidates(text)
        if not len(at):
            return NOTHING
        if len(at) > MOST:
            raise TooMany
        view = text.data
        rows: list[tuple[int, int, int]] = []
        end = 0
        for start in at.tolist():
            if start < end:
                continue
            for length in self._lengths[bytes(view[start : start + 1])]:
                number = self._ids.get(bytes(view[start : start + length]))
                if number is not None and start + length <= len(text):  # near the end a longer slice is a shorter one
                    rows.append((start, length, number))
                    end = start + length
                    break
        if not rows:
            return NOTHING
        starts, lengths, ids = np.array(rows, np.int64).T
        return Found(starts, lengths, ids)

    def _candidates(self, text: Bytes) -> Places:
        """Places where a literal's first bytes stand; near the end some more."""
        if not self._ids or not len(text):
            return _NOTHING
        if len(self._firsts) <= _FEW:
            parts = [np.flatnonzero(np.equal(text, first, out=flags(len(text)))) for first in self._firsts]
            at = parts[0] if len(parts) == 1 else np.sort(np.concatenate(parts))
        else:
            at = np.flatnonzero(self._first.take(text))
        at = at[self._second[text.take(at), text.take(at + 1, mode="clip")]]
        most = len(text) - _PREFIX
        hit = at > most  # there the whole comparison tells
        if most >= 0:
            here = at[~hit]
            keys = np.ndarray((most + 1,), np.dtype("<u8"), text.data, strides=(1,))[here]
            found = np.zeros(len(here), np.bool_)
            for mask, known in self._prefixes:
                own = keys & mask
                found |= known.take(known.searchsorted(own), mode="clip") == own
            hit[~hit] = found
        return at[hit]
