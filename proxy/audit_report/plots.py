"""The plots of the HTML report as plain geometry; the template draws it as SVG.

Invariant: every coordinate is a finite number made here, and every text goes through the template's escaping. A
``series`` is an index into the page's colours, or one of the words in `MEANING`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from proxy.audit_report.histogram import Histogram
from proxy.audit_report.show import duration
from proxy.audit_report.timeline import Timeline
from proxy.audit_report.values import iso

PATHS = ("append", "edit", "init", "compaction", "retry", "bypass", "other")
MEANING = {"equal": "good", "different": "bad", "dropped": "mute"}
"""Results of shadow checks whose colour has a meaning."""

WIDTH = 860.0
_LEFT, _RIGHT, _BELOW = 64.0, 12.0, 22.0
_COLUMNS = 160
_ROW = 22.0
_LONGEST = 10
"""Largest power of ten (microseconds) on a scale of times."""


@dataclass
class Rect:
    """A filled rectangle; ``title`` is what a pointer over it shows."""

    x: float
    y: float
    width: float
    height: float
    series: str
    title: str = ""
    opacity: float = 1.0


@dataclass
class Text:
    """A label; ``anchor`` as in SVG."""

    x: float
    y: float
    text: str
    anchor: str = "start"


@dataclass
class Line:
    """A straight line of a style: ``grid`` or ``mark``."""

    x1: float
    y1: float
    x2: float
    y2: float
    style: str = "grid"


@dataclass
class Plot:
    """One figure. ``legend``: (series, name)."""

    title: str
    note: str
    height: float
    rects: list[Rect] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    texts: list[Text] = field(default_factory=list)
    legend: list[tuple[str, str]] = field(default_factory=list)


def series(name: str, known: Sequence[str]) -> str:
    """The colour of a name: its meaning, else its place among the known names, else the last one."""
    if name in MEANING:
        return MEANING[name]
    return str(known.index(name)) if name in known else str(len(known))


def over_time(timeline: Timeline, title: str, note: str, known: Sequence[str]) -> Plot:
    """Stacked columns, per minute."""
    start, width, columns = timeline.columns(_COLUMNS)
    height = 220.0
    plot = Plot(title, note, height)
    if not columns:
        return plot
    minutes = width / 60e6
    bottom, room = height - _BELOW, height - _BELOW - 10
    top = max(column.total() for column in columns) / minutes
    scale = _nice(top)
    for step in range(5):
        y = bottom - room * step / 4
        plot.lines.append(Line(_LEFT, y, WIDTH - _RIGHT, y))
        plot.texts.append(Text(_LEFT - 6, y + 4, _short(scale * step / 4), "end"))
    each = (WIDTH - _LEFT - _RIGHT) / len(columns)
    names = [name for name in (*known, *timeline.names()) if any(name in column for column in columns)]
    names = list(dict.fromkeys(names))
    for place, column in enumerate(columns):
        y = bottom
        for name in names:
            if not column[name]:
                continue
            size = room * column[name] / minutes / scale
            y -= size
            told = f"{_minute(start + place * width)} {name}: {column[name]:,}"
            x = _LEFT + place * each
            plot.rects.append(Rect(x, y, max(each - 0.6, 0.5), size, series(name, known), told))
    for place in range(0, len(columns), max(1, len(columns) // 6)):
        anchor = "start" if place == 0 else "middle"
        plot.texts.append(Text(_LEFT + place * each, height - 6, _minute(start + place * width), anchor))
    plot.legend = [(series(name, known), name) for name in names]
    return plot


def stage_times(stages: Mapping[str, Histogram]) -> Plot:
    """One row a stage: how its times are distributed, on a logarithmic scale, with marks at p50 and p99."""
    plot = Plot(
        "Time in each stage",
        "Darker: more requests. Marks: p50 and p99. Logarithmic scale; ttfb is the engine's first byte.",
        _ROW * len(stages) + _BELOW + 6,
    )
    if not stages:
        return plot
    first, last = _decades(stages.values())
    left, right = 84.0, WIDTH - 190
    for decade in range(first, last + 1):
        x = left + (right - left) * (decade - first) / (last - first)
        plot.lines.append(Line(x, 0, x, plot.height - _BELOW))
        plot.texts.append(Text(x, plot.height - 6, duration(10**decade), "middle"))
    edges = _edges(first, last)
    for row, (stage, times) in enumerate(stages.items()):
        y = row * _ROW + 4
        plot.texts.append(Text(left - 8, y + 13, stage, "end"))
        _strip(plot, times, edges, (left, right), y)
        for share in (0.5, 0.99):
            x = left + (right - left) * _place(times.percentile(share) or 0, first, last)
            plot.lines.append(Line(x, y - 1, x, y + _ROW - 5, "mark"))
        told = f"p50 {duration(times.percentile(0.5))}, p99 {duration(times.percentile(0.99))}"
        plot.texts.append(Text(right + 12, y + 13, told))
    return plot


def _strip(plot: Plot, times: Histogram, edges: Sequence[float], span: tuple[float, float], y: float) -> None:
    counts = times.between(edges)
    most = max(counts)
    each = (span[1] - span[0]) / len(counts)
    for place, count in enumerate(counts):
        if count:
            told = f"{duration(round(edges[place]))} to {duration(round(edges[place + 1]))}: {count:,}"
            opacity = 0.15 + 0.85 * math.sqrt(count / most)
            plot.rects.append(Rect(span[0] + place * each, y, each, _ROW - 6, "0", told, round(opacity, 3)))


def delays(times: Histogram) -> Plot:
    """Columns: how long after a request its check was done."""
    height = 180.0
    plot = Plot("From a request to its verdict", "Shadow checks by delay, logarithmic scale.", height)
    if not times.count:
        return plot
    first, last = _decades([times])
    edges = _edges(first, last)
    counts = times.between(edges)
    bottom, room = height - _BELOW, height - _BELOW - 10
    scale = _nice(max(counts))
    span = WIDTH - _LEFT - _RIGHT
    for step in (0, 1, 2):
        y = bottom - room * step / 2
        plot.lines.append(Line(_LEFT, y, WIDTH - _RIGHT, y))
        plot.texts.append(Text(_LEFT - 6, y + 4, _short(scale * step / 2), "end"))
    for place, count in enumerate(counts):
        if count:
            told = f"{duration(round(edges[place]))} to {duration(round(edges[place + 1]))}: {count:,}"
            size, each = room * count / scale, span / len(counts)
            plot.rects.append(Rect(_LEFT + place * each + 0.5, bottom - size, each - 1, size, "0", told))
    for decade in range(first, last + 1):
        x = _LEFT + span * (decade - first) / (last - first)
        anchor = "end" if decade == last else "middle"
        plot.texts.append(Text(x, height - 6, duration(10**decade), anchor))
    return plot


def two_accounts(rows: Sequence[tuple[str, int, int]]) -> Plot:
    """Served and scanned characters by path, side by side on one logarithmic scale."""
    plot = Plot(
        "Served and scanned characters",
        "Served: context delivered to the engine as IDs. Scanned: text encoded for it. Logarithmic scale.",
        len(rows) * 2 * 15 + len(rows) * 8 + 8,
        legend=[("0", "served"), ("1", "scanned")],
    )
    largest = max((max(served, scanned) for _, served, scanned in rows), default=0)
    left, right = 110.0, WIDTH - 150
    y = 4.0
    for path, served, scanned in rows:
        plot.texts.append(Text(left - 8, y + 19, path, "end"))
        for which, count in enumerate((served, scanned)):
            size = (right - left) * math.log10(count + 1) / math.log10(largest + 1) if largest else 0.0
            told = f"{path}, {('served', 'scanned')[which]}: {count:,}"
            plot.rects.append(Rect(left, y, max(size, 1.0), 13, str(which), told))
            plot.texts.append(Text(left + max(size, 1.0) + 6, y + 11, f"{count:,}"))
            y += 15
        y += 8
    return plot


def bars(title: str, note: str, counts: Mapping[str, int], most: int = 24) -> Plot:
    """Horizontal bars of the most frequent names."""
    shown = list(counts.items())[:most]
    if len(counts) > most:
        note += f" The {most} most frequent of {len(counts)}."
    plot = Plot(title, note, len(shown) * _ROW + 4)
    largest = max((count for _, count in shown), default=0)
    left, right = 220.0, WIDTH - 90
    for row, (name, count) in enumerate(shown):
        y = row * _ROW + 3
        size = max((right - left) * count / largest, 1.0)
        plot.texts.append(Text(left - 8, y + 12, name if len(name) <= 34 else name[:33] + "…", "end"))
        plot.rects.append(Rect(left, y, size, _ROW - 6, MEANING.get(name, "0"), f"{name}: {count:,}"))
        plot.texts.append(Text(left + size + 6, y + 12, f"{count:,}"))
    return plot


def outcomes(results: Mapping[str, int], dropped: Mapping[str, int]) -> Plot:
    """Bars: what became of the checks, the dropped ones by reason."""
    counts = {**results, **{f"dropped: {reason}": count for reason, count in dropped.items()}}
    plot = bars("Shadow checks", "Verdicts, and what was dropped, by reason.", counts)
    for rect in plot.rects:
        if rect.title.startswith("dropped: "):
            rect.series = MEANING["dropped"]
    return plot


def _nice(top: float) -> float:
    """The next 1, 2, 4 or 8 times a power of ten that is not below ``top``."""
    if top <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(top))
    return next((factor * power for factor in (1, 2, 4, 8) if factor * power >= top), 10 * power)


def _short(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def _decades(times: Iterable[Histogram]) -> tuple[int, int]:
    """The powers of ten (microseconds) around all numbers of the histograms, at least three decades. Numbers beyond
    three hours stand at the end."""
    filled = [one for one in times if one.count]
    first = math.floor(math.log10(max(1, min(one.smallest for one in filled))))
    last = math.ceil(math.log10(max(10, *(one.largest for one in filled))))
    first = min(first, _LONGEST - 3)
    return first, max(min(last, _LONGEST), first + 3)


def _edges(first: int, last: int) -> list[float]:
    return [10 ** (first + step / 6) for step in range((last - first) * 6 + 1)]


def _place(value: int, first: int, last: int) -> float:
    return min(1.0, max(0.0, (math.log10(max(value, 1)) - first) / (last - first)))


def _minute(moment: int) -> str:
    text = iso(moment)
    return f"{text[5:10]} {text[11:16]}"
