"""Memory that goes round: never two readers of a row, and never more kept than is said."""

from __future__ import annotations

import numpy as np
import pytest

from toktier.gpu.router import scratch
from toktier.gpu.router.scratch import copied, flags, give, row


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "_rows", [])


def test_a_row_comes_again_when_it_was_given_back_and_not_before() -> None:
    first, second = row(1000), row(1000)
    assert not np.shares_memory(first, second)
    give(first)
    assert np.shares_memory(row(900), first)
    assert not np.shares_memory(row(900), first)


def test_ids_are_copied_into_rows() -> None:
    ids = np.arange(500, dtype=np.uint32)
    ids.flags.writeable = False
    own = copied(ids[3:])
    assert own.tolist() == list(range(3, 500))
    own[0] = 9
    give(own)
    assert np.shares_memory(row(1), own)
    assert copied(ids[:0]).tolist() == []


def test_the_shortest_row_that_suffices_comes_back() -> None:
    short, middle, far = row(1000), row(5000), row(60 << 20)
    give(far)
    assert scratch._rows == []  # with its spare room it is longer than all that is kept
    give(middle, short)
    assert np.shares_memory(row(900), short)
    assert np.shares_memory(row(900), middle)
    far = row(40 << 20)
    give(far)
    assert not np.shares_memory(row(10), far)  # so much memory is not for so little
    assert np.shares_memory(row(1 << 20), far)


def test_what_is_kept_is_bounded_and_only_rows_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch, "MOST_BYTES", 5000)
    rows = [row(1600) for _ in range(3)]
    give(*rows)
    assert [len(one) for one in scratch._rows] == [2000, 2000]  # each has a quarter more than was asked for
    assert not any(np.shares_memory(one, rows[0]) for one in scratch._rows)  # the first to come is the first to go
    monkeypatch.setattr(scratch, "MOST_ROWS", 1)
    give(rows[0])
    assert len(scratch._rows) == 1
    give(np.frombuffer(b"text", np.uint8), np.arange(3, dtype=np.uint32))
    assert len(scratch._rows) == 1


def test_a_mask_is_the_threads_own_and_as_long_as_asked() -> None:
    assert len(flags(10)) == 10
    assert np.shares_memory(flags(10), flags(7))
    assert len(flags(100_000)) == 100_000
