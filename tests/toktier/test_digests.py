"""Rows of digests beside lists of the same."""

from __future__ import annotations

import random

import pytest

from toktier import known
from toktier.digests import SIZE, Digests, taken_over
from toktier.fingerprint import common_prefix, common_suffix
from toktier.known import Run


def row(rng: random.Random, size: int) -> list[bytes]:
    return [rng.randbytes(SIZE) for _ in range(size)]


def test_they_read_as_a_list_does() -> None:
    rng = random.Random(1)
    for size in (0, 1, 7, 40):
        plain = row(rng, size)
        made = Digests(b"".join(plain))
        assert len(made) == size
        assert list(made) == plain
        assert [made[k] for k in range(-size, size)] == [plain[k] for k in range(-size, size)]
        for _ in range(50):
            start, stop = rng.choice([None, *range(-50, 50)]), rng.choice([None, *range(-50, 50)])
            assert list(made[start:stop]) == plain[start:stop]
            assert made[start:stop] == Digests(b"".join(plain[start:stop]))
        for beyond in (size, -size - 1):
            with pytest.raises(IndexError):
                made[beyond]
    with pytest.raises(ValueError, match="step"):
        made[::2]
    assert made != list(made)


def test_what_two_rows_share_at_either_end() -> None:
    rng = random.Random(2)
    for _ in range(100):
        a = row(rng, rng.randint(0, 12))
        at = rng.randint(0, len(a))
        b = a[:at] + row(rng, rng.randint(0, 2)) + a[min(len(a), at + rng.randint(0, 2)) :]
        ours, theirs = Digests(b"".join(a)), Digests(b"".join(b))
        assert common_prefix(ours, theirs) == common_prefix(a, b)
        assert common_suffix(ours, theirs, 5) == common_suffix(a, b, 5)


def test_runs_are_taken_over_and_the_rest_is_made() -> None:
    rng = random.Random(3)
    for _ in range(200):
        old = row(rng, 10)
        runs: list[Run] = []
        place = 0
        for _ in range(rng.randint(0, 3)):
            place += rng.randint(0, 2)
            count = rng.randint(1, 4)
            runs.append(Run(place, rng.randint(0, 10 - count), count))
            place += count
        size = place + rng.randint(0, 2)
        fresh = row(rng, size)
        made = taken_over(runs, size, Digests(b"".join(old)), fresh.__getitem__)
        assert list(made) == known.taken_over(runs, size, old, fresh.__getitem__)
