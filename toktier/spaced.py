"""Cuts at even distances over a long text, asked for all at once.

Whether a place is a cut depends on three characters (`toktier.chunks`), so windows that were put one after the other
are asked like a text of their own: answers at a window's inside are those in the text, and only its first place and
its last, which meet another window, are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from toktier.chunks import CutRule

WINDOWS = (32, 512)
"""Places that are asked from each place on; the mean distance between cuts is about five characters, but text without
spaces may have none in a hundred. Where the first window has none, a longer one is asked."""
_AT_ONCE = 1024


def spaced_cuts(rule: CutRule, text: str, first: int, stop: int, step: int) -> list[int]:
    """For ``first``, ``first + step``, .. below ``stop`` the first cut in the last of `WINDOWS` from there on, in
    order; for places without one, nothing. ``first >= 1``, and all that is asked is more than two characters from the
    end of the text."""
    found: list[int] = []
    for start in range(first, stop, step * _AT_ONCE):
        places = np.arange(start, min(stop, start + step * _AT_ONCE), step)
        cuts = np.zeros(len(places), np.int64)
        for window in WINDOWS:
            open_ = np.flatnonzero(cuts == 0)
            if len(open_):
                cuts[open_] = _first_of_each(rule, text, places[open_], window)
        found += cuts[cuts > 0].tolist()
    return found


def _first_of_each(rule: CutRule, text: str, places: npt.NDArray[np.int64], window: int) -> npt.NDArray[np.int64]:
    """The first cut among ``window`` places from each of ``places`` on; 0 where there is none."""
    size = window + 2
    found = np.zeros(len(places), np.int64)
    cuts = rule.cuts("".join([text[at - 1 : at - 1 + size] for at in places.tolist()]))
    rows, inside = np.divmod(cuts, size)
    usable = (inside > 0) & (inside <= window)
    rows, inside = rows[usable], inside[usable]
    new = np.flatnonzero(np.diff(rows, prepend=-1))
    found[rows[new]] = places[rows[new]] - 1 + inside[new]
    return found
