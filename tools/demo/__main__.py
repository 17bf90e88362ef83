"""Run the demo: `python -m tools.demo`. Exit code 0 only if every turn is exact and enough were repaired."""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from typing import Any

import openai
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from proxy.embedded import EmbeddedEngine
from tools.demo import report
from tools.demo.script import make_script
from tools.demo.services import Proxy, ProxyFailed
from tools.demo.session import Agent, Turn, play

SEED = 7
EXPECTED_TURNS = 39
"""For the progress bar only."""
PAGE_WIDTH = 160
"""Columns where the output is no terminal."""


@asynccontextmanager
async def shown(console: Console, what: str) -> AsyncIterator[None]:
    """Says that ``what`` is going on, and how long it took."""
    started = time.monotonic()
    with console.status(f"{what} ..."):
        yield
    console.print(f"{what}: {time.monotonic() - started:.1f} s")


async def complete(turn: Turn, engine: EmbeddedEngine, proxy: Proxy) -> None:
    """Adds what the proxy's log and the engine's verdict say about the turn."""
    turn.log = (await proxy.records(turn.request_id, turn.attempt + 1))[turn.attempt]
    await engine.settled()
    verdicts = [v for v in engine.verdicts if v.request_id == turn.request_id]
    if turn.attempt < len(verdicts):
        turn.verdict = asdict(verdicts[turn.attempt])


async def session(console: Console, engine: EmbeddedEngine, proxy: Proxy, seed: int) -> list[Turn]:
    """Play the session and collect its turns, complete."""
    turns: list[Turn] = []
    columns: Any = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    async with openai.AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="unused", max_retries=0) as client:
        with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
            bar = progress.add_task("agent session", total=EXPECTED_TURNS)
            async for turn in play(Agent(client, engine.model, seed)):
                await complete(turn, engine, proxy)
                turns.append(turn)
                progress.update(bar, advance=1, description=f"agent session: {turn.what}")
                if not console.is_terminal and len(turns) % 10 == 0:
                    console.print(f"{len(turns)} turns")
    return turns


async def main(console: Console, seed: int = SEED) -> int:
    """The whole demo; returns the exit code."""
    async with AsyncExitStack() as stack:
        engine = EmbeddedEngine(script=make_script(seed))
        async with shown(console, "embedded engine (a simulator without a model; transformers checks the IDs)"):
            await stack.enter_async_context(engine)
        async with shown(console, "toktier serve (it certifies the tokenizer and probes the engine)"):
            proxy = await stack.enter_async_context(Proxy(engine.url, engine.model))
        started = time.monotonic()
        turns = await session(console, engine, proxy, seed)
        seconds = time.monotonic() - started
    for table in report.tables(turns, console.width):
        console.print(table)
    report.summary(console, turns, seconds)
    found = report.problems(turns) + report.lacking(turns)
    for problem in found:
        console.print(f"[bold red]{problem}[/]")
    return 1 if found else 0


def run() -> int:
    """Entry point: Ctrl-C ends the demo's own processes and then the demo."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=PAGE_WIDTH)
    logging.getLogger("toktier.simulator").addHandler(logging.StreamHandler())
    try:
        return asyncio.run(main(console))
    except KeyboardInterrupt:
        return 130
    except (ProxyFailed, openai.APIError, TimeoutError) as error:
        console.print(f"the demo failed: {type(error).__name__}: {error}", markup=False, style="bold red")
        return 1


if __name__ == "__main__":
    sys.exit(run())
