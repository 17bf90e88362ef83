"""Counts over time in bounded memory, whatever span the log covers and in whatever order its lines come."""

from __future__ import annotations

from collections import Counter, defaultdict

from proxy.audit_report.values import Names

MINUTE_US = 60_000_000
MOST = 1440
"""Intervals kept at most: a day by the minute."""


class Timeline:
    """Counts by interval and name. An interval is a minute, doubled whenever more than `MOST` would be needed."""

    def __init__(self) -> None:
        self.width_us = MINUTE_US
        self._counts: dict[int, Names] = defaultdict(Names)

    def count(self, moment: int, name: str) -> None:
        """Counts a name at a moment (microseconds since 1970)."""
        self._counts[moment // self.width_us].count(name)
        while len(self._counts) > MOST:
            self._double()

    def _double(self) -> None:
        self.width_us *= 2
        counts: dict[int, Names] = defaultdict(Names)
        for place, names in self._counts.items():
            for name, count in names.items():
                counts[place // 2].count(name, count)
        self._counts = counts

    def names(self) -> dict[str, int]:
        """Every name with its count, the most frequent first."""
        total = Names(256)
        for names in self._counts.values():
            for name, count in names.items():
                total.count(name, count)
        return total.sorted()

    def rows(self) -> list[tuple[int, dict[str, int]]]:
        """(start in microseconds, counts by name) of every interval that holds anything, in order."""
        return [(place * self.width_us, dict(names)) for place, names in sorted(self._counts.items())]

    def columns(self, most: int) -> tuple[int, int, list[Counter[str]]]:
        """(start, width, columns) with at most ``most`` columns without a gap; widths are whole minutes."""
        places = sorted(self._counts)
        if not places:
            return 0, self.width_us, []
        join = 1
        while places[-1] // join - places[0] // join >= most:
            join += 1 if join < 16 else join // 8
        first = places[0] // join
        columns: list[Counter[str]] = [Counter() for _ in range(places[-1] // join - first + 1)]
        for place, names in self._counts.items():
            columns[place // join - first].update(names)
        return first * join * self.width_us, join * self.width_us, columns
