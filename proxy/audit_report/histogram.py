"""Counts of whole numbers in little memory: percentiles within 0.8 %, the largest value exact.

Numbers below 128 have a bucket each. Above, every power of two is divided into 64 buckets, so that the middle of a
bucket is within 1/128 of every number in it, and a histogram has at most some 3,100 buckets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field


def _bucket(value: int) -> int:
    shift = value.bit_length() - 7
    return 64 * shift + (value >> shift) if shift > 0 else value


def _middle(bucket: int) -> int:
    if bucket < 128:
        return bucket
    shift = bucket // 64 - 1
    return ((bucket - 64 * shift) << shift) + (1 << shift) // 2


@dataclass
class Histogram:
    """Numbers from 0 on; all but the buckets is exact. ``smallest`` and ``largest`` have no meaning without numbers."""

    count: int = 0
    smallest: int = 0
    largest: int = 0
    buckets: Counter[int] = field(default_factory=Counter)

    def add(self, value: int) -> None:
        """Counts a number."""
        if value > self.largest:
            self.largest = value
        if value < self.smallest or not self.count:
            self.smallest = value
        self.count += 1
        self.buckets[_bucket(value)] += 1

    def include(self, other: Histogram) -> None:
        """Counts all numbers of another one."""
        if not other.count:
            return
        self.smallest = min(self.smallest, other.smallest) if self.count else other.smallest
        self.largest = max(self.largest, other.largest)
        self.count += other.count
        self.buckets.update(other.buckets)

    def percentile(self, share: float) -> int | None:
        """The number that ``share`` of all numbers do not exceed (nearest rank); None without numbers."""
        if not self.count:
            return None
        rank, seen = share * self.count, 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return max(self.smallest, min(_middle(bucket), self.largest))
        return self.largest

    def summary(self) -> dict[str, int | None]:
        """count, p50, p90, p99, max."""
        return {
            "count": self.count,
            "p50": self.percentile(0.5),
            "p90": self.percentile(0.9),
            "p99": self.percentile(0.99),
            "max": self.largest if self.count else None,
        }

    def between(self, edges: Sequence[float]) -> list[int]:
        """How many numbers are in each interval between two edges (ascending); beyond the ends, in the end ones."""
        counts = [0] * (len(edges) - 1)
        for bucket, count in self.buckets.items():
            middle = _middle(bucket)
            place = sum(edge <= middle for edge in edges[1:-1])
            counts[place] += count
        return counts
