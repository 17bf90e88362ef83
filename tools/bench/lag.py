"""How late the proxy's event loop runs, and how long short requests take, while long ones arrive.

Three processes: a proxy (`tools.bench.lag_proxy`, of any checkout), the fast engine of `tools.traffic`, this client.
Requests arrive by a clock, whether or not earlier ones are answered, and are timed from when they were due. The loads
come one after the other, the first again at the end: what the others add is to be read against it, in the same run.

- *short*: chats of 2,000 characters (prepared on the event loop), and every fourth of 40,000 (in a thread); all new.
- *long*: also chats of 1,000,000 new characters in 400 messages.
- *hostile*: also bodies of 4 MB of empty lists.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import tempfile
import time
from array import array
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from tools.bench import lag_proxy
from tools.bench.texts import corpus
from tools.traffic import Engine, Served, config, reference_ids

SHORT_CHARS, MEDIUM_CHARS, LONG_CHARS = 2_000, 40_000, 1_000_000
LONG_MESSAGES = 400
HOSTILE_BYTES = 4 << 20
LOADS = ("short", "long", "hostile", "short again")
LATE_MS = 20.0
SETTLE_S = 2.0
"""Between two loads."""


@dataclass(frozen=True)
class Lag:
    """One load. Times in milliseconds; ``late`` counts sleeps of the loop that were more than `LATE_MS` too long.

    ``held`` is the part of a delay that the process itself may have caused (`tools.bench.lag_proxy`); the rest is the
    machine's, which had other work.
    Of the requests of each size: how many, percentiles, and how many did not get 200. -1 where there was none.
    """

    label: str
    load: str
    seconds: float
    lag_p50: float
    lag_p99: float
    lag_max: float
    late: int
    held_p99: float
    held_max: float
    held_late: int
    short_n: int
    short_p50: float
    short_p99: float
    short_max: float
    medium_n: int
    medium_p50: float
    medium_p99: float
    medium_max: float
    long_n: int
    long_p50: float
    long_max: float
    failed: int


@dataclass(frozen=True)
class Plan:
    """``seconds`` of each load; arrivals a second."""

    seconds: float = 15.0
    short_rate: float = 20.0
    long_rate: float = 1.0
    hostile_rate: float = 0.5


def run(label: str, checkout: Path, plan: Plan) -> list[Lag]:
    """All loads against the proxy of ``checkout``."""
    with tempfile.TemporaryDirectory(prefix="toktier-lag-") as name:
        folder = Path(name)
        noted = folder / "noted"
        command = (sys.executable, "-P", lag_proxy.__file__, str(checkout.resolve()), str(noted))
        loads = asyncio.run(_loads(command, folder / "proxy", plan))
        values = array("d", noted.read_bytes())
    return [_row(label, load, values) for load in loads]


async def _loads(command: Sequence[str], folder: Path, plan: Plan) -> list[_Load]:
    loads = []
    async with _engine() as url, Served(config(url), command=command, folder=folder) as proxy:
        client = _Client(proxy.url, plan)
        for load in LOADS:
            loads.append(await client.load(load))
            await asyncio.sleep(SETTLE_S)
    return loads


@asynccontextmanager
async def _engine() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tools.bench.lag",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield (await process.stdout.readline()).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


async def _serve_engine() -> None:
    async with Engine(reference_ids()) as engine:
        print(engine.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


@dataclass
class _Load:
    name: str
    begun: float
    ended: float
    short: list[float]
    medium: list[float]
    long: list[float]
    failed: int = 0


class _Client:
    def __init__(self, url: str, plan: Plan) -> None:
        self._url, self._plan = url + "/v1/chat/completions", plan
        self._number = 0
        self._text = corpus(0, 3 * LONG_CHARS)

    async def load(self, name: str) -> _Load:
        plan = self._plan
        shorts = [self._chat(MEDIUM_CHARS if n % 4 == 3 else SHORT_CHARS) for n in range(self._count(plan.short_rate))]
        others: list[bytes] = []
        rate = 0.0
        if name == "long":
            rate = plan.long_rate
            others = [self._chat(LONG_CHARS, LONG_MESSAGES) for _ in range(self._count(rate))]
        elif name == "hostile":
            rate = plan.hostile_rate
            body = b'{"model":"m","messages":[' + b"[]," * (HOSTILE_BYTES // 3) + b"[]]}"
            others = [body] * self._count(rate)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            load = _Load(name, time.monotonic(), 0.0, [], [], [])
            tasks = [
                asyncio.create_task(self._send(http, load, body, load.begun + n / plan.short_rate, into))
                for n, body in enumerate(shorts)
                for into in [load.medium if n % 4 == 3 else load.short]
            ]
            tasks += [
                asyncio.create_task(self._send(http, load, body, load.begun + (n + 0.37) / rate, load.long))
                for n, body in enumerate(others)
            ]
            await asyncio.gather(*tasks)
            load.ended = time.monotonic()
        return load

    def _count(self, rate: float) -> int:
        return max(1, round(self._plan.seconds * rate))

    def _chat(self, chars: int, messages: int = 1) -> bytes:
        self._number += 1
        # Cut from one text, with a number in front: as new to the proxy as another text, and quick to make.
        start = random.Random(self._number).randrange(len(self._text) - chars)
        text = f"{self._number} {self._text[start : start + chars]}"[:chars]
        size = math.ceil(chars / messages)
        content = [text[at : at + size] for at in range(0, chars, size)]
        roles = ("user", "assistant")
        body = {"model": "m", "messages": [{"role": roles[n % 2], "content": part} for n, part in enumerate(content)]}
        return json.dumps(body, ensure_ascii=False).encode()

    async def _send(
        self, http: aiohttp.ClientSession, load: _Load, body: bytes, due: float, times: list[float]
    ) -> None:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        try:
            async with http.post(self._url, data=_pieces(body), headers={"Content-Length": str(len(body))}) as reply:
                await reply.read()
                good = reply.status == 200
        except (aiohttp.ClientError, OSError):
            good = False
        times.append(time.monotonic() - due)
        if not good:
            load.failed += 1


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), 1 << 18):
        yield body[start : start + (1 << 18)]


def _row(label: str, load: _Load, noted: Sequence[float]) -> Lag:
    own = [
        (lag, held)
        for at, lag, held in zip(noted[::3], noted[1::3], noted[2::3], strict=True)
        if load.begun <= at <= load.ended
    ]

    def ranks(seconds: Sequence[float], *shares: float) -> list[float]:
        ordered = sorted(seconds)
        if not ordered:
            return [-1.0] * len(shares)
        return [round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] * 1000, 1) for share in shares]

    lag_p50, lag_p99, lag_max = ranks([lag for lag, _ in own], 0.5, 0.99, 1)
    held_p99, held_max = ranks([held for _, held in own], 0.99, 1)
    short_p50, short_p99, short_max = ranks(load.short, 0.5, 0.99, 1)
    medium_p50, medium_p99, medium_max = ranks(load.medium, 0.5, 0.99, 1)
    long_p50, long_max = ranks(load.long, 0.5, 1)
    late, held_late = (sum(each[which] * 1000 > LATE_MS for each in own) for which in (0, 1))
    return Lag(
        label, load.name, round(load.ended - load.begun, 1), lag_p50, lag_p99, lag_max, late,
        held_p99, held_max, held_late,
        len(load.short), short_p50, short_p99, short_max, len(load.medium), medium_p50, medium_p99, medium_max,
        len(load.long), long_p50, long_max, load.failed,
    )  # fmt: skip


def table(rows: Sequence[Lag]) -> str:
    """Markdown, one row a load."""
    out = [
        "| | load | loop late by, ms: P50 / P99 / longest | over 20 ms | of that held by the process: P99 / longest "
        "| over 20 ms | 2K chats, ms: P50 / P99 / longest | 40K chats | 1M chats or hostile bodies: n, P50 / longest |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        long = f"{row.long_n}: {row.long_p50:g} / {row.long_max:g}" if row.long_n else "-"
        out.append(
            f"| {row.label} | {row.load} | {row.lag_p50:g} / {row.lag_p99:g} / {row.lag_max:g} | {row.late} "
            f"| {row.held_p99:g} / {row.held_max:g} | {row.held_late} "
            f"| {row.short_p50:g} / {row.short_p99:g} / {row.short_max:g} "
            f"| {row.medium_p50:g} / {row.medium_p99:g} / {row.medium_max:g} | {long} |"
        )
    return "\n".join(out)


if __name__ == "__main__":
    asyncio.run(_serve_engine())
