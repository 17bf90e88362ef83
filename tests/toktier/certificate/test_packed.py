"""The packed relation is exact: against the plain set, over all pairs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from toktier.certificate.packed import packed

EVERY = 7


def related(pairs: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    """All related pairs by the packed form."""
    given = np.array(sorted(pairs), np.uint32).reshape(-1, 2)
    begin, column, table = packed(given, count, EVERY)
    assert len(table) & (len(table) - 1) == 0
    assert table.dtype == begin.dtype == column.dtype == np.uint32
    found = table[begin[:, None] + column[None, :]] == begin[:, None]
    return {(int(x), int(y)) for x, y in zip(*found.nonzero(), strict=True)}


def expected(pairs: set[tuple[int, int]], count: int) -> set[tuple[int, int]]:
    return pairs | {pair for n in range(count) for pair in ((EVERY, n), (n, EVERY))}


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.9, 1.0])
def test_every_pair_is_found_and_no_other(share: float) -> None:
    rng = random.Random(round(share * 1000))
    count = 120
    pairs = {(x, y) for x in range(count) for y in range(count) if rng.random() < share}
    assert related(pairs, count) == expected(pairs, count)


def test_rows_of_very_different_lengths() -> None:
    rng = random.Random(1)
    count = 900
    pairs = {(x, y) for x in range(count) for y in rng.sample(range(count), min(count, 1 + 3000 // (1 + x * x)))}
    assert related(pairs, count) == expected(pairs, count)


def test_equal_rows_are_stored_once() -> None:
    count = 2000
    pairs = np.array([(x, y) for x in range(8, count) for y in range(8, 40)], np.uint32)
    begin, _, table = packed(pairs, count, EVERY)
    assert len(np.unique(begin)) == 3
    assert len(table) < 1024


def test_the_same_pairs_in_any_order_give_the_same_table() -> None:
    pairs = np.array([(x, x * x % 97) for x in range(8, 90)], np.uint32)
    for one, other in zip(
        packed(pairs, 100, EVERY), packed(np.concatenate([pairs[::-1], pairs]), 100, EVERY), strict=True
    ):
        assert np.array_equal(one, other)
