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
            if end < len(ids) or rng.random() < 0.5:
                flat.put(start, end, array(new))
            else:
                assert flat.end_with(start, array(new).tobytes()) == common(ids, changed)
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


def test_the_shorter_side_is_moved_while_there_is_room() -> None:
    flat, ids = FlatIds(array([])), list(range(1000))
    flat.put(0, 0, array(ids))
    assert flat.begin
    for start, end, new, moved in (
        (10, 12, [7, 8, 9], -1),
        (5, 30, [1], 24),
        (900, 910, [5], 0),
        (960, 960, [6] * 9, 0),
    ):
        begin, buffer = flat.begin, flat.buffer.ctypes.data
        flat.put(start, end, array(new))
        ids[start:end] = new
        assert flat.begin - begin == moved
        assert flat.buffer.ctypes.data == buffer
        assert flat.view().tolist() == ids
    flat.put(3, 3, array([4] * 150))
    ids[3:3] = [4] * 150
    assert flat.view().tolist() == ids, "more than there is room for at the beginning"


def test_a_clone_has_the_same_memory_until_one_of_the_two_changes() -> None:
    for changes in ((0,), (1,), (0, 1), (1, 0, 1, 0)):
        both = [FlatIds(array([1, 2, 3]))]
        both.append(both[0].clone())
        assert both[0].buffer is both[1].buffer
        wanted = [[1, 2, 3], [1, 2, 3]]
        for number, which in enumerate(changes):
            if number % 2:
                both[which].put(1, 2, array([8, number]))
                wanted[which][1:2] = [8, number]
            else:
                both[which].end_with(2, array([9]).tobytes())
                wanted[which][2:] = [9]
            assert [flat.view().tolist() for flat in both] == wanted
        assert both[0].buffer is not both[1].buffer
    place = both[0].buffer.ctypes.data
    both[0].end_with(1, array([5]).tobytes())
    assert both[0].buffer.ctypes.data == place, "each has memory of its own by now"


def test_the_first_other_id_at_the_end_is_found_at_any_length() -> None:
    for size in (0, 1, 15, 16, 17, 400):
        for at in {0, size // 2, max(0, size - 1), size}:
            flat = FlatIds(np.arange(size + 3, dtype=np.uint32))
            new = np.arange(3, size + 3, dtype=np.uint32)
            new[at:] += 1
            assert flat.end_with(3, new.tobytes()) == 3 + at
            assert flat.view().tolist() == [0, 1, 2, *new.tolist()]
