"""One run: sessions through a real proxy whose tier sends wrong IDs, at one share of sampling; and what came of it."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toktier.tokenizer import EMBEDDED
from tools.faults import plan, reading
from tools.faults.kinds import Kind
from tools.faults.tier import Injection
from tools.traces import Step
from tools.traffic import Client, Engine, Received, Served, Session, config, drive, reference_ids

COMMAND = "tools.faults.proxy"
SESSIONS = 120
CONCURRENT = 6
CHARS = 4_000
"""At which a session compacts itself."""
LIFETIME = 40
"""Requests after which a session starts over as a new conversation."""
QUEUE_JOBS = 2_000
QUEUE_BYTES = 256 << 20
TIMEOUT_S = 600
"""Of a check: workers have the lowest priority, and a busy machine lets them wait."""
MOST_BEHIND = 200
"""Checks that may wait. Beyond that the load does, so that sampling at 100 % drops nothing."""
LOOK_S = 0.1
IDLE_S = 300.0
"""Longest wait for the last verdicts."""
QUIET_S = 2.0

_ENDED = re.compile(r"^toktier_shadow_(?:checks|dropped)_total\{.*\} (\S+)$", re.MULTILINE)
_WAITING = re.compile(r"^toktier_shadow_waiting (\S+)$", re.MULTILINE)


@dataclass(frozen=True)
class Wanted:
    """What to run. ``sample`` and ``rate`` are shares; ``python`` runs the proxy."""

    requests: int
    rate: float
    sample: float
    seed: int = 0
    on_mismatch: str = "report"
    spare_reference: bool = True
    kinds: tuple[Kind, ...] = tuple(Kind)
    sessions: int = SESSIONS
    most_behind: int = MOST_BEHIND
    warm_up: int = 0
    """Requests before the first fault."""
    python: str = sys.executable
    tokenizer: Path = EMBEDDED
    """Folder of the model's tokenizer and chat template."""


@dataclass
class Left:
    """What a run left: all that the report is made of."""

    wanted: Wanted
    log: reading.Log
    injections: list[Injection]
    audit_code: int
    audit: dict[str, Any]
    ready: str
    seconds: float
    received: dict[str, Received] = field(default_factory=dict)


async def run(
    wanted: Wanted,
    tell: Callable[[int], None] = lambda _sent: None,
    *,
    keep_received: bool = False,
) -> Left:
    """Run it in a folder of its own, which is removed. ``tell`` is told how many requests were sent."""
    with tempfile.TemporaryDirectory(prefix="toktier-faults-") as name:
        return await _run(wanted, Path(name), tell, keep_received)


async def _run(wanted: Wanted, folder: Path, tell: Callable[[int], None], keep_received: bool) -> Left:
    faults = folder / "faults.jsonl"
    todo = folder / "plan.json"
    plan.Plan(
        file=faults,
        rate=wanted.rate,
        seed=wanted.seed,
        kinds=wanted.kinds,
        spare_reference=wanted.spare_reference,
        warm_up=wanted.warm_up,
    ).write(todo)
    received: dict[str, Received] = {}

    def keep(one: Received) -> None:
        if one.request_id is not None:
            received[one.request_id] = one

    engine = Engine(reference_ids(wanted.tokenizer), received=keep if keep_received else None)
    started = time.monotonic()
    async with engine:
        tree = config(
            engine.url,
            shadow=shadow(wanted.sample, wanted.on_mismatch),
            model={"tokenizer": str(wanted.tokenizer)},
        )
        command = (wanted.python, "-m", COMMAND, str(todo))
        async with Served(tree, command=command, folder=folder / "proxy") as proxy, Client(proxy.url) as client:
            await _drive(wanted, proxy, client, tell)
            await idle(proxy)
            _, ready = await proxy.ask("/ready")
            await proxy.stop()
            code, audit = await asyncio.to_thread(reading.audit, (wanted.python, "-m", "proxy.cli"), proxy.log)
            log = reading.read_log(proxy.log)
    return Left(wanted, log, reading.read_injections(faults), code, audit, ready, time.monotonic() - started, received)


def shadow(sample: float, on_mismatch: str) -> dict[str, Any]:
    """The table ``[shadow]``: nothing is checked but by chance, so that its share is known."""
    return {
        "rate": sample,
        "first": 0,
        "after_change": False,
        "parity_rate": 0,
        "on_mismatch": on_mismatch,
        "queue_jobs": QUEUE_JOBS,
        "queue_bytes": QUEUE_BYTES,
        "timeout_s": TIMEOUT_S,
    }


async def _drive(wanted: Wanted, proxy: Served, client: Client, tell: Callable[[int], None]) -> None:
    sessions = [Session(f"{wanted.seed}/{n}", chars=CHARS, lifetime=LIFETIME) for n in range(wanted.sessions)]
    of_request: dict[str, str] = {}
    room = asyncio.Event()
    room.set()
    sent = 0

    def note(request_id: str, session: Session, _step: Step) -> None:
        of_request[request_id] = session.name

    async def send(body: dict[str, Any], request_id: str) -> None:
        nonlocal sent
        await room.wait()
        reply = await client.send({**body, "user": request_id}, request_id, session=of_request.pop(request_id))
        if reply.status != 200:
            raise RuntimeError(f"{request_id}: {reply.status} {reply.error}")
        sent += 1
        tell(sent)

    watching = asyncio.create_task(_watch(proxy, room, wanted.most_behind))
    try:
        await drive(sessions, send, requests=wanted.requests, concurrent=CONCURRENT, on_step=note)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(proxy: Served, room: asyncio.Event, most: int) -> None:
    """Holds the load back while more than ``most`` checks wait, until a quarter of that does."""
    try:
        while True:
            waiting, _ = await _counts(proxy)
            if waiting > most:
                room.clear()
            elif waiting <= most // 4:
                room.set()
            await asyncio.sleep(LOOK_S if most == MOST_BEHIND else LOOK_S / 10)
    finally:
        room.set()  # whatever went wrong here, the load goes on and meets it


async def _counts(proxy: Served) -> tuple[int, int]:
    """Checks that wait, and checks that were made or dropped."""
    _, text = await proxy.ask("/metrics")
    waiting, ended = (sum(int(float(value)) for value in found.findall(text)) for found in (_WAITING, _ENDED))
    return waiting, ended


async def idle(proxy: Served) -> None:
    """Until no check waits and none has ended for a while. One that still runs is finished when the proxy stops."""
    deadline = time.monotonic() + IDLE_S
    before, since = -1, time.monotonic()
    while True:
        waiting, ended = await _counts(proxy)
        now = time.monotonic()
        if waiting or ended != before:
            before, since = ended, now
        if now - since >= QUIET_S:
            return
        if now > deadline:
            raise TimeoutError(f"checks still wait after {IDLE_S:.0f} s")
        await asyncio.sleep(0.1)
