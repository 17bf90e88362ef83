"""Messages that stand elsewhere in a new body: who is told of, and how many."""

from __future__ import annotations

import numpy as np

from proxy.displaced import Displaced


def rows(*texts: str) -> tuple[bytes, np.ndarray]:
    lines = [text.ljust(80, ".").encode() for text in texts]
    return b"".join(lines), np.arange(len(lines), dtype=np.int64) * 80


def test_those_that_begin_alike_are_told_the_expected_ones_first() -> None:
    raw, starts = rows("a", "b", "a", "a", "b", "a")
    found = Displaced(raw, starts, 0)
    assert found.like(raw, 0, 0) == [0, 2, 3, 5]
    assert found.like(raw, 0, 3) == [3, 5, 0, 2]
    assert found.like(raw, 80, 5) == [1, 4]
    assert found.like(raw, 7, 0) == []
    assert Displaced(raw, starts, 2).like(raw, 0, 0) == [2, 3, 5]


def test_the_work_for_any_number_of_messages_is_bounded() -> None:
    raw, starts = rows(*["a"] * 5000, "b")
    found = Displaced(raw, starts, 1000)
    sizes = []
    for _ in range(5):
        found.like(raw, 0, 0)
        sizes.append(sum(map(len, found._numbers.values())))
    assert sizes == [64, 256, 1024, 4001, 4001]
    assert found.like(raw, 0, 2000) == [*range(2000, 2004), *range(1996, 2000)]
    assert found.like(raw, 80 * 5000, 0) == [5000]
    far = Displaced(raw, starts, 0)
    assert [far.like(raw, 80 * 5000, 0) for _ in range(9)] == [[]] * 9
