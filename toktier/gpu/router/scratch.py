"""Memory that requests use one after the other: what is new to a process costs more than what is done with it.

Invariant: whoever takes a row gives it back when nobody reads it any more, or never. A row of which that is not sure,
because a request was given up while a device may still be at it, is left to the collector.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.ids import Ids

Bytes = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]

MOST_ROWS, MOST_BYTES = 8, 64 << 20
"""Of what is kept."""

_lock = threading.Lock()
_rows: list[Bytes] = []
_own = threading.local()


def flags(size: int) -> Flags:
    """A mask of ``size``, the same memory again at this thread's next call."""
    mask: Flags | None = getattr(_own, "mask", None)
    if mask is None or not size <= len(mask) <= 16 * size + (1 << 20):
        mask = _own.mask = np.empty(size, np.bool_)
    return mask[:size]


def row(size: int) -> Bytes:
    """``size`` bytes, whatever they are: the shortest row that is kept and suffices."""
    with _lock:
        fits = [k for k, one in enumerate(_rows) if size <= len(one) <= 64 * size + (1 << 22)]
        if fits:
            return _rows.pop(min(fits, key=lambda k: len(_rows[k])))[:size]
    return np.empty(size + size // 4, np.uint8)[:size]


def copied(ids: Ids) -> Ids:
    """A copy of them in a row. The interpreter's lock is kept: among busy threads it would be back late."""
    if not len(ids):
        return ids.copy()
    own = row(ids.nbytes)
    own.data[:] = ids.data.cast("B")
    return own.view(np.uint32)


def give(*rows: Bytes | Flags | Ids) -> None:
    """Nobody reads them any more, nor any part of them."""
    with _lock:
        for one in rows:
            owner: Any = one if one.base is None else one.base
            if isinstance(owner, np.ndarray) and owner.dtype == np.uint8:
                _rows.append(owner)
        while len(_rows) > MOST_ROWS or sum(map(len, _rows)) > MOST_BYTES:
            del _rows[0]  # the one that was not wanted for the longest time
