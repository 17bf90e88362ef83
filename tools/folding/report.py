"""What a campaign of `tools.folding` leaves behind: a file that says what ran on which code, and the words about it.

The file names the code by a digest (`code_digest`) and the commit that was checked out, every template by name and
digest of its source, and the seeds of its sessions: with these each check can be made again.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tools.folding.differential import Report

ROOT = Path(__file__).resolve().parents[2]
_CODE = (
    *("toktier/folding/**/*.py", "toktier/template*.py", "toktier/counted.py"),
    *("tools/folding/conversations.py", "tools/folding/differential.py"),
)
"""Both renders that are compared, and what compares them."""
_SUMS = ("checks", "outputs", "exceptions", "mismatches", "iterations", "messages", "given_up", "seconds")


def code_digest(root: Path = ROOT) -> str:
    """SHA-256 of the names and contents of the files of both renders, and of the comparison."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _CODE for path in root.glob(pattern)}):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def commit(root: Path = ROOT) -> str:
    """The commit that is checked out; empty where there is none."""
    asked = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return asked.stdout.strip() if asked.returncode == 0 else ""


def tree(root: Path = ROOT) -> dict[str, str]:
    """What is run, for `told`; to be asked before it runs."""
    return {"commit": commit(root), "code": code_digest(root)}


def told(tree: Mapping[str, str], reports: Iterable[Report], left_out: Mapping[str, str], seed: int) -> dict[str, Any]:
    """What goes into the file: the code, totals, and one entry a template."""
    reports = list(reports)
    totals = {name: round(sum(getattr(report, name) for report in reports), 1) for name in _SUMS}
    totals["fallbacks"] = sum(sum(report.fallbacks.values()) for report in reports)
    return {
        **tree,
        "seed": seed,
        "totals": totals,
        "templates": [vars(one) for one in reports],
        "left_out": dict(left_out),
    }


def write(path: Path, report: Mapping[str, Any]) -> None:
    """As JSON, one template a line. Missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = {name: value for name, value in report.items() if name != "templates"}
    head = json.dumps(rest, ensure_ascii=False, indent=1)
    rows = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in report["templates"])
    path.write_text(f'{head[:-2]},\n "templates": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


def line(report: Mapping[str, Any]) -> str:
    """Of a file, for `docs/folding.md`."""
    totals = report["totals"]
    left_out = [f"`{name}` ({reason})" for name, reason in report["left_out"].items()]
    last = max(one["seed"] + one["sessions"] - 1 for one in report["templates"])
    return (
        f"The committed campaign ([folding.json](bench/folding.json); code `{report['code'][:12]}`, checked out\n"
        f"`{report['commit'][:12]}`): {len(report['templates'])} templates, seeds {report['seed']:,} to {last:,},"
        f" {totals['checks']:,} checks ({totals['outputs']:,} texts and\n{totals['exceptions']:,} exceptions):"
        f" {totals['mismatches']:,} mismatches, {totals['fallbacks']:,} rendered in full although the template folds."
        f" {totals['iterations']:,} iterations ran for\n{totals['messages']:,} messages."
        + (f" Left out: {', '.join(left_out)}." if left_out else "")
    )


def summary(report: Mapping[str, Any]) -> str:
    """For people: the totals, and every template that fell back or differed."""
    totals, templates = report["totals"], report["templates"]
    lines = [
        f"{len(templates)} templates, {totals['checks']:,} checks ({totals['outputs']:,} texts, "
        f"{totals['exceptions']:,} exceptions): {totals['mismatches']} mismatches, "
        f"{totals['fallbacks']:,} rendered in full; code {report['code'][:12]}"
    ]
    for one in templates:
        if one["fallbacks"]:
            lines.append(f"  {one['template']}: in full {dict(one['fallbacks'])}")
        if one["mismatches"]:
            lines.append(f"  {one['template']}: {one['mismatches']} MISMATCHES, the first: {one['example']}")
    return "\n".join([*lines, *(f"  {name}: left out ({reason})" for name, reason in report["left_out"].items())])
