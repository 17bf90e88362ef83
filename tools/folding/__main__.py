"""Command line of the differential checks: see `tools.folding`."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from toktier.errors import UnusableFile
from tools.bench.progress import progress_bar
from tools.folding import report
from tools.folding.corpus import corpus
from tools.folding.differential import Report, run


def main() -> None:
    arguments = _parser().parse_args()
    sys.exit(campaign(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tools.folding", description="Render random sessions incrementally and in full; compare."
    )
    parser.add_argument("--checks", type=int, required=True, help="renders to compare, shared out over the templates")
    parser.add_argument("--seed", type=int, default=1, help="of the first session")
    parser.add_argument("--json", type=Path, required=True, help="file for the report")
    parser.add_argument("--templates", type=Path, nargs="*", default=[], help="folders to search for *.jinja as well")
    parser.add_argument("--only", default="", help="templates whose name has this in it")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of processor time; the rest is left out")
    return parser


def campaign(arguments: argparse.Namespace) -> int:
    """0 if nothing differed, else 1."""
    sources = {name: source for name, source in corpus(arguments.templates).items() if arguments.only in name}
    if not sources:
        print("no template was found", file=sys.stderr)
        return 1
    reports: list[Report] = []
    left_out: dict[str, str] = {}
    tree, started = report.tree(), time.process_time()
    with progress_bar() as progress:
        task = progress.add_task("folding", total=len(sources))
        for number, (name, source) in enumerate(sources.items()):
            progress.update(task, description=f"folding: {name}")
            share = -(-arguments.checks // len(sources))
            used = time.process_time() - started
            deadline = time.process_time() + (arguments.seconds - used) / (len(sources) - number)
            try:
                reports.append(run(name, source, share, arguments.seed, deadline))
            except (ValueError, UnusableFile) as reason:
                left_out[name] = str(reason)
            progress.advance(task)
    told = report.told(tree, reports, left_out, arguments.seed)
    report.write(arguments.json, told)
    print(report.summary(told))
    return int(any(one.mismatches for one in reports))


if __name__ == "__main__":
    main()
