"""Rows of digests as one string of bytes: a copy of a list would touch every object in it, and so would its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from toktier.known import Run

SIZE = 16
"""Bytes of one."""


class Digests(Sequence[bytes]):
    """Never changed. A slice (without a step) is a row of its own; rows are equal where their digests are."""

    __slots__ = ("packed",)

    def __init__(self, packed: bytes = b"") -> None:
        self.packed = packed
        """One after the other."""

    def __len__(self) -> int:
        return len(self.packed) // SIZE

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Digests: ...
    def __getitem__(self, at: int | slice) -> bytes | Digests:
        size = len(self.packed) // SIZE
        if isinstance(at, slice):
            start, stop, step = at.indices(size)
            if step != 1:
                raise ValueError("a row of digests has slices without a step only")
            return Digests(self.packed[start * SIZE : max(start, stop) * SIZE])
        if at < 0:
            at += size
        if not 0 <= at < size:
            raise IndexError("no such digest")
        return self.packed[at * SIZE : (at + 1) * SIZE]

    def __iter__(self) -> Iterator[bytes]:
        return (self.packed[at : at + SIZE] for at in range(0, len(self.packed), SIZE))

    def __eq__(self, other: object) -> bool:
        return self.packed == other.packed if isinstance(other, Digests) else NotImplemented

    __hash__ = None  # type: ignore[assignment] # compared, never looked up by


def taken_over(shared: Iterable[Run], size: int, old: Digests, fresh: Callable[[int], bytes]) -> Digests:
    """As `toktier.known.taken_over`: ``size`` digests, those in runs from ``old``."""
    parts: list[bytes] = []
    place = 0
    for run in shared:
        parts += map(fresh, range(place, run.at))
        parts.append(old.packed[run.old * SIZE : (run.old + run.size) * SIZE])
        place = run.at + run.size
    parts += map(fresh, range(place, size))
    return Digests(b"".join(parts))
