"""One measured row, its JSON file, and the Markdown table made of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar, overload

OURS = "toktier-proxy"


@dataclass(frozen=True)
class Record:
    """Percentiles of ``n`` runs in microseconds. ``size`` is the context in characters before the change.

    ``served`` and ``scanned``: bytes of context that one run delivered, and of text that it looked at for that; 0 where
    it is not told. ``n`` is 0 where there is no number, for the reason in ``note``; a note may also stand beside one.
    """

    account: str
    case: str
    engine: str
    size: int
    n: int
    p50_us: float
    p90_us: float
    p99_us: float
    served: int = 0
    scanned: int = 0
    note: str = ""


def record(
    account: str,
    case: str,
    engine: str,
    size: int,
    nanoseconds: Sequence[int],
    *,
    served: int = 0,
    scanned: int = 0,
    note: str = "",
) -> Record:
    """A row from single timings. Percentiles are nearest rank, so with few runs the high ones are the slowest run."""
    ordered = sorted(nanoseconds)

    def rank(share: float) -> float:
        return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 1000, 1)

    percentiles = (rank(0.5), rank(0.9), rank(0.99)) if ordered else (0.0, 0.0, 0.0)
    return Record(account, case, engine, size, len(ordered), *percentiles, served, scanned, note)


def unmeasured(account: str, case: str, engine: str, size: int, note: str) -> Record:
    """A row that says why there is no number."""
    return record(account, case, engine, size, (), note=note)


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


def table(rows: Sequence[Record], medians: bool = False, names: Mapping[str, str] | None = None) -> str:
    """Markdown: one table for each account and case; times are P50 / P90 / P99, ratios are of the P50. Notes below.

    With ``medians`` only the P50. ``names``: what engines are called in the head, where it is not their name; what
    begins with `OURS` there has no ratio.
    """
    names = names or {}
    out: list[str] = []
    for account, case in dict.fromkeys((row.account, row.case) for row in rows):
        own = [row for row in rows if (row.account, row.case) == (account, case)]
        out += [f"**{account}, {case}**", "", *_lines(own, medians, names), ""]
        notes: dict[tuple[str, str], list[int]] = {}
        for row in own:
            if row.note:
                notes.setdefault((row.engine, row.note), []).append(row.size)
        told = [f"- {names.get(engine, engine)}, {_sizes(sizes)}: {note}" for (engine, note), sizes in notes.items()]
        out += [*told, *([""] if told else [])]
    return "\n".join(out)


def _lines(own: Sequence[Record], medians: bool, names: Mapping[str, str]) -> list[str]:
    engines = list(dict.fromkeys(row.engine for row in own))
    heads = [names.get(engine, engine) for engine in engines]
    found = {(row.size, row.engine): row for row in own}
    out = ["| characters | " + " | ".join(heads) + " |", "|---:|" + "---:|" * len(engines)]
    for size in sorted({row.size for row in own}):
        ours = found.get((size, OURS))
        beside = [None if head.startswith(OURS) else ours for head in heads]
        cells = [_cell(found.get((size, engine)), one, medians) for engine, one in zip(engines, beside, strict=True)]
        out.append(f"| {size:,} | " + " | ".join(cells) + " |")
    return out


def _sizes(sizes: Sequence[int]) -> str:
    return ", ".join(f"{size:,}" for size in sorted(sizes)) + " characters"


def _cell(row: Record | None, ours: Record | None, medians: bool) -> str:
    if row is None or not row.n:
        return "-"
    shown = (row.p50_us,) if medians else (row.p50_us, row.p90_us, row.p99_us)
    text = " / ".join(map(in_words, shown))
    if ours is None or ours.p50_us <= 0:
        return text
    ratio = row.p50_us / ours.p50_us
    return f"{text} ({ratio:,.0f}x)" if ratio >= 10 else f"{text} ({ratio:.2g}x)"


def throughput(rows: Sequence[Record]) -> str:
    """Markdown: bytes a second, served and scanned, of the rows that tell them. The two are never added up."""
    out = ["| account, case | engine | characters | served | scanned |", "|---|---|---:|---:|---:|"]
    for row in rows:
        if row.n and row.served:
            rates = " | ".join(_rate(count, row.p50_us) for count in (row.served, row.scanned))
            out.append(f"| {row.account}, {row.case} | {row.engine} | {row.size:,} | {rates} |")
    return "\n".join(out)


def _rate(count: int, microseconds: float) -> str:
    megabytes = count / microseconds
    if not count:
        return "-"
    return f"{megabytes:,.3g} MB/s" if megabytes < 1000 else f"{megabytes / 1000:,.3g} GB/s"


def in_words(microseconds: float) -> str:
    """A time with its unit, in three digits or less."""
    if abs(microseconds) < 1000:
        return f"{microseconds:.0f} µs"
    if abs(microseconds) < 1_000_000:
        return f"{microseconds / 1000:.3g} ms"
    return f"{microseconds / 1_000_000:.3g} s"
