"""`python -m tools.engine build|start|stop|status`: a real vLLM on the CPU for tests. See `--help`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.engine.build import EngineError, build, default_cache, is_built
from tools.engine.model import LONG, TINY
from tools.engine.server import TOKENIZER, current, ensure_started, healthy, stop


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.engine", description=__doc__)
    parser.add_argument("action", choices=["build", "start", "stop", "status"])
    parser.add_argument("--cache", type=Path, default=default_cache(), help="default: %(default)s")
    parser.add_argument("--tokenizer", type=Path, default=TOKENIZER, help="folder with tokenizer.json or .xz")
    parser.add_argument("--port", type=int, default=0, help="default: a free one")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds until the engine must be ready")
    parser.add_argument(
        "--long", action="store_true", help="a model for sessions of 4 million characters, with less to do"
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    cache: Path = args.cache.absolute()
    try:
        if args.action == "build":
            versions = build(cache)
            print("built:", ", ".join(f"{name} {version}" for name, version in versions.items()))
        elif args.action == "start":
            running = ensure_started(cache, args.tokenizer, args.port, args.timeout, shape=LONG if args.long else TINY)
            print(f"ready: {running.url} (model {running.model}, process {running.pid}, log {running.log})")
        elif args.action == "stop":
            print("stopped" if stop(cache) else "not running")
        else:
            return status(cache)
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def status(cache: Path) -> int:
    running = current(cache)
    if running is None:
        print("built, not running" if is_built(cache) else "not built")
        return 3
    print(f"{'ready' if healthy(running.url) else 'not answering'}: {running.url} (process {running.pid})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
