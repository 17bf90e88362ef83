"""What came of campaigns at length: rows of the reports that ``python -m tools.campaigns --out FOLDER`` keeps.

No account of speed: counts of what was compared with the reference, and what was found.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLANTS = "-plants"


@dataclass(frozen=True)
class Campaign:
    """One tokenizer. ``repaired`` and ``repaired_closely``: shares of the operations that took the repair path, on
    ropes that are cut as the server cuts them and on ropes cut as closely as they can be. ``faults_*``: None where none
    were planted."""

    tokenizer: str
    digest: str
    versions: str
    seed: int
    cuts: int
    operations: int
    over_20k: int
    over_200k: int
    repaired: float
    repaired_closely: float
    divergences: int
    faults_caught: int | None
    faults_missed: int | None


def rows(folder: Path) -> list[Campaign]:
    """Of all ``NAME.json`` in a folder, with ``NAME-plants.json`` beside it where it is there."""
    names = sorted(path.stem for path in folder.glob("*.json") if not path.stem.endswith(PLANTS))
    return [_row(name, *(_read(folder / f"{name}{end}.json") for end in ("", PLANTS))) for name in names]


def _read(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    told: dict[str, Any] = json.loads(path.read_text("utf-8"))
    if told["ended"] != "complete":
        raise ValueError(f"{path} ended early: {told['ended']}")
    return told


def _row(name: str, told: dict[str, Any] | None, planted: dict[str, Any] | None) -> Campaign:
    assert told is not None
    ropes = told["ropes"]
    fates = [plant["caught"] for plant in planted["plants"]] if planted else None
    versions = {k: v for k, v in told["versions"].items() if k != "toktier-proxy"}
    return Campaign(
        tokenizer=name,
        digest=told["tokenizer"]["digest"],
        versions=", ".join(f"{engine} {version}" for engine, version in versions.items()),
        seed=told["seed"],
        cuts=told["cuts"]["checks"],
        operations=ropes["operations"],
        over_20k=ropes["over_20k_characters"],
        over_200k=ropes["over_200k_characters"],
        repaired=ropes["repaired"]["share"],
        repaired_closely=ropes["repaired_when_cut_closely"]["share"],
        divergences=len(told["failures"]),
        faults_caught=fates.count(True) if fates is not None else None,
        faults_missed=fates.count(False) if fates is not None else None,
    )


def table(found: Sequence[Campaign]) -> str:
    """Markdown, one row a tokenizer."""
    out = [
        "| tokenizer | cuts | rope operations | over 20K / 200K characters | repaired | divergences | faults caught |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in found:
        caught = "-"
        if row.faults_caught is not None and row.faults_missed is not None:
            caught = f"{row.faults_caught} of {row.faults_caught + row.faults_missed}"
        out.append(
            f"| {row.tokenizer} | {row.cuts:,} | {row.operations:,} | {row.over_20k:,} / {row.over_200k:,} "
            f"| {row.repaired:.0%}, {row.repaired_closely:.0%} | {row.divergences} | {caught} |"
        )
    return "\n".join(out)
