"""The one representation of token IDs inside TokTier."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint32]
"""A flat, C-contiguous array of token IDs, shape ``(n,)``. Never a Python list on the hot path."""

EMPTY: Ids = np.empty(0, np.uint32)
EMPTY.setflags(write=False)


def from_bytes(raw: bytes) -> Ids:
    """Little-endian uint32 bytes to a read-only view, shape ``(len(raw) // 4,)``."""
    return np.frombuffer(raw, dtype="<u4")


def to_bytes(ids: Ids) -> bytes:
    """What `from_bytes` makes them of; without a copy where it did, and they are all of it."""
    base: object = ids.base
    if isinstance(base, bytes) and len(base) == ids.nbytes and ids.strides == (4,):
        return base
    return ids.tobytes()


def shared_prefix(a: Ids, b: Ids) -> int:
    """How many leading IDs two lists have in common. In growing blocks: the cost follows the answer."""
    size = min(len(a), len(b))
    if size <= 16:  # an open chunk: two short lists beat numpy
        left, right = a[:size].tolist(), b[:size].tolist()
        return size if left == right else next(k for k, one in enumerate(left) if one != right[k])
    start, block = 0, 1024
    while start < size:
        stop = min(start + block, size)
        differ = a[start:stop] != b[start:stop]
        k = int(differ.argmax())
        if differ[k]:
            return start + k
        start, block = stop, block * 4
    return size
