"""A long text as a row of strings, its leaves, so that a change costs what it touches and nothing is kept twice.

Whoever renders a conversation keeps the text of each message anyway; a rope over it takes these very strings as leaves.
How long a leaf is says nothing about where chunks end (`toktier.rope`): that is another index over the same text.

Invariants
1. The leaves, joined, are the text; none is empty. ``_starts[k]`` is where leaf k starts, and one more entry has the
   end.
2. Strings of the caller's own (`own`) are cut into leaves of at most `LEAF` characters, as a change copies up to two of
   them. Others' strings stay what they are, however long.
3. Where a change meets what was there, two leaves that are both shorter than `CRUMB` become one: so their number is
   bounded by the text and by what others keep, not by the history of changes.
"""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice

from toktier.fingerprint import agreed
from toktier.starts import put_sizes

LEAF = 4096
CRUMB = 128
_OURS = 2
"""References to a row that nobody else reads: its own and the count's."""


class Leaves:
    """Characters are counted as Python counts them. Not thread-safe."""

    __slots__ = ("_bytes", "_leaves", "_starts")

    def __init__(self) -> None:
        self._leaves: list[str] = []
        self._starts = array("q", (0,))
        self._bytes = 0

    @property
    def chars(self) -> int:
        return self._starts[-1]

    @property
    def text_bytes(self) -> int:
        """Bytes of the strings, whoever else holds them."""
        return self._bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of what is held beside the strings."""
        return sys.getsizeof(self._leaves) + sys.getsizeof(self._starts)

    def all(self) -> Sequence[str]:
        """The leaves. The row stays what it is: while anyone holds it, changes go to another one."""
        return self._leaves

    def clone(self) -> Leaves:
        """The strings are shared, the index is copied."""
        other = Leaves()
        other._leaves, other._starts, other._bytes = self._leaves.copy(), self._starts[:], self._bytes
        return other

    def text(self, start: int, end: int) -> str:
        """Characters ``[start, end)``, ``0 <= start <= end <= chars``. It may be a leaf itself."""
        if start == end:
            return ""
        leaves, starts = self._leaves, self._starts
        if start >= starts[-2]:  # asked with every append
            low = starts[-2]
            return leaves[-1][start - low : end - low]
        i = bisect_right(starts, start) - 1
        low = starts[i]
        if end <= starts[i + 1]:
            return leaves[i][start - low : end - low]
        j = bisect_left(starts, end, i + 1) - 1
        return "".join([leaves[i][start - low :], *leaves[i + 1 : j], leaves[j][: end - starts[j]]])

    def add(self, text: str) -> None:
        """Put ``text``, which must not be empty, at the end, in leaves of the rope's own."""
        starts = self._starts
        if len(text) > LEAF or (self._leaves and len(self._leaves[-1]) < CRUMB):
            self.put(starts[-1], starts[-1], own(text))
            return
        leaves = self._row()
        one = text if text.isascii() else without_utf8(text)
        leaves.append(one)
        starts.append(starts[-1] + len(one))
        self._bytes += sys.getsizeof(one)

    def put(self, start: int, end: int, parts: Sequence[str]) -> None:
        """Make ``parts``, of which none may be empty, what stands at ``[start, end)``."""
        leaves, starts = self._row(), self._starts
        size = len(leaves)
        if start == starts[-1] and not (size and len(leaves[-1]) < CRUMB):
            for one in parts:
                leaves.append(one)
                starts.append(starts[-1] + len(one))
                self._bytes += sys.getsizeof(one)
            return
        i = size if start == starts[-1] else bisect_right(starts, start) - 1
        j = size if end == starts[-1] else max(bisect_left(starts, end), i)
        new = list(parts)
        if start > starts[i]:
            _add(new, 0, leaves[i][: start - starts[i]])
        if end < starts[j]:
            _add(new, len(new), leaves[j - 1][end - starts[j - 1] :])
        if i and len(leaves[i - 1]) < CRUMB and (len(new[0]) if new else j < size and len(leaves[j])) < CRUMB:
            i -= 1
            _add(new, 0, leaves[i])
        if j < size and new and len(leaves[j]) < CRUMB and len(new[-1]) < CRUMB:
            _add(new, len(new), leaves[j])
            j += 1
        self._bytes += sum(map(sys.getsizeof, new)) - sum(map(sys.getsizeof, leaves[i:j]))
        leaves[i:j] = new
        put_sizes(starts, i, j, map(len, new))

    def _row(self) -> list[str]:
        """The leaves, to be changed."""
        if sys.getrefcount(self._leaves) > _OURS:
            self._leaves = self._leaves.copy()
        return self._leaves

    def common_prefix(self, start: int, text: str) -> int:
        """How many characters from ``start`` on are the first ones of ``text``."""
        starts = self._starts
        if start == starts[-1]:
            return 0
        i = bisect_right(starts, start) - 1
        skip, done = start - starts[i], 0
        for leaf in islice(self._leaves, i, None):
            if skip:
                leaf, skip = leaf[skip:], 0
            if not text.startswith(leaf, done):
                return done + _prefix(leaf, text, done)
            done += len(leaf)
        return done

    def common_suffix(self, text: str, most: int) -> int:
        """How many characters before the end are the last ones of ``text``, at most ``most``; ``most <= len(text)``."""
        done = 0
        for leaf in reversed(self._leaves):
            size = len(leaf)
            if size > most - done or not text.endswith(leaf, 0, len(text) - done):
                return done + _suffix(leaf, text, len(text) - done, min(size, most - done))
            done += size
        return done


def own(text: str) -> list[str]:
    """``text`` as leaves that nobody else holds.

    A non-ASCII string that an engine was given holds its UTF-8 form as well, for as long as it lives; slices do not.
    """
    if len(text) > LEAF:
        return [text[at : at + LEAF] for at in range(0, len(text), LEAF)]
    if not text:
        return []
    return [text if text.isascii() else without_utf8(text)]


def without_utf8(text: str) -> str:
    """An equal string without the UTF-8 form that CPython keeps with a string once an engine has asked for it."""
    return text[:-1] + text[-1:]


def _add(row: list[str], at: int, text: str) -> None:
    """Puts ``text`` at one end of ``row``, in one with what stands there where both are short."""
    if row and len(text) < CRUMB:
        if at == 0 and len(row[0]) < CRUMB:
            row[0] = text + row[0]
            return
        if at and len(row[-1]) < CRUMB:
            row[-1] += text
            return
    row.insert(at, text)


def _prefix(leaf: str, text: str, at: int) -> int:
    """How many leading characters of ``leaf`` stand at ``at``."""
    return agreed(min(len(leaf), len(text) - at), lambda m, n: text.startswith(leaf[m:n], at + m))


def _suffix(leaf: str, text: str, end: int, most: int) -> int:
    """How many trailing characters of ``leaf``, at most ``most``, stand before ``end``."""
    size = len(leaf)
    return agreed(most, lambda m, n: text.endswith(leaf[size - n : size - m], 0, end - m))
