"""Command line of the benchmarks: see `tools.bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from toktier.tokenizer import EMBEDDED
from tools.bench import campaigns, cuts, derive, full, gpu, lag, records, render, repair

CACHE = Path("var") / "bench-cache"


def main() -> None:
    arguments = _parser().parse_args()
    sys.exit(arguments.run(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Measure, and print what was measured.")
    commands = parser.add_subparsers(required=True)

    def suite(name: str, run: object, help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help)
        command.add_argument("--json", type=Path, required=True, help="file for the rows")
        command.set_defaults(run=run)
        return command

    command = suite("repair", _repair, "library account: append to kept sessions beside full encodes")
    command.add_argument("--sizes", type=int, nargs="+", default=list(repair.SIZES), help="session sizes in characters")

    command = suite("render", _render, "render account: templates in full and incrementally")
    command.add_argument("--templates", nargs="+", default=[render.SHIPPED], help="names, as tools.folding finds them")
    command.add_argument("--rounds", type=int, default=25, help="appends of each case")

    command = suite("full", _full, "library account: full encodes of fresh text and of worst cases, on 1 and 2 cores")
    _tokenizers(command)
    command.add_argument("--fresh", type=int, default=1_000_000, help="characters of fresh text; 0: none")
    command.add_argument("--rounds", type=int, default=5, help="fresh texts; medians are taken over them")
    command.add_argument("--worst", type=int, default=4_000_000, help="characters of a worst case; 0: none")
    command.add_argument("--timeout", type=float, default=300.0, help="seconds after which an encode is given up")

    command = suite("cuts", _cuts, "distances between certified cuts, by kind of text")
    _tokenizers(command)
    command.add_argument("--size", type=int, default=1_000_000, help="characters of each text")

    command = suite("derive", _derive, "derivation of certificates, with nothing cached and cached")
    _tokenizers(command)
    command.add_argument("--rounds", type=int, default=3, help="derivations of each; medians are taken over them")

    command = suite("lag", _lag, "event-loop lag and short requests' latency while long ones arrive")
    command.add_argument("--label", default="after", help="names the rows; rows of other labels stay in the file")
    command.add_argument("--checkout", type=Path, default=Path(), help="folder of the proxy that is measured")
    command.add_argument("--seconds", type=float, default=lag.Plan.seconds, help="of each load")
    command.add_argument("--rate", type=float, default=lag.Plan.long_rate, help="long requests a second")

    command = suite("gpu", _gpu, "GPU accounts: one request host to host, bulk on the device, each kernel alone")
    _tokenizers(command)
    command.add_argument("--sizes", type=int, nargs="*", default=list(gpu.SIZES), help="characters of one request")
    command.add_argument("--bulk", type=int, default=256_000_000, help="bytes of bulk text; 0: none")
    command.add_argument("--rounds", type=int, default=gpu.ROUNDS, help="requests of each row")
    command.add_argument("--stages", type=Path, help="file for the times of each kernel")
    command.add_argument("--compile", type=int, help="compile the checkout's kernels for this architecture (90: H200)")

    command = suite("campaigns", _campaigns, "rows of the reports that python -m tools.campaigns --out keeps")
    command.add_argument("folder", type=Path, help="the folder of the reports")

    show = commands.add_parser("table", help="Markdown table of measured rows of repair")
    show.add_argument("files", type=Path, nargs="+")
    show.set_defaults(run=_table)
    return parser


def _tokenizers(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "tokenizers", type=Path, nargs="*", default=[EMBEDDED], help="folders; default: the embedded one"
    )


def _campaigns(arguments: argparse.Namespace) -> int:
    rows = campaigns.rows(arguments.folder)
    records.write(arguments.json, rows)
    print(campaigns.table(rows))
    return 0


def _repair(arguments: argparse.Namespace) -> int:
    rows = repair.run(arguments.sizes)
    records.write(arguments.json, rows)
    print(records.table(rows))
    return 0


def _render(arguments: argparse.Namespace) -> int:
    rows = render.run(arguments.templates, arguments.rounds)
    records.write(arguments.json, rows)
    print(render.table(rows))
    return _beyond(render.over_limit(rows))


def _full(arguments: argparse.Namespace) -> int:
    sizes = {"fresh": arguments.fresh, "worst": arguments.worst}
    rows = full.run(arguments.tokenizers, CACHE, rounds=arguments.rounds, timeout_s=arguments.timeout, **sizes)
    records.write(arguments.json, rows)
    print(full.table(rows))
    return _beyond(full.over_limit(rows))


def _cuts(arguments: argparse.Namespace) -> int:
    rows = cuts.run(arguments.tokenizers, CACHE, arguments.size)
    records.write(arguments.json, rows)
    print(cuts.table(rows))
    return 0


def _lag(arguments: argparse.Namespace) -> int:
    plan = lag.Plan(seconds=arguments.seconds, long_rate=arguments.rate)
    kept = records.read(arguments.json, lag.Lag) if arguments.json.exists() else []
    rows = lag.run(arguments.label, arguments.checkout, plan)
    rows = [row for row in kept if row.label != arguments.label] + rows
    records.write(arguments.json, rows)
    print(lag.table(rows))
    return 0


def _gpu(arguments: argparse.Namespace) -> int:
    rows, stages = gpu.run(arguments.tokenizers, arguments.compile, arguments.sizes, arguments.bulk, arguments.rounds)
    records.write(arguments.json, rows)
    if arguments.stages:
        records.write(arguments.stages, stages)
    print(records.table(rows))
    print(gpu.table(stages))
    return 0


def _derive(arguments: argparse.Namespace) -> int:
    rows = derive.run(arguments.tokenizers, arguments.rounds)
    records.write(arguments.json, rows)
    print(derive.table(rows))
    return _beyond(derive.over_limit(rows))


def _table(arguments: argparse.Namespace) -> int:
    print(records.table([row for file in arguments.files for row in records.read(file)]))
    return 0


def _beyond(limits: list[str]) -> int:
    """Exit code 1 where a number is beyond its limit; says which."""
    for line in limits:
        print(f"beyond the limit: {line}", file=sys.stderr)
    return bool(limits)


if __name__ == "__main__":
    main()
