"""Plots of measured rows: SVG, written here, the same bytes for the same rows.

Both axes are logarithmic: x is the context in characters, y the median in microseconds. A line is an engine; a bar at
each point goes from the median to the 99th percentile. The colours are told apart by people who see no red or no green.
What a logarithmic axis has no place for, and what has no number, is named below the picture.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape

from tools.bench.records import OURS, Record, in_words

_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#b8860b", "#555555", "#8a5cd1")
_WIDTH, _HEIGHT = 820, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 230, 40, 50
_LINE = 18
"""Between two lines of words below."""
_STYLE = "font-family='system-ui, sans-serif' font-size='12' fill='#222'"


def plot(
    rows: Sequence[Record],
    title: str,
    x_label: str = "characters of context",
    names: Mapping[str, str] | None = None,
) -> str:
    """One picture of rows of one case. Rows without a number, or not above 0, are not drawn but named; ``names``: what
    engines are called, where it is not their name."""
    names = names or {}
    rows = [replace(row, engine=names.get(row.engine, row.engine)) for row in rows]
    lines: dict[str, list[Record]] = {}
    for row in rows:
        if row.n and row.p50_us > 0 and row.size > 0:
            lines.setdefault(row.engine, []).append(row)
    points = [row for line in lines.values() for row in line]
    if not points:
        return _document([f"<text x='20' y='40' {_STYLE}>{escape(title)}: nothing measured</text>"])
    x = _Axis([row.size for row in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis([value for row in points for value in (row.p50_us, row.p99_us)], _HEIGHT - _BOTTOM, _TOP)
    parts = [f"<text x='{_LEFT}' y='22' {_STYLE} font-weight='bold'>{escape(title)}</text>"]
    parts += _grid(x, y, sorted({row.size for row in points}), x_label)
    parts += _lines(lines, x, y)
    left_out = _left_out(rows)
    for number, line in enumerate(left_out):
        parts.append(f"<text x='{_LEFT}' y='{_HEIGHT + 4 + _LINE * number}' {_STYLE}>{escape(line)}</text>")
    return _document(parts, _HEIGHT + _LINE * len(left_out))


def _left_out(rows: Sequence[Record]) -> list[str]:
    """What is not drawn, in words."""
    below = [f"{row.engine} at {_short(row.size)}: {in_words(row.p50_us)}" for row in rows if row.n and row.p50_us <= 0]
    absent = [f"{row.engine} at {_short(row.size)}" for row in rows if not row.n]
    told = (("Not drawn, as it is not above 0: ", below), ("No number: ", absent))
    return [head + ", ".join(items) for head, items in told if items]


class _Axis:
    """A logarithmic scale from whole powers of ten around ``values`` to places from ``start`` to ``end``."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = max(math.ceil(math.log10(max(values)) - 1e-9), self.low + 1)
        self._start, self._end = start, end

    def place(self, value: float) -> str:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return f"{self._start + share * (self._end - self._start):.1f}"

    @property
    def powers(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def _grid(x: _Axis, y: _Axis, sizes: Sequence[int], x_label: str) -> list[str]:
    left, right, top, bottom = _LEFT, _WIDTH - _RIGHT, _TOP, _HEIGHT - _BOTTOM
    parts = []
    for value in y.powers:
        at = y.place(value)
        parts.append(f"<line x1='{left}' x2='{right}' y1='{at}' y2='{at}' stroke='#ddd'/>")
        parts.append(f"<text x='{left - 8}' y='{at}' {_STYLE} text-anchor='end' dy='4'>{in_words(value)}</text>")
    for size in sizes:
        at = x.place(size)
        parts.append(f"<line x1='{at}' x2='{at}' y1='{top}' y2='{bottom}' stroke='#eee'/>")
        parts.append(f"<text x='{at}' y='{bottom + 18}' {_STYLE} text-anchor='middle'>{_short(size)}</text>")
    middle = (left + right) // 2
    parts.append(f"<text x='{middle}' y='{bottom + 38}' {_STYLE} text-anchor='middle'>{escape(x_label)}</text>")
    return parts


def _lines(lines: Mapping[str, Sequence[Record]], x: _Axis, y: _Axis) -> list[str]:
    parts = []
    for number, (engine, rows) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        ordered = sorted(rows, key=lambda row: row.size)
        path = " ".join(f"{x.place(row.size)},{y.place(row.p50_us)}" for row in ordered)
        width = 3 if engine.startswith(OURS) else 1.5
        parts.append(f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width}'/>")
        for row in ordered:
            at, median, high = x.place(row.size), y.place(row.p50_us), y.place(max(row.p99_us, row.p50_us))
            parts.append(f"<line x1='{at}' x2='{at}' y1='{median}' y2='{high}' stroke='{colour}'/>")
            parts.append(f"<circle cx='{at}' cy='{median}' r='3' fill='{colour}'/>")
        left, top = _WIDTH - _RIGHT + 16, _TOP + 8 + 20 * number
        parts.append(f"<rect x='{left}' y='{top - 4}' width='14' height='4' fill='{colour}'/>")
        parts.append(f"<text x='{left + 20}' y='{top + 3}' {_STYLE}>{escape(engine)}</text>")
    return parts


def _short(size: int) -> str:
    for unit, name in ((1_000_000, "M"), (1_000, "K")):
        if size >= unit:
            return f"{size / unit:g}{name}"
    return str(size)


def _document(parts: Sequence[str], height: int = _HEIGHT) -> str:
    size = f"width='{_WIDTH}' height='{height}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {_WIDTH} {height}' {size}>"
    return "\n".join([head, f"<rect {size} fill='#fff'/>", *parts, "</svg>", ""])
