"""The command ``python -m tools.fuzz``. Exit code 0: no finding; 1: findings."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from tools.fuzz.runner import run, telling


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="+", help="numbers of inputs to send again")
    parser.add_argument("--json", type=Path, help="file for the report")
    args = parser.parse_args()
    numbers = args.only or range(args.inputs)
    with telling(len(numbers), lambda line: print(line, file=sys.stderr, flush=True)) as progress:
        report = asyncio.run(run(numbers, args.seed, progress))
    if args.json is not None:
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    findings = report["findings"]
    for finding in findings[:20]:
        print(json.dumps(finding)[:600])
    kinds = {finding["what"]: sum(other["what"] == finding["what"] for other in findings) for finding in findings}
    sent = f"{report['inputs']:,} inputs, {report['replies']:,} replies, {report['seconds']} s"
    print(f"{sent}, findings: {kinds or 'none'}")
    return int(bool(findings))


if __name__ == "__main__":
    sys.exit(main())
