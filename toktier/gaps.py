"""What of a text's chunks has to be encoded again when it becomes another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

_ANCHORS = 12
"""Chunks that are looked for in a changed text before the rest is given up; each costs one `str.find`."""


class Gap(NamedTuple):
    """Chunks ``[i, j)`` are to be replaced by ``text``."""

    i: int
    j: int
    text: str


def gaps_of(chunk: Callable[[int], str], least: int, i: int, j: int, text: str, start: int, end: int) -> list[Gap]:
    """What turns chunks ``[i, j)``, of which ``chunk`` gives each, into ``text[start:end]``; both ends differ.

    Several changes at once (a pruned tool result and a new turn) leave whole chunks between them. They are found by
    trying a chunk here and there, further and further from where the texts part; the run around a found one is kept.
    Chunks shorter than ``least`` are not looked for.
    """
    gaps: list[Gap] = []
    step, tries, k = 1, 0, i
    while k < j and start < end and tries < _ANCHORS:
        tries += 1
        looked_for = chunk(k)
        place = text.find(looked_for, start, end) if len(looked_for) >= least else -1
        if place < 0:
            k += step
            step *= 2
            continue
        low = k
        while low > i and text.endswith(before := chunk(low - 1), start, place):
            low -= 1
            place -= len(before)
        gaps.append(Gap(i, low, text[start:place]))
        i, start = low, place
        while i < j and text.startswith(after := chunk(i), start, end):
            start += len(after)
            i += 1
        step, k = 1, i
    if i < j or start < end or not gaps:
        gaps.append(Gap(i, j, text[start:end]))
    return gaps
