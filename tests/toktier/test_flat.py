"""The flat IDs beside a plain list."""

from __future__ import annotations

import random

import numpy as np

from toktier.flat import FlatIds
from toktier.ids import shared_prefix


def common(a: list[int], b: list[int]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def array(values: list[int]) -> np.ndarray:
    return np.array(values, np.uint32)


def test_random_changes_against_a_list() -> None:
    rng = random.Random(1)
    for _ in range(20):
        flat, ids = FlatIds(array([])), list[int]()
        for _ in range(60):
            start = rng.choice([0, len(ids), rng.randint(0, len(ids))])
            end = rng.choice([start, len(ids), rng.randint(start, len(ids))])
            new = rng.choices(range(3), k=rng.choice([0, 1, 2, 20, 900]))
            changed = ids[:start] + new + ids[end:]
            assert flat.first_changed(start, end, array(new)) == common(ids, changed)
            flat.put(start, end, array(new))
            ids = changed
            assert flat.view().tolist() == ids
            assert flat.size == len(ids)
            assert flat.nbytes <= 4 * (4 * len(ids) + 4096)


def test_views_are_read_only_and_keep_what_they_show() -> None:
    flat = FlatIds(array([1, 2, 3]))
    view = flat.view()
    assert not view.flags.writeable
    assert np.shares_memory(view, flat.buffer)
    flat.put(0, 2, array([7, 8]))
    assert view.tolist() == [1, 2, 3]
    assert flat.view().tolist() == [7, 8, 3]
    place = flat.buffer
    del place
    before = flat.buffer.ctypes.data
    flat.put(0, 2, array([5, 6]))
    assert flat.buffer.ctypes.data == before, "nobody looks, so it is changed in place"


def test_shared_prefix_at_any_length() -> None:
    for size in (0, 1, 16, 17, 256, 300, 5000):
        a = np.arange(size, dtype=np.uint32)
        assert shared_prefix(a, a) == size
        for at in {0, size // 2, size - 1} if size else ():
            b = a.copy()
            b[at] += 1
            assert shared_prefix(a, b) == shared_prefix(b, a) == at
        assert shared_prefix(a, np.append(a, np.uint32(7))) == size
