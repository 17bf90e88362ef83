"""Messages of an earlier body that stand elsewhere in a new one, found by how they begin (`proxy.beside`).

What is found is a guess: whoever asks compares the bytes. Work is bounded: each look-up notes four times as many
messages as there were, `_MOST` together, and tells of `_ALIKE` before the expected one and behind it.
"""

from __future__ import annotations

from bisect import bisect_left

from proxy.jsonspan import Places

_SAMPLE = 64
_FEW = 64
_MOST = 4096
_ALIKE = 4


class Displaced:
    """The messages of ``old`` from number ``first`` on; ``starts``: where each begins."""

    def __init__(self, old: bytes, starts: Places, first: int) -> None:
        self._old, self._starts = old, starts
        self._numbers: dict[bytes, list[int]] = {}
        self._first = self._end = first
        self._size = _FEW

    def like(self, raw: bytes, at: int, expected: int) -> list[int]:
        """The numbers of those that begin as what stands at ``at`` in ``raw``: from ``expected`` on, then before it.

        What follows a message that is shorter than the sample has to be the same too.
        """
        self._note()
        numbers = self._numbers.get(raw[at : at + _SAMPLE], [])
        place = bisect_left(numbers, expected)
        return [*numbers[place : place + _ALIKE], *numbers[max(0, place - _ALIKE) : place]]

    def _note(self) -> None:
        end = self._first + self._size
        for number, start in enumerate(self._starts[self._end : end].tolist(), self._end):
            self._numbers.setdefault(self._old[start : start + _SAMPLE], []).append(number)
        self._end, self._size = end, min(4 * self._size, _MOST)
