"""The command ``python -m tools.fuzz.described``: schemathesis sends what `docs/openapi.json` describes, and what not.

Finds replies of 500 and above, a process that ended or wrote to standard error, and errors in its log. Exit code 0:
none; 1: some. schemathesis is a program of an environment of its own (``make fuzz-openapi``): nothing else needs it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.routes import ROUTES, Kind
from toktier.tokenizer import EMBEDDED
from tools.fuzz.every_route import EveryRoute
from tools.traffic import Served, config, reference_ids

DESCRIPTION = Path(__file__).parents[2] / "docs" / "openapi.json"
PHASES = "coverage,fuzzing"
SETTLE_S = 0.5
"""The log gathers lines for a moment before it writes them."""
MODEL = "m"


async def fuzz(program: Path, examples: int, seed: int, tokenizer: Path = EMBEDDED) -> list[str]:
    """What was found, in words. Raises OSError where ``program`` cannot be started; it is an absolute path.

    ``tokenizer``: the model's folder.
    """
    model = {"tokenizer": str(tokenizer)}
    async with (
        EveryRoute(reference_ids(tokenizer), (MODEL,)) as engine,
        Served(config(engine.url, (MODEL,), model=model)) as served,
    ):
        description = served.folder / DESCRIPTION.name
        description.write_text(json.dumps(named(json.loads(DESCRIPTION.read_text("utf-8")))), "utf-8")
        options = {
            "--url": served.url,
            "--checks": "not_a_server_error",
            "--phases": PHASES,
            "--max-examples": str(examples),
            "--seed": str(seed),
        }
        process = await asyncio.create_subprocess_exec(
            str(program), "run", str(description), *(word for pair in options.items() for word in pair),
            "--no-color",
            cwd=served.folder,  # it keeps what it found beside itself
        )  # fmt: skip
        code = await process.wait()
        await asyncio.sleep(SETTLE_S)
        print(f"forwarded and answered 200: {_answered(served)}")
        return list(findings(code, served))


def named(description: dict[str, Any]) -> dict[str, Any]:
    """The description of a server whose one model is `MODEL`. No random name would be that of a model."""
    description["components"]["schemas"]["Request"]["properties"]["model"] = {"enum": [MODEL, None]}
    for path in description["paths"].values():
        for parameter in path.get("parameters", []):
            if parameter["name"] == "model":
                parameter["schema"] = {"enum": [MODEL]}
    return description


def _answered(served: Served) -> str:
    forwarded = {route.pattern for route in ROUTES if route.kind not in (Kind.HEALTH, Kind.READY, Kind.METRICS)}
    good = {line["route"] for line in served.events("request") if line["upstream_status"] == 200}
    missing = sorted(forwarded - good)
    return f"{len(forwarded & good)} of {len(forwarded)} routes" + (f", not {', '.join(missing)}" if missing else "")


def findings(code: int, served: Served) -> Iterator[str]:
    """Of a run that ended with ``code``."""
    if code:
        yield f"schemathesis ended with {code}"
    if served.process.returncode is not None:
        yield f"the proxy ended with {served.process.returncode}"
    statuses = [line["status"] or 0 for line in served.events("request")]
    if not statuses:
        yield "no request arrived"
    if failed := sum(status >= 500 for status in statuses):
        yield f"{failed} of {len(statuses)} requests were answered with 500 or above"
    if errors := sorted({line["event"] for line in served.events() if line["level"] in ("error", "critical")}):
        yield f"errors in the log: {', '.join(errors)}"
    # Its first line says where it listens.
    if more := served.said().splitlines()[1:]:
        yield f"on standard error: {' '.join(more)[:500]}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz.described", description=__doc__)
    parser.add_argument("program", type=Path, help="schemathesis's own command, st")
    parser.add_argument("--examples", type=int, default=20, help="random requests for each operation")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    found = asyncio.run(fuzz(args.program.absolute(), args.examples, args.seed))
    print("\n".join(found) or "findings: none")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
