"""A failure made small: delta debugging (Zeller, Hildebrandt 2002) over the characters of one text or of several."""

from __future__ import annotations

from collections.abc import Callable

BUDGET = 3000
"""Texts tried at most."""


class _Spent(Exception):
    pass


def smallest(text: str, fails: Callable[[str], bool], *, around: int | None = None, budget: int = BUDGET) -> str:
    """A text that ``fails`` and of which no single character can be left out, unless the budget ends before.

    ``text`` fails. ``around``: where the fault is thought to be; windows around it are tried first.
    """
    best = text
    left = budget

    def still(candidate: str) -> bool:
        nonlocal best, left
        if left <= 0:
            raise _Spent
        left -= 1
        if not fails(candidate):
            return False
        best = candidate
        return True

    try:
        if around is not None:
            width = 1
            while 2 * width < len(text) and not still(text[max(0, around - width) : around + width]):
                width *= 2
        _reduce(best, still)
    except _Spent:
        pass
    return best


def _reduce(text: str, still: Callable[[str], bool]) -> None:
    """Leave out halves, quarters and so on, down to single characters, until nothing more can go."""
    parts = 2
    while len(text) >= 2:
        size = -(-len(text) // parts)
        for start in range(0, len(text), size):
            shorter = text[:start] + text[start + size :]
            if shorter and still(shorter):
                text = shorter
                parts = max(2, parts - 1)
                break
        else:
            if size == 1:
                return
            parts = min(len(text), parts * 2)


def escaped(text: str) -> str:
    """Printable ASCII as it is, all else as code points: safe on any terminal, and exact."""
    return "".join(
        c if c.isascii() and c.isprintable() and c != "\\" else "\\\\" if c == "\\" else _point(ord(c)) for c in text
    )


def _point(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
