"""Campaigns over a folder of tokenizers: ``python -m tools.campaigns FOLDER [--seconds 15]`` (`make campaign`).

Each folder in FOLDER is one tokenizer. Rank files that lie there without a sidecar get theirs from ``conf/tiktoken``,
by name. One line per tokenizer is printed; ``--out`` keeps the whole reports. Ends with 1 if anything diverged, was
refused or could not be read.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from proxy import logs
from proxy.config import Log, load
from toktier.campaign import corpus
from toktier.campaign.report import Report
from toktier.campaign.runner import PLANTS, Plan, run
from toktier.errors import TokTierError
from toktier.rank_files import sidecar_names

SIDECARS = Path(__file__).resolve().parent.parent / "conf" / "tiktoken"


def tokenizers(folder: Path) -> Iterator[tuple[Path, Path | None]]:
    """Folders of tokenizers, and the sidecars of rank files that have none beside them."""
    for path in sorted(p for p in folder.iterdir() if p.is_dir()):
        ranks = next(path.glob("*.tiktoken*"), None)
        names = sidecar_names(ranks.name) if ranks else ()
        known = SIDECARS / names[0] if names and not any((path / name).exists() for name in names) else None
        yield path, known if known and known.is_file() else None


def line(name: str, report: Report) -> str:
    """One tokenizer's outcome in a line."""
    told = report.json()
    if report.plants is not None:
        caught = sum(plant.caught is True for plant in report.plants)
        missed = [plant.kind for plant in report.plants if plant.caught is False]
        return f"{name:<16} {caught} faults caught, {len(missed)} missed {', '.join(missed)}"
    cuts, ropes = told["cuts"], told["ropes"]
    share = ropes["repaired"]["share"]
    repaired = f"{100 * share:.0f} % repaired" if share is not None else "none"
    return (
        f"{name:<16} {cuts['checks']:>9,} cuts, {ropes['operations']:>7,} operations ({repaired}), "
        f"{len(report.failures)} failures, {report.seconds:.0f} s, {report.cpu_seconds or 0:.0f} CPU s, "
        f"divergence {'found' if report.diverged else 'none'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.campaigns", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="*", help="names of tokenizers")
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--rope-ops", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, help="for each tokenizer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--plant", action="store_true")
    parser.add_argument("--out", type=Path, help="folder for the reports, NAME.json each")
    args = parser.parse_args()
    plan = Plan(args.cases, args.rope_ops, args.seconds, args.seed, args.jobs, plants=PLANTS if args.plant else 0)
    cache_dir = load(None).server.cache_dir
    noise = logs.configure(Log(level="error"), stream=2)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    code = 0
    for path, sidecar in tokenizers(args.folder):
        if args.only and path.name not in args.only:
            continue
        try:
            report = run(path, plan, sidecar=sidecar, cache_dir=cache_dir, real=corpus.built_in())
        except TokTierError as error:
            print(f"{path.name:<16} {type(error).__name__}: {error}", flush=True)
            code = 1
            continue
        print(line(path.name, report), flush=True)
        code |= int(report.diverged or report.ended == "interrupted")
        if args.out:
            suffix = "-plants" if args.plant else ""
            (args.out / f"{path.name}{suffix}.json").write_text(json.dumps(report.json(), indent=1) + "\n", "utf-8")
        if report.ended == "interrupted":
            break
    noise.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
