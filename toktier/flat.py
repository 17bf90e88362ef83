"""All IDs of one text in one array with room at both ends, so that the flat view of them is never built.

Invariants
1. ``size`` entries of ``buffer`` from ``begin`` on are the IDs.
2. Whoever holds a view of them, or of a part, keeps the buffer that it is of, and what the view shows does not change:
   a buffer that anyone refers to is left as it is, and never is one resized in place.

A change in the middle moves the IDs on one side of it: the shorter side, where there is room. IDs that have shrunk to a
fraction of what they were go to less memory.
"""

from __future__ import annotations

import ctypes
import sys

import numpy as np

from toktier.ids import Ids, from_bytes, shared_prefix

_OURS = 4
"""References to a buffer that nobody else reads: its own, its view's (as of all views of that), its memory's, and the
count's."""
_FEW = 64
"""So many bytes of IDs are compared one ID after the other: for one or two numpy is slow."""


class FlatIds:
    """Not thread-safe; clones may be used by different threads."""

    __slots__ = ("_address", "_memory", "_read", "begin", "buffer", "size")

    buffer: Ids
    begin: int
    size: int
    _address: int
    _memory: memoryview
    """Of the buffer, in bytes: without numpy an append of a few hundred IDs is put in its place in half the time."""
    _read: Ids

    def __init__(self, ids: Ids) -> None:
        """Takes ``ids``, a writable array that is no view, for its own."""
        self._adopt(ids if len(ids) else np.empty(_FEW, np.uint32), 0, len(ids))

    @property
    def nbytes(self) -> int:
        return self.buffer.nbytes

    def view(self) -> Ids:
        """Shape ``(size,)``, read-only, no copy."""
        return self._read[self.begin : self.begin + self.size]

    def clone(self) -> FlatIds:
        """The same IDs in the same memory, until one of the two changes."""
        other = FlatIds.__new__(FlatIds)
        other._adopt(self.buffer, self.begin, self.size)
        return other

    def end_with(self, start: int, raw: bytes) -> int:
        """Put other IDs, little-endian uint32, in the place of those from ``start`` on. How many leading ones stay."""
        begin, size, room = self.begin, self.size, len(self.buffer)
        need = start + (len(raw) >> 2)
        place = 4 * (begin + start)
        same = start if start == size else start + _same(self._memory[place : 4 * (begin + size)].tobytes(), raw)
        if begin + need > room or room > 4 * need + 4096 or sys.getrefcount(self.buffer) > _OURS:
            self._renew(start, size, from_bytes(raw))
        else:
            self._memory[place : place + len(raw)] = raw
            self.size = need
        return same

    def put(self, start: int, end: int, ids: Ids) -> None:
        """Put ``ids`` in the place of ``[start, end)``."""
        begin, size, count, room = self.begin, self.size, len(ids), len(self.buffer)
        shift = count - (end - start)
        need = size + shift
        left, right = shift <= begin, begin + need <= room
        if not (left or right) or room > 4 * need + 4096 or sys.getrefcount(self.buffer) > _OURS:
            self._renew(start, end, ids)
            return
        if shift:
            # one pass in place; an overlapping numpy assignment would go through a temporary copy
            if left and (start < size - end or not right):
                if start:
                    here = self._address + 4 * begin
                    ctypes.memmove(here - 4 * shift, here, 4 * start)
                self.begin = begin = begin - shift
            elif end < size:
                here = self._address + 4 * (begin + end)
                ctypes.memmove(here + 4 * shift, here, 4 * (size - end))
            self.size = need
        self.buffer[begin + start : begin + start + count] = ids

    def first_changed(self, start: int, end: int, new: Ids) -> int:
        """How many leading IDs stay what they are when ``new`` is put in the place of ``[start, end)``."""
        inside = min(end - start, len(new))
        old = self._read[self.begin + start : self.begin + self.size]
        same = shared_prefix(old[:inside], new) if inside else 0
        if same < inside or end == self.size:
            return start + same
        if end - start == len(new):
            return self.size
        # One of the two middles is a prefix of the other: the comparison runs on into the suffix, shifted.
        more = new[inside:]
        same = shared_prefix(old[inside:], more)
        if same == len(more):
            same += shared_prefix(old[inside + same :], old[end - start :])
        return start + inside + same

    def _renew(self, start: int, end: int, ids: Ids) -> None:
        """As `put`, in new memory."""
        old, count = self._read[self.begin : self.begin + self.size], len(ids)
        need = len(old) + count - (end - start)
        begin = need // 64 + 64
        # a session of some turns is not to move to new memory with every fifth append
        spare = need // 16 + min(need // 4, 4096)
        buffer = np.empty(begin + need + spare + 64, np.uint32)
        buffer[begin : begin + start] = old[:start]
        buffer[begin + start : begin + start + count] = ids
        buffer[begin + start + count : begin + need] = old[end:]
        self._adopt(buffer, begin, need)

    def _adopt(self, buffer: Ids, begin: int, size: int) -> None:
        self.buffer, self.begin, self.size = buffer, begin, size
        self._address = buffer.ctypes.data
        self._memory = buffer.data.cast("B")
        self._read = buffer.view()
        self._read.flags.writeable = False


def _same(old: bytes, new: bytes) -> int:
    """How many leading IDs are the same."""
    most = min(len(old), len(new))
    if most > _FEW:
        return shared_prefix(from_bytes(old), from_bytes(new))
    k = 0
    while k < most and old[k : k + 4] == new[k : k + 4]:
        k += 4
    return k >> 2
