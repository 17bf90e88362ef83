"""Command line of the benchmarks: see `tools.bench`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tools.bench import records, repair


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Measure, and print what was measured.")
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("repair", help="library account: append to kept sessions beside full encodes")
    measure.add_argument("--json", type=Path, required=True, help="file for the rows")
    measure.add_argument("--sizes", type=int, nargs="+", default=list(repair.SIZES), help="session sizes in characters")
    show = commands.add_parser("table", help="Markdown table of measured rows")
    show.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "repair":
        rows = repair.run(arguments.sizes)
        records.write(arguments.json, rows)
        print(records.table(rows))
    else:
        print(records.table([row for file in arguments.files for row in records.read(file)]))


if __name__ == "__main__":
    main()
