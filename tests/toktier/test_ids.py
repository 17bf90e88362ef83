"""IDs as bytes: the same ones, and not copied where that is to be had."""

from __future__ import annotations

import numpy as np

from toktier.ids import EMPTY, from_bytes, to_bytes


def test_bytes_come_back_without_a_copy_where_they_are_all_of_them() -> None:
    raw = np.arange(9, dtype=np.uint32).tobytes()
    ids = from_bytes(raw)
    assert to_bytes(ids) is raw
    assert to_bytes(ids[:]) == raw
    for part in (ids[1:], ids[:-1], ids[::-1], ids[::2], ids.copy(), EMPTY):
        assert from_bytes(to_bytes(part)).tolist() == part.tolist()
    assert to_bytes(ids[::-1]) != raw
