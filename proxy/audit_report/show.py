"""The report of `toktier audit` for people, on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

NO_MODEL = "no configured model"


def show(report: Mapping[str, Any], console: Console | None = None) -> None:
    """Prints the report to standard output."""
    out = console or Console(highlight=False)
    span, lines = report["span"], report["lines"]
    when = "no line with a time" if span["first"] is None else f"{span['first']} to {span['last']}"
    if report["since"] is not None:
        when += f", since {report['since']}"
    _line(out, "time", when)
    others = [f"{lines[key]:,} {word}" for key, word in _OTHER_LINES.items() if lines[key]]
    _line(out, "lines", ", ".join([f"{lines['counted']:,}", *others]))
    _line(out, "verdict", verdict(report))
    for warning in report["warnings"]:
        out.print(f"[yellow]warning[/]       {escape(warning)}", soft_wrap=True)
    tallies = [("all models", report["all"])]
    if len(report["models"]) > 1 or report["models"] == []:
        tallies += [(model["model"] or NO_MODEL, model) for model in report["models"]]
    elif report["models"]:
        tallies = [(report["models"][0]["model"] or NO_MODEL, report["all"])]
    for title, tally in tallies:
        _tally(out, title, tally)
    _cases(out, report)
    if report["events"]:
        out.print("\n[bold]other events[/]")
        out.print(f"  {escape(_counts(report['events']))}", soft_wrap=True)


_OTHER_LINES = {
    "before": "before that",
    "foreign": "of other programs",
    "malformed": "malformed",
    "too_long": "too long",
    "lost": "lost when written",
}


def _line(out: Console, label: str, text: str) -> None:
    out.print(f"{label:<14}{escape(text)}", soft_wrap=True)


def verdict(report: Mapping[str, Any]) -> str:
    """Whether anything is wrong, in a few words."""
    found, in_force = report["mismatches"], len(report["quarantines"]["in_force"])
    total = f"{found['total']:,} mismatch{'' if found['total'] == 1 else 'es'}"
    if found["unresolved"]:
        text = f"{total}, {found['unresolved']:,} NOT RESOLVED"
    elif found["total"]:
        text = f"{total}, all resolved"
    else:
        text = "no mismatch"
    return text + (f"; {in_force} in quarantine" if in_force else "")


def _tally(out: Console, title: str, tally: Mapping[str, Any]) -> None:
    out.print(f"\n[bold]{escape(title)}[/]", soft_wrap=True)
    for label, text in _facts(tally):
        out.print(f"  {label:<15}{escape(text)}", soft_wrap=True)
    if tally["by_path"]:
        paths = Table("path", box=None, pad_edge=False, padding=(0, 2), show_edge=False)
        columns = ("requests", "chars", "served_chars", "scanned_chars", "tokens")
        for column in columns:
            paths.add_column(column.replace("_chars", ""), justify="right", no_wrap=True)
        for path, account in tally["by_path"].items():
            paths.add_row(escape(path), *(f"{account[column]:,}" for column in columns))
        _indented(out, paths)
    if tally["stages_us"]:
        stages = Table("stage", box=None, pad_edge=False, padding=(0, 2), show_edge=False)
        for column in ("count", "p50", "p90", "p99", "max"):
            stages.add_column(column, justify="right", no_wrap=True)
        for stage, times in tally["stages_us"].items():
            stages.add_row(stage, f"{times['count']:,}", *(duration(times[k]) for k in ("p50", "p90", "p99", "max")))
        _indented(out, stages)


def _indented(out: Console, table: Table) -> None:
    needed = out.measure(table, options=out.options.update(width=1000)).maximum + 2
    if needed > out.width:  # a number that is cut off would be a wrong one; a narrow terminal breaks the line
        out.width = needed
    out.print(Padding(table, (1, 0, 0, 2), expand=False))


def _facts(tally: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "requests", f"{tally['requests']:,}"
    for label, key in (
        ("status", "by_status"),
        ("bypass", "bypass"),
        ("full encodes", "full"),
        ("causes", "cause"),
        ("flags", "flags"),
        ("errors", "errors"),
    ):
        if tally[key]:
            yield label, _counts(tally[key])
    usage = tally["usage"]
    if usage["compared"]:
        yield (
            "usage",
            f"{usage['different']:,} of {usage['compared']:,} replies counted other prompt tokens than were sent",
        )
    shadow = tally["shadow"]
    if shadow["with_ids"] or shadow["done"] or shadow["dropped"]:
        rate = "" if shadow["rate"] is None else f" ({100 * shadow['rate']:.2f} % of {shadow['with_ids']:,} with IDs)"
        yield (
            "shadow checks",
            f"{shadow['done']:,}{rate}: {shadow['equal']:,} equal, {shadow['different']:,} different",
        )
        if shadow["by_sampled"]:
            yield "sampled", _counts(shadow["by_sampled"])
        if shadow["dropped"]:
            yield "dropped", _counts(shadow["dropped_by_reason"])
        if shadow["delay_us"]["count"]:
            yield "delay", _percentiles(shadow["delay_us"])
    parity = tally["parity"]
    if parity["done"] or parity["skipped"]:
        told = f"{parity['done']:,}: {parity['equal']:,} equal, {parity['different']:,} different"
        yield (
            "parity checks",
            told + (f"; not compared: {_counts(parity['skipped_by_reason'])}" if parity["skipped"] else ""),
        )
    found = tally["mismatches"]
    if found["total"]:
        yield "mismatches", _counts(found["by_source"])
        if found["delay_us"]["count"]:
            yield "detected after", _percentiles(found["delay_us"])


def _cases(out: Console, report: Mapping[str, Any]) -> None:
    found, quarantines = report["mismatches"], report["quarantines"]
    if found["cases"]:
        out.print("\n[bold]mismatches[/] (in all lines)")
        for case in found["cases"]:
            state = f"[red]{case['unresolved']:,} unresolved[/]" if case["unresolved"] else "[green]resolved[/]"
            lifted = f", lifted {case['lifted']}" if case["lifted"] else ""
            where = f"tokenizer {case['tokenizer_digest'][:16]}, path {case['path']}"
            out.print(f"  {escape(where)}: {case['total']:,}, {state}{lifted}", soft_wrap=True)
        for one in found["latest"][:5]:
            state = "resolved" if one["resolved"] else "unresolved"
            shown = [f"{key} {one[key]}" for key in _DETAILS if one[key] is not None]
            out.print(f"  {one['ts'] or 'no time'} {state}: {escape(', '.join(shown))}", soft_wrap=True)
    if quarantines["in_force"]:
        out.print("\n[bold]in quarantine[/]")
        for entry in quarantines["in_force"]:
            told = f"tokenizer {entry['tokenizer_digest'][:16]}, path {entry['path']}, level {entry['level']}"
            out.print(f"  {escape(told)}, since {entry['since']} ({escape(str(entry['source']))})", soft_wrap=True)


_DETAILS = ("source", "model", "request_id", "kind", "tokens", "reference_tokens", "first_id", "first_char", "capture")


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{key}: {count:,}" for key, count in counts.items())


def _percentiles(times: Mapping[str, int]) -> str:
    return ", ".join(f"{key} {duration(times[key])}" for key in ("p50", "p90", "p99", "max"))


def duration(microseconds: int | None) -> str:
    """``850 us``, ``1.2 ms``, ``3.4 s``."""
    if microseconds is None:
        return "-"
    if microseconds < 1000:
        return f"{microseconds} us"
    if microseconds < 999_500:
        return f"{microseconds / 1000:.3g} ms"
    seconds = microseconds / 1e6
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:,.0f} s"
