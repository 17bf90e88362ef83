"""The results of a campaign: kept as JSON (`docs/bench/faults.json`), shown as tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.faults.geometry import Geometry
from tools.faults.kinds import Kind
from tools.faults.quarantine import Case, Quarantined
from tools.faults.report import Run


@dataclass(frozen=True)
class Results:
    """One campaign. ``versions``: of the engines, and of the proxy."""

    seed: int
    versions: Mapping[str, str]
    runs: Sequence[Run]
    clean: Run | None
    quarantined: Sequence[Quarantined]

    @property
    def problems(self) -> list[str]:
        """What must not be."""
        every = [*self.runs, *([self.clean] if self.clean else [])]
        found = [problem for run in every for problem in run.problems]
        for one in self.quarantined:
            if not one.cases or not one.degraded:
                found.append("quarantine: nothing was put there, or /ready is silent about it")
            found += [f"quarantine not kept to: {case}" for case in one.cases if not case.holds]
            found += [f"wrong IDs in quarantine: {case}" for case in one.cases if case.wrong and not one.persistent]
        return found

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read(path: Path) -> Results:
    """What `Results.write` wrote."""
    value = json.loads(path.read_text(encoding="utf-8"))

    def run(row: dict[str, Any]) -> Run:
        return Run(**row | {"geometry": row["geometry"] and Geometry(**row["geometry"])})

    def quarantined(row: dict[str, Any]) -> Quarantined:
        return Quarantined(**row | {"cases": [Case(**case) for case in row["cases"]]})

    return Results(
        seed=value["seed"],
        versions=value["versions"],
        runs=[run(row) for row in value["runs"]],
        clean=value["clean"] and run(value["clean"]),
        quarantined=[quarantined(row) for row in value["quarantined"]],
    )


def sampling(results: Results) -> str:
    """One row a run: what was found at each share of sampling."""
    rows = [
        "| sampling | requests | faults | of them sampled | caught | missed | false positives | dropped "
        "| faulty requests until found: mean (predicted) | p | seconds until found P50 / P99 | check P50 / P99 |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run in [*results.runs, *([results.clean] if results.clean else [])]:
        cells = [
            f"{run.sample * 100:g} %",
            f"{run.requests:,}",
            *(f"{sum(row.values()):,}" for row in (run.injected, run.sampled, run.caught, run.missed)),
            f"{run.false_positives:,}",
            f"{sum(run.drops.values()):,}",
            *_waits(run.geometry),
            _seconds(run.first_detection_s),
            _seconds(run.check_s),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def kinds(results: Results) -> str:
    """One row a kind of fault, over all runs."""
    sums: dict[str, Counter[str]] = {
        name: sum((Counter(getattr(run, name)) for run in results.runs), Counter())
        for name in ("injected", "sampled", "caught", "missed")
    }
    rows = ["| fault | injected | sampled | caught | missed |", "|---|---:|---:|---:|---:|"]
    rows += [f"| {kind.value} | {' | '.join(f'{row[kind.value]:,}' for row in sums.values())} |" for kind in Kind]
    return "\n".join(rows)


def quarantines(results: Results) -> str:
    """One row a path that was put into quarantine."""
    rows = [
        "| faults in | path | level | requests after it | of them by the reference | as text | with wrong IDs |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    for one in results.quarantined:
        where = "every path of the IDs" if one.persistent else "what was spliced"
        rows += [
            f"| {where} | {case.path} | {case.level} | {case.requests:,} | {case.as_reference:,} | {case.as_text:,} "
            f"| {case.wrong:,} |"
            for case in one.cases
        ]
    return "\n".join(rows)


def _waits(found: Geometry | None) -> tuple[str, str]:
    if found is None or found.mean is None:
        return "-", "-"
    shown = [f"{p:.2g}" for p in (found.waits_p, found.count_p) if p is not None]
    return f"{found.mean:.3g} ({found.predicted_mean:.3g})", " / ".join(shown) or "exact"


def _seconds(values: Mapping[str, float]) -> str:
    return f"{values['p50']:.3g} s / {values['p99']:.3g} s" if values else "-"
