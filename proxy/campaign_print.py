"""The report of `toktier campaign` for people, and its progress bar."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from proxy.certify_words import many
from toktier.campaign import runner
from toktier.campaign.report import Failure, PlantReport, Report


@contextmanager
def bar(*, wanted: bool) -> Iterator[runner.Progress | None]:
    """Shows a bar on standard error while the block runs; nothing where that is no terminal."""
    if not wanted or not Console(stderr=True).is_terminal:
        yield None
        return
    with os.fdopen(os.dup(2), "w", encoding="utf-8") as own:  # a load holds back what is written to the descriptor
        yield from _bar(Console(file=own))


def _bar(console: Console) -> Iterator[runner.Progress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("loading", total=1.0)

        def told(report: Report, share: float) -> None:
            progress.update(task, completed=share, description=_state(report))

        yield told


def _state(report: Report) -> str:
    if report.plants is not None:
        return many(len(report.plants), "fault")
    cuts = report.cuts.done if report.cuts else 0
    operations = report.ropes.done if report.ropes else 0
    found = f", [red]{many(len(report.failures), 'failure')}[/]" if report.failures else ""
    return f"{many(cuts, 'cut')}, {many(operations, 'operation')}{found}"


def show(report: Report, console: Console | None = None) -> None:
    """Prints the report to standard output."""
    out = console or Console(highlight=False)
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    out.print(f"tokenizer     {escape(str(report.tokenizer['source']))}", soft_wrap=True)
    out.print(f"digest        {report.tokenizer['digest']}, certificate {report.certificate['digest'][:16]}")
    out.print(f"engines       {escape(versions)}; window {escape(str(report.tokenizer['window']))}", soft_wrap=True)
    jobs = f"{report.jobs} job{'s' if report.jobs > 1 else ''}"
    cpu = f"{report.cpu_seconds or 0:.0f} CPU s"
    out.print(f"run           seed {report.seed}, {jobs}, {report.seconds:.1f} s, {cpu}\n")
    if report.cuts is not None:
        _cuts(report, out)
    if report.ropes is not None:
        _ropes(report, out)
    for line in dict.fromkeys(map(_plant, report.plants or ())):
        out.print(line, soft_wrap=True)
    for failure in report.failures:
        out.print(_failure(failure), soft_wrap=True)
    ended = {"complete": "", "time": " (time is over)", "failures": " (ended: enough failures)"}
    out.print(f"\n{_verdict(report)}{ended.get(report.ended, ' (interrupted)')}")


def _cuts(report: Report, out: Console) -> None:
    assert report.cuts is not None
    told = report.cuts.json()
    table = Table("family", box=None, pad_edge=False)
    for name in ("texts", "cuts checked", "failures"):
        table.add_column(name, justify="right")
    for name, family in told["families"].items():
        table.add_row(name, f"{family['cases']:,}", f"{family['checks']:,}", f"{family['failures']:,}")
    table.add_row("[bold]all[/]", f"{told['cases']:,}", f"{told['checks']:,}", f"{told['failures']:,}")
    out.print(table)
    out.print()


def _ropes(report: Report, out: Console) -> None:
    assert report.ropes is not None
    told = report.ropes.json()
    table = Table("operation", box=None, pad_edge=False)
    for name in ("operations", "failures"):
        table.add_column(name, justify="right")
    for name, family in told["families"].items():
        table.add_row(name, f"{family['operations']:,}", f"{family['failures']:,}")
    table.add_row("[bold]all[/]", f"{told['operations']:,}", f"{told['failures']:,}")
    out.print(table)
    if told["operations"]:
        out.print(
            f"{many(told['ropes'], 'rope')}; {many(told['over_20k_characters'], 'operation')} on texts over "
            f"20K characters, {told['over_200k_characters']:,} over 200K"
        )
        for name, key in (("as served", "repaired"), ("cut closely", "repaired_when_cut_closely")):
            repaired = told[key]
            full = ", ".join(f"{count:,} {reason}" for reason, count in repaired["encoded_in_full"].items())
            if repaired["operations"]:
                out.print(f"{name}: {100 * repaired['share']:.1f} % repaired; in full: {full or 'none'}")


def _plant(plant: PlantReport) -> str:
    if plant.caught is None:
        why = f"none of {many(plant.harmless, 'candidate')} does harm" if plant.harmless else "does not exist here"
        return f"{escape(plant.kind):<38} {why}"
    state = "[green]caught[/]" if plant.caught else "[red]missed[/]"
    found = f" by {escape(plant.by)}: {escape(plant.smallest)}" if plant.caught and plant.smallest_chars <= 40 else ""
    skipped = f", {plant.harmless} harmless skipped" if plant.harmless else ""
    return f"{escape(plant.kind):<38} {state} after {plant.needed:,}{found} ({escape(plant.what)}{skipped})"


def _failure(failure: Failure) -> str:
    cut = f" at cut {failure.cut}" if failure.cut is not None else ""
    text = f'"{failure.text}", {many(failure.chars, "character")}'
    change = ""
    if failure.change is not None:
        c = failure.change
        change = f'; characters {c["start"]} to {c["end"]} replaced by "{c["new"]}"'
    where = f"{failure.where} {failure.case} ({failure.family})"
    return f"[red]divergence[/] in {failure.fault}, {escape(where)}{cut}: {escape(text + change)}"


def _verdict(report: Report) -> str:
    if report.plants is not None:
        missed = sum(p.caught is False for p in report.plants)
        caught = sum(p.caught is True for p in report.plants)
        if missed:
            return f"[red]{many(missed, 'planted fault')} missed[/]"
        rest = report.not_reached
        return f"all {caught} planted faults caught" + (f"; not reached: {escape(', '.join(rest))}" if rest else "")
    return "[red]divergence[/]" if report.diverged else "no divergence"
