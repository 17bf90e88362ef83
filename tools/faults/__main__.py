"""``python -m tools.faults``: see `--help` and docs/faults.md. Exit code 1 where something was missed or not so.

``python -m tools.faults real-bug --json FILE [--python PATH]`` replays a bug of fastokens 0.3.1, and ``python -m
tools.faults environment`` makes the environment for it and prints its Python.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tools.faults import environment, forced, quarantine, real_bug, report, tables
from tools.faults.campaign import Left, Wanted, run
from tools.traffic import ProxyFailed, reference_ids

OF_QUARANTINE = 600
"""Requests of each run that shows what quarantine does, unless fewer are asked for in all."""
OF_QUARANTINE_RATE = 0.05
OF_QUARANTINE_SESSIONS = 20
BUG_SESSIONS, BUG_REQUESTS = 6, 4


def share(text: str) -> float:
    """``5%`` or ``0.05``. Raises ValueError outside 0 to 1."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value <= 1:
        raise ValueError(text)
    return value


def sampling(text: str) -> tuple[float, int | None]:
    """A share, and after ``=`` the requests of its run: ``1%=12000``. Raises ValueError."""
    part, given, requests = text.partition("=")
    return share(part), int(requests) if given else None


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description="Put faults in; see them found.")
    parser.add_argument("--requests", type=int, required=True, help="requests of a run")
    parser.add_argument("--rate", type=share, required=True, help="share of requests that get a fault")
    parser.add_argument(
        "--sample",
        type=sampling,
        action="append",
        required=True,
        metavar="SHARE[=N]",
        help="share that the verifier checks, in a run of N requests; may be repeated",
    )
    parser.add_argument("--clean", type=int, default=0, help="requests of one more run, without faults, all checked")
    parser.add_argument("--seed", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else list(argv)
    commands = {"real-bug": show_real_bug, "environment": make_environment}
    command = commands.get(arguments[0]) if arguments else None
    try:
        return command(arguments[1:]) if command is not None else show_campaign(arguments)
    except (ProxyFailed, RuntimeError, TimeoutError) as error:
        print(f"failed: {error}", file=sys.stderr)
        return 1


def show_campaign(argv: Sequence[str]) -> int:
    options = parse(argv)
    results = asyncio.run(campaign(options, Console()))
    results.write(options.json)
    for table in (tables.sampling, tables.kinds, tables.quarantines):
        print(table(results), end="\n\n")
    return _told(results.problems)


def make_environment(argv: Sequence[str]) -> int:
    argparse.ArgumentParser(prog="python -m tools.faults environment").parse_args(argv)
    print(environment.build())
    return 0


def show_real_bug(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.faults real-bug")
    parser.add_argument("--python", help="of an environment with fastokens 0.3.1; one is made without")
    parser.add_argument("--json", type=Path, required=True, help="file for the results")
    options = parser.parse_args(argv)
    python = options.python or str(environment.build())
    bodies = [body for seed in range(BUG_SESSIONS) for body in real_bug.session(seed, BUG_REQUESTS)]
    replays = [asyncio.run(real_bug.replay(engine, python, bodies)) for engine in forced.ENGINES]
    real_bug.write(options.json, replays)
    print(real_bug.table(replays))
    return _told([problem for one in replays for problem in one.problems])


def _told(problems: Sequence[str]) -> int:
    for problem in problems:
        print(problem, file=sys.stderr)
    return bool(problems)


async def campaign(options: argparse.Namespace, console: Console) -> tables.Results:
    """All runs, one after the other."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:

        async def one(wanted: Wanted, what: str, keep: bool = False) -> Left:
            if not console.is_terminal:
                print(what, file=sys.stderr, flush=True)
            task = progress.add_task(what, total=wanted.requests)
            return await run(wanted, lambda sent: progress.update(task, completed=sent), keep_received=keep)

        base = Wanted(options.requests, options.rate, 1.0, options.seed)
        runs = []
        for number, (sample, requests) in enumerate(options.sample):
            wanted = replace(base, sample=sample, requests=requests or options.requests, seed=options.seed + number)
            runs.append(report.summary(await one(wanted, f"faults, {sample * 100:g} % checked")))
        clean = None
        if options.clean:
            wanted = replace(base, rate=0.0, requests=options.clean, seed=options.seed + 100)
            clean = report.summary(await one(wanted, "no faults, all checked"))
        ids = reference_ids()
        few = replace(
            base,
            requests=min(OF_QUARANTINE, options.requests),
            rate=OF_QUARANTINE_RATE,
            on_mismatch="quarantine",
            sessions=OF_QUARANTINE_SESSIONS,
            warm_up=3 * OF_QUARANTINE_SESSIONS,  # so that not the first request of a session is quarantined first
            most_behind=1,  # what comes of a verdict is to be seen, not how long one takes
        )
        shown = []
        for spare in (True, False):
            left = await one(replace(few, spare_reference=spare), "quarantine", keep=True)
            shown.append(quarantine.summary(left, ids))
    versions = {name: version(name) for name in ("toktier-proxy", "tokenizers", "fastokens")}
    return tables.Results(options.seed, versions, runs, clean, shown)


if __name__ == "__main__":
    sys.exit(main())
