"""Command line of the soak: see `tools.soak`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.soak.run import Plan, soak


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 where something was found."""
    parser = argparse.ArgumentParser(prog="python -m tools.soak", description="A proxy under everything at once.")
    parser.add_argument("--seconds", type=float, default=180.0, help="of load; start and end come on top")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between restarts of the engine, about")
    parser.add_argument("--rate", type=float, default=12.0, help="requests a second at most")
    parser.add_argument("--nice", type=int, help="priority for shadow workers, on a machine that others use (as root)")
    parser.add_argument("--json", type=Path, help="write the report there")
    parser.add_argument("--keep", type=Path, help="folder for the proxy's files, its log among them")
    args = parser.parse_args(argv)
    report = asyncio.run(
        soak(Plan(args.seconds, args.sessions, args.seed, args.every, args.rate, args.nice), args.keep)
    )
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n", "utf-8")
    print(text(report))
    return 1 if report["findings"] else 0


def text(report: dict[str, Any]) -> str:
    """The report for people."""
    requests, ids, trouble, process = (report[name] for name in ("requests", "ids", "trouble", "process"))
    checks = ids["checks"]
    lines = [
        f"{requests['started']} requests of {report['sessions']} sessions in {report['seconds']:g} s, "
        f"{ids['received'].get('ids', 0)} with IDs, {ids['received'].get('text', 0)} as text",
        f"{checks.get('equal', 0)} shadow checks equal, {checks.get('different', 0)} different, "
        f"{sum(ids['dropped'].values())} dropped; {ids['compared_with_transformers']} compared with transformers, "
        f"{ids['wrong']} wrong",
        f"{sum(trouble['engine'].values())} troubles with the engine, {trouble['workers_killed']} workers killed, "
        f"{requests['failed']} requests failed by them",
        f"memory {process['after']['rss'] >> 20} MiB at the end, "
        f"{process['rss_growth_second_half_bytes'] / (1 << 20):+.1f} MiB over the second half; "
        f"{process['after']['fds']} descriptors ({process['before']['fds']} before), "
        f"{process['after']['threads']} threads",
    ]
    found = report["findings"]
    return "\n".join([*lines, *(f"FOUND: {one}" for one in found), "nothing was found" if not found else ""]).rstrip()


if __name__ == "__main__":
    sys.exit(main())
