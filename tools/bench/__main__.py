"""Command line of the benchmarks: see `tools.bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from toktier.tokenizer import EMBEDDED
from tools.bench import (
    campaigns,
    cuts,
    derive,
    encoders,
    engine,
    full,
    gpu,
    lag,
    memory,
    proxy,
    records,
    render,
    repair,
)
from tools.engine.build import EngineError

CACHE = Path("var") / "bench-cache"


def main() -> None:
    arguments = _parser().parse_args()
    try:
        sys.exit(arguments.run(arguments))
    except EngineError as error:
        sys.exit(f"error: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description="Measure, and print what was measured.")
    commands = parser.add_subparsers(required=True)

    def suite(name: str, run: object, help: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help)
        command.add_argument("--json", type=Path, required=True, help="file for the rows")
        command.set_defaults(run=run)
        return command

    command = suite("repair", _repair, "library account: changes to kept sessions beside other engines")
    _sizes(command, repair.SIZES, 20)
    command.add_argument("--only", nargs="+", default=list(repair.CASES), choices=repair.CASES, help="cases")
    names = list(encoders.ENGINES)
    command.add_argument("--engines", nargs="+", default=names, choices=names, help="default: all")
    _environments(command)

    command = suite("render", _render, "render account: templates in full and incrementally")
    command.add_argument("--templates", nargs="+", help="names, as tools.folding finds them; default: the test data's")
    command.add_argument("--folders", type=Path, nargs="*", default=[], help="folders to search for *.jinja as well")
    command.add_argument("--add", action="store_true", help="keep the rows of other templates that the file has")
    _sizes(command, sorted({messages for _, messages in render.CASES}), 25, "messages")
    cases = sorted({case for case, _ in render.CASES})
    command.add_argument("--only", nargs="+", default=cases, choices=cases, help="cases")
    _environments(command)

    command = suite("proxy", _proxy, "proxy account: what a proxy adds to a turn, and what vLLM's front end takes")
    _sizes(command, proxy.SIZES, 200)
    command.add_argument("--sessions", type=int, nargs="+", default=list(proxy.SESSIONS), help="at once")
    command.add_argument(
        "--vllm", nargs="?", const="", help="also measure vLLM's front end: at this URL, or tools.engine's (started)"
    )

    command = suite("engine", _engine, "engine account: time to first token of a real vLLM on the CPU")
    _sizes(command, engine.SIZES, 30)
    command.add_argument("--vllm", help="its URL; default: tools.engine's, which is built and started where needed")

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

    command = suite("memory", _memory, "memory account: bytes a token of kept sessions, and growth of the process")
    command.add_argument("--tokens", type=int, nargs="+", default=list(memory.TOKENS), help="of one session")
    command.add_argument("--texts", nargs="+", choices=list(memory.TEXTS), default=list(memory.TEXTS))

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


def _sizes(
    command: argparse.ArgumentParser, sizes: Sequence[int], rounds: int, what: str = "characters of a session"
) -> None:
    command.add_argument("--sizes", type=int, nargs="+", default=list(sizes), help=what)
    command.add_argument("--rounds", type=int, default=rounds, help="of each case; long sessions may have fewer")
    command.add_argument("--quick", action="store_true", help="short sessions and few rounds, to see that it runs")


def _environments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--environments", type=Path, help="folder of the other packages' environments (default: cache)"
    )
    command.add_argument("--no-build", action="store_true", help="leave out those whose environment is not there")


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
    small = {"sizes": repair.SIZES[:1], "rounds": 3} if arguments.quick else {}
    wanted = {"sizes": arguments.sizes, "rounds": arguments.rounds, "cases": arguments.only} | small
    places = {"environments": arguments.environments, "build": not (arguments.no_build or arguments.quick)}
    rows = repair.run(repair.Plan(engines=arguments.engines, **wanted, **places), CACHE)
    records.write(arguments.json, rows)
    print(records.table(rows))
    print(records.throughput([row for row in rows if row.case == f"append {repair.TURN:,}"]))
    return _beyond(repair.over_limit(rows))


def _render(arguments: argparse.Namespace) -> int:
    sizes, rounds = ([10, 100], 5) if arguments.quick else (arguments.sizes, arguments.rounds)
    cases = [one for one in render.CASES if one[0] in arguments.only and one[1] in sizes]
    names = arguments.templates or ([render.SHIPPED] if arguments.quick else render.default_templates())
    build = not (arguments.no_build or arguments.quick)
    try:
        rows = render.run(names, rounds, cases, arguments.environments, build, arguments.folders)
    except render.NotFound as error:
        sys.exit(f"error: {error}")
    kept = records.read(arguments.json, render.Render) if arguments.add and arguments.json.exists() else []
    rows = [row for row in kept if row.template not in names] + rows
    records.write(arguments.json, rows)
    print(render.table(rows))
    return _beyond(render.over_limit(rows))


def _proxy(arguments: argparse.Namespace) -> int:
    small = {"sizes": proxy.SIZES[:1], "rounds": 5} if arguments.quick else {}
    wanted = {"sizes": arguments.sizes, "rounds": arguments.rounds} | small
    plan = proxy.Plan(sessions=arguments.sessions, **wanted)
    if arguments.vllm is None:
        rows = proxy.run(plan)
    else:
        with engine.vllm(arguments.vllm or None) as url:
            rows = proxy.run(plan, url)
    records.write(arguments.json, rows)
    print(records.table(rows))
    return _beyond(proxy.over_limit(rows))


def _engine(arguments: argparse.Namespace) -> int:
    small = {"sizes": engine.SIZES[:1], "rounds": 3} if arguments.quick else {}
    wanted = {"sizes": arguments.sizes, "rounds": arguments.rounds} | small
    with engine.vllm(arguments.vllm) as url:
        rows = engine.run(engine.Plan(**wanted), url)
    records.write(arguments.json, rows)
    print(records.table(rows))
    print(records.throughput(rows))
    return 0


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


def _memory(arguments: argparse.Namespace) -> int:
    rows = memory.run(arguments.tokens, arguments.texts)
    records.write(arguments.json, rows)
    print(memory.table(rows))
    return _beyond(memory.over_limit(rows))


def _gpu(arguments: argparse.Namespace) -> int:
    rows, stages = [], []
    for more, parts in gpu.run(
        arguments.tokenizers, arguments.compile, arguments.sizes, arguments.bulk, arguments.rounds
    ):
        rows += more
        stages += parts
        records.write(arguments.json, rows)  # what is measured is kept, whatever comes
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
