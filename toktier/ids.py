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


def shared_prefix(a: Ids, b: Ids) -> int:
    """How many leading IDs two lists have in common."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size
