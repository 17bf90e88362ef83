from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from proxy.audit_report.histogram import Histogram
from proxy.audit_report.values import LARGEST

numbers = st.lists(st.integers(0, 200) | st.integers(0, 10**6) | st.integers(0, LARGEST), min_size=1, max_size=200)


def filled(values: list[int]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(numbers, st.sampled_from([0.0, 0.01, 0.5, 0.9, 0.99, 1.0]))
def test_percentiles_are_within_their_error(values: list[int], share: float) -> None:
    exact = sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
    found = filled(values).percentile(share)
    assert found is not None
    assert abs(found - exact) <= exact / 128
    if exact < 128:
        assert found == exact


@given(numbers)
def test_ends_and_count_are_exact(values: list[int]) -> None:
    histogram = filled(values)
    assert (histogram.count, histogram.smallest, histogram.largest) == (len(values), min(values), max(values))
    assert len(histogram.buckets) <= 3200
    summary = histogram.summary()
    assert summary["max"] == max(values)
    assert summary["p50"] <= summary["p90"] <= summary["p99"] <= summary["max"]  # type: ignore[operator]


@given(numbers, st.integers(1, 12))
def test_intervals_hold_every_number(values: list[int], parts: int) -> None:
    edges = [10**step for step in range(parts + 1)]
    assert sum(filled(values).between(edges)) == len(values)


def test_intervals() -> None:
    assert filled([0, 5, 10, 99, 100, 5000]).between([1, 10, 100, 1000]) == [2, 2, 2]


def test_without_numbers() -> None:
    assert Histogram().summary() == {"count": 0, "p50": None, "p90": None, "p99": None, "max": None}
