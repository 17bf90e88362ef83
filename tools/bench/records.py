"""One measured row, its JSON file, and the Markdown table made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

OURS = "toktier-proxy"


@dataclass(frozen=True)
class Record:
    """Percentiles of ``n`` runs in microseconds. ``size`` is the context in characters before the change."""

    account: str
    case: str
    engine: str
    size: int
    n: int
    p50_us: float
    p90_us: float
    p99_us: float


def record(account: str, case: str, engine: str, size: int, nanoseconds: Sequence[int]) -> Record:
    """A row from single timings. Percentiles are nearest rank, so with few runs the high ones are the slowest run."""
    ordered = sorted(nanoseconds)

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000, 1)

    return Record(account, case, engine, size, len(ordered), rank(0.5), rank(0.9), rank(0.99))


def write(path: Path, rows: Iterable[Any]) -> None:
    """A JSON array of `Record` or another dataclass, one row a line. Missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(asdict(row), ensure_ascii=False) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


Row = TypeVar("Row")


@overload
def read(path: Path) -> list[Record]: ...
@overload
def read(path: Path, kind: type[Row]) -> list[Row]: ...
def read(path: Path, kind: type[Any] = Record) -> list[Any]:
    """The rows of a file that `write` made of dataclasses ``kind``."""
    return [kind(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


def table(rows: Sequence[Record]) -> str:
    """Markdown: one table for each account and case; times are P50 / P90 / P99, ratios are of the P50."""
    out: list[str] = []
    for account, case in dict.fromkeys((row.account, row.case) for row in rows):
        own = [row for row in rows if (row.account, row.case) == (account, case)]
        engines = list(dict.fromkeys(row.engine for row in own))
        found = {(row.size, row.engine): row for row in own}
        out += [f"**{account}, {case}**", ""]
        out.append("| characters | " + " | ".join(engines) + " |")
        out.append("|---:|" + "---:|" * len(engines))
        for size in sorted({row.size for row in own}):
            ours = found.get((size, OURS))
            cells = [_cell(found.get((size, engine)), ours) for engine in engines]
            out.append(f"| {size:,} | " + " | ".join(cells) + " |")
        out.append("")
    return "\n".join(out)


def _cell(row: Record | None, ours: Record | None) -> str:
    if row is None:
        return "-"
    text = " / ".join(map(in_words, (row.p50_us, row.p90_us, row.p99_us)))
    if ours is None or row.engine == ours.engine:
        return text
    return f"{text} ({row.p50_us / ours.p50_us:,.0f}x)"


def in_words(microseconds: float) -> str:
    """A time with its unit, in three digits or less."""
    if microseconds < 1000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds / 1_000_000:.3g} s"
