"""All IDs of one text in one array with room to grow, so that the flat view of them is never built.

Invariants
1. The first ``size`` entries of ``buffer`` are the IDs.
2. Whoever holds a view of them, or of a part, keeps the buffer that it is of, and what the view shows does not change:
   a buffer that anyone refers to is left as it is, and never is one resized in place.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from toktier.ids import Ids, shared_prefix

_OURS = 3
"""References to a buffer that nobody else reads: its own, its view's (as of all views of that), and the count's."""


class FlatIds:
    """Not thread-safe."""

    __slots__ = ("_address", "_read", "buffer", "size")

    def __init__(self, ids: Ids) -> None:
        """Takes ``ids``, a writable array, for its own."""
        self.size = len(ids)
        self._adopt(ids)

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def view(self) -> Ids:
        """Shape ``(size,)``, read-only, no copy."""
        return self._read[: self.size]

    def put(self, start: int, end: int, ids: Ids) -> None:
        """Put ``ids`` in the place of ``[start, end)``."""
        size, count = self.size, len(ids)
        shift = count - (end - start)
        self.size = need = size + shift
        if len(self.buffer) < need or sys.getrefcount(self.buffer) > _OURS:
            most = max(need, size)
            buffer = np.empty(most + most // 16 + 256, np.uint32)
            buffer[:size] = self.buffer[:size]
            self._adopt(buffer)
        buffer = self.buffer
        if shift and end < size:
            # one pass in place; an overlapping numpy assignment would go through a temporary copy
            here = self._address + 4 * end
            ctypes.memmove(here + 4 * shift, here, 4 * (size - end))
        buffer[start : start + count] = ids
        if len(buffer) > 4 * need + 4096:  # it has shrunk to a fraction of what it was
            self._adopt(buffer[: need + need // 16 + 256].copy())

    def first_changed(self, start: int, end: int, new: Ids) -> int:
        """How many leading IDs stay what they are when ``new`` is put in the place of ``[start, end)``."""
        inside = min(end - start, len(new))
        same = shared_prefix(self.buffer[start : start + inside], new) if inside else 0
        if same < inside or end == self.size:
            return start + same
        if end - start == len(new):
            return self.size
        old = self.buffer[start : self.size]
        # One of the two middles is a prefix of the other: the comparison runs on into the suffix, shifted.
        more = new[inside:]
        same = shared_prefix(old[inside:], more)
        if same == len(more):
            same += shared_prefix(old[inside + same :], self.buffer[end : self.size])
        return start + inside + same

    def _adopt(self, buffer: Ids) -> None:
        self.buffer = buffer
        self._address = buffer.ctypes.data
        self._read = buffer.view()
        self._read.flags.writeable = False
