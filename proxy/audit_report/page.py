"""The report of `toktier audit --html`: one file that needs no network and runs no script.

Invariant: whatever the log holds reaches the page as text. The template escapes every value, and the page forbids
itself scripts and any load by a Content-Security-Policy of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from proxy.audit import STAGES
from proxy.audit_report import plots
from proxy.audit_report.collect import Collected
from proxy.audit_report.show import NO_MODEL, duration, verdict

RESULTS = ("equal", "different", "dropped")


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("proxy", "audit_report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["thousands"] = lambda value: f"{value:,}"
    environment.filters["duration"] = duration
    return environment.get_template("page.html")


def render(report: Mapping[str, Any], collected: Collected) -> str:
    """The page of a report and the counts that it was built from."""
    tallies = [("all models", report["all"])]
    if len(report["models"]) > 1:
        tallies += [(model["model"] or NO_MODEL, model) for model in report["models"]]
    return _template().render(
        report=report, tallies=tallies, verdict=verdict(report), plots=figures(collected), width=plots.WIDTH
    )


def figures(collected: Collected) -> list[plots.Plot]:
    """Every plot that has something to show."""
    tally = collected.all
    accounts = [(path, tally.paths[path]) for path in (*plots.PATHS, *sorted(tally.paths)) if path in tally.paths]
    stages = {stage: tally.stages[stage] for stage in STAGES if stage in tally.stages}
    drawn = [
        plots.over_time(
            collected.requests, "Requests per minute", "By path, over the time of the log (UTC).", plots.PATHS
        ),
        plots.stage_times(stages),
        plots.two_accounts(
            [(path, one.served_chars, one.scanned_chars) for path, one in dict(accounts).items() if one.chars]
        ),
        plots.bars("Bypass reasons", "Requests that went upstream as text.", tally.bypasses.sorted()),
        plots.bars("Full encodes", "Requests whose whole text was encoded, by reason.", tally.full.sorted()),
        plots.outcomes(tally.checks.results.sorted(), tally.checks.dropped.sorted()),
        plots.over_time(collected.shadow, "Shadow checks per minute", "By result (UTC).", RESULTS),
        plots.delays(tally.checks.delay),
    ]
    return [plot for plot in drawn if plot.rects]
