"""The table as it is asked: one pair, a whole text, conditions, surrogates."""

from __future__ import annotations

import random

import numpy as np
import pytest

from toktier.certificate.joins import Joins
from toktier.certificate.table import IF_APART, IF_NEXT, NO, YES, Table, TableCuts


def table(joins: Joins | None = None) -> Table:
    """Classes by the code point modulo four; the kind of (a, b) by both."""
    classes = (np.arange(0x110000) % 4).astype(np.uint8)
    kinds = [NO, YES, IF_NEXT, IF_APART | IF_NEXT] if joins else [NO, YES, IF_NEXT, NO]
    matrix = np.array([[kinds[(a + b) % 4] for b in range(4)] for a in range(4)], np.uint8)
    return Table(classes, matrix, np.array([True, False, True, False]), joins)


def one_join(a: int, b: int) -> Joins:
    """Merges may join a and b, and nothing else; symbols are the code points modulo 64."""
    numbers = (np.arange(0x110000) % 64).astype(np.uint32)
    size = 1 << 16
    asked = Joins(numbers, numbers, np.zeros(size, np.uint8))
    for slot in range(size):
        asked.table[slot] = 1
        if not asked.apart(a, b):
            return asked
        asked.table[slot] = 0
    raise AssertionError


@pytest.mark.parametrize("joined", [False, True])
def test_a_text_is_asked_as_its_pairs_are(joined: bool) -> None:
    rule = TableCuts(table(one_join(0, 3) if joined else None))
    assert rule.needs_next
    rng = random.Random(1)
    for _ in range(300):
        text = "".join(chr(rng.randrange(64)) for _ in range(rng.randrange(12)))
        single = [i for i in range(1, len(text)) if rule.is_cut(text, i)]
        assert rule.cuts(text).tolist() == single
        start, stop = sorted(rng.randrange(len(text) + 2) for _ in range(2))
        assert rule.cuts(text, start, stop).tolist() == [i for i in single if start <= i <= stop]


def test_each_condition_counts() -> None:
    rule = TableCuts(table(one_join(0, 3)))
    assert rule.is_cut("\0\1x", 1)  # plain
    assert rule.is_cut("\0\2\2", 1)  # the next one is a boundary
    assert not rule.is_cut("\0\2\1", 1)
    assert not rule.is_cut("\0\2", 1)  # or unknown
    assert not rule.is_cut("\0\3\2", 1)  # joined
    assert rule.is_cut("\4\3\2", 1)
    assert not rule.is_cut("\4\3\1", 1)
