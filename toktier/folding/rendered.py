"""The text of a render as a row of chunks, most of which are those of the render before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, islice
from typing import overload

from toktier.folding.reasons import Fallback

Segment = list[str]
"""Chunks in a row: those of one loop (its record's own list), or what stands between two loops."""


class Chunks(Sequence[str]):
    """A row of chunks; nothing is copied to make one. Some may be empty.

    The chunks are those of the session's state: after its next render this row is out of date and raises
    `RuntimeError`. Keep what you need of it before.
    """

    __slots__ = ("_ends", "_segments", "_stale")

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments
        self._ends = list(accumulate(map(len, segments)))
        self._stale = False

    def expire(self) -> None:
        self._stale = True

    def _current(self) -> Sequence[Segment]:
        if self._stale:
            raise RuntimeError("the session has rendered again since; these chunks are no longer what they were")
        return self._segments

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._current())

    @overload
    def __getitem__(self, at: int) -> str: ...
    @overload
    def __getitem__(self, at: slice) -> list[str]: ...
    def __getitem__(self, at: int | slice) -> str | list[str]:
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step == 1:
                return list(islice(self.since(start), max(0, stop - start)))
            return [self[one] for one in range(start, stop, step)]
        if at < 0:
            at += len(self)
        if not 0 <= at < len(self):
            raise IndexError("chunk index out of range")
        segment = bisect_right(self._ends, at)
        return self._current()[segment][at - self._start(segment)]

    def _start(self, segment: int) -> int:
        return self._ends[segment - 1] if segment else 0

    def since(self, start: int) -> Iterator[str]:
        """The chunks from index ``start`` on; takes no time for those before."""
        segments = self._current()
        first = bisect_right(self._ends, start)
        if first == len(segments):
            return iter(())
        return chain(segments[first][start - self._start(first) :], *segments[first + 1 :])

    def text(self) -> str:
        return "".join(self)


@dataclass(frozen=True, slots=True)
class Rendered:
    """What `FoldState.render` gives."""

    chunks: Chunks
    first_changed_chunk: int
    """Chunks before this index are those of the session's last render, at the same index. The first after a full
    render is 0. ``len(chunks)`` where nothing changed (there may have been more)."""
    common: int
    """Characters of those chunks: the text up to here is the last render's."""
    chars: int
    """Characters of the whole text."""
    iterations: int
    """Iterations of folded loops that ran."""
    fell_back: Fallback | None
    """Why the text was rendered in full; None where it was not."""
