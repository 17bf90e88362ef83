"""One run: the proxy's process, its engine, all inputs, and what the proxy is like afterwards."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from toktier.tokenizer import EMBEDDED
from tools.fuzz.bodies import CHAT, json_input
from tools.fuzz.client import Client
from tools.fuzz.inputs import Input, request
from tools.fuzz.judge import Finding, Judge
from tools.fuzz.wires import wire_input
from tools.traffic.engine import PROBE_AGENT, Engine, Tokenize, _reply, reference_ids
from tools.traffic.process import Served, config

AT_ONCE = 48
READ_TIMEOUT_S = 2.0
PATIENCE_S = 60.0
SETTLE_S = 30.0
MORE_MEMORY = 200 << 20
"""Bytes that the proxy may hold more at the end than after a tenth: sessions, and what the allocator keeps."""
MORE_SOCKETS = 16
_BUDGET = 64 << 20
_IDS = b'"prompt_token_ids":['


def make(seed: int, number: int) -> Input:
    """Input ``number``: seven of ten have HTTP in order."""
    return json_input(seed, number) if number % 10 < 7 else wire_input(seed, number)


class AnyRoute(Engine):
    """Answers every route, counts what arrives, and does not mind what is in it."""

    def __init__(self, tokenize: Tokenize) -> None:
        super().__init__(tokenize)
        self.reached: Counter[str] = Counter()

    def answer(self, method: str, path: str, headers: Mapping[str, str], raw: bytes) -> tuple[int, str, list[bytes]]:
        if headers.get("user-agent") == PROBE_AGENT:
            return super().answer(method, path, headers, raw)
        self.reached[headers.get("x-request-id", "")] += 1
        if method == "HEAD":
            return 200, "application/json", [b""]
        place = raw.rfind(_IDS)
        count = raw.count(b",", place, raw.find(b"]", place)) + 1 if place >= 0 else 0
        return _reply({"stream": b'"stream":true' in raw, "stream_options": {"include_usage": True}}, count)


def settings(engine: Engine, tokenizer: Path) -> dict[str, Any]:
    """Several tenants, short timeouts, little memory."""
    return config(
        engine.url,
        model={"tokenizer": str(tokenizer)},
        server={"read_timeout_s": READ_TIMEOUT_S, "max_body_bytes": 4 << 20},
        # The engine is this process, which may be kept from running for long where the machine is not its own.
        upstreams={"e": {"connect_timeout_s": 60.0}},
        limits={"header_timeout_s": READ_TIMEOUT_S},
        auth={"mode": "passthrough"},
        sessions={"budget_bytes": _BUDGET},
        log={"queue_lines": 1_000_000},
    )


async def run(
    numbers: Sequence[int],
    seed: int,
    progress: Callable[[int], None] = lambda _: None,
    tokenizer: Path = EMBEDDED,
) -> dict[str, Any]:
    """Send the inputs of these numbers to a new proxy. Returns the report: what was sent, what came, all findings.

    ``tokenizer``: the model's folder.
    """
    judge = Judge(partial(make, seed))
    start = time.monotonic()
    async with AnyRoute(reference_ids(tokenizer)) as engine, Served(settings(engine, tokenizer)) as proxy:
        place = urlsplit(proxy.url)
        assert place.hostname is not None
        assert place.port is not None
        client = Client(place.hostname, place.port, PATIENCE_S)
        first = min(len(numbers), max(len(numbers) // 10, 200))
        await _send(client, judge, numbers[:first], progress)
        before = process(proxy.pid)
        await _send(client, judge, numbers[first:], progress)
        client.close()
        after = await _settled(proxy.pid, before["sockets"])
        await _alive(proxy, judge)
        lines = list(proxy.events())
        said = (proxy.folder / "stderr").read_text("utf-8", "replace").splitlines()
        events = judge.log(lines, engine.reached)
    for line in said:
        if not line.startswith("toktier listens on "):
            judge.findings.append(Finding("stderr", detail=line[:500]))
    if after["rss_bytes"] > before["rss_bytes"] + MORE_MEMORY:
        judge.findings.append(Finding("memory", detail=f"{before['rss_bytes']:,} to {after['rss_bytes']:,} bytes"))
    if after["sockets"] > before["sockets"] + MORE_SOCKETS:
        judge.findings.append(Finding("sockets", detail=f"{before['sockets']} to {after['sockets']}"))
    return {
        "inputs": len(numbers),
        "seed": seed,
        "seconds": round(time.monotonic() - start, 1),
        "replies": judge.replies,
        "slowest_s": round(judge.slowest_s, 2),
        "shapes": dict(judge.shapes.most_common()),
        "ends": dict(judge.ends.most_common()),
        "statuses": dict(sorted(judge.statuses.items())),
        "error_codes": dict(judge.codes.most_common()),
        "events": dict(events.most_common()),
        "paths": dict(Counter(str(line["path"]) for line in lines if line["event"] == "request").most_common()),
        "engine_requests": sum(engine.reached.values()),
        "proxy_after_a_tenth": before,
        "proxy_at_the_end": after,
        "findings": [finding.json() for finding in judge.findings],
    }


async def _send(client: Client, judge: Judge, numbers: Sequence[int], progress: Callable[[int], None]) -> None:
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            given = judge.make(number)
            judge.outcome(given, await client.send(given))
            progress(1)

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())


async def _alive(proxy: Served, judge: Judge) -> None:
    """An ordinary request must be served with IDs, as before."""
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": "Are you there?"}]})
    raw = request("alive", "POST", CHAT, body, [("Content-Type", "application/json")])
    place = urlsplit(proxy.url)
    assert place.hostname is not None
    assert place.port is not None
    client = Client(place.hostname, place.port, PATIENCE_S)
    outcome = await client.send(Input(-1, "alive", (raw,)))
    client.close()
    status = outcome.replies[0].status if outcome.replies else None
    deadline = time.monotonic() + SETTLE_S
    found: dict[str, Any] = {}
    while not found and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
        found = next((line for line in proxy.events("request") if line["request_id"] == "alive"), {})
    if status != 200 or found.get("path") in (None, "bypass"):
        judge.findings.append(Finding("not_repairing", detail=f"{status}, {found.get('path')}, {found.get('bypass')}"))


def process(pid: int) -> dict[str, Any]:
    """Resident memory in bytes, open sockets, CPU seconds of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = os.sysconf("SC_CLK_TCK")
    return {
        "rss_bytes": pages * os.sysconf("SC_PAGE_SIZE"),
        "sockets": sum(_is_socket(link) for link in Path(f"/proc/{pid}/fd").iterdir()),
        "cpu_seconds": round((int(times[11]) + int(times[12])) / ticks, 1),
    }


def _is_socket(link: Path) -> bool:
    try:
        return os.readlink(link).startswith("socket:")
    except FileNotFoundError:
        return False


async def _settled(pid: int, sockets: int) -> dict[str, Any]:
    """The process once its connections are closed, at the latest after `SETTLE_S`."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        now = process(pid)
        if now["sockets"] <= sockets or time.monotonic() > deadline:
            return now
        await asyncio.sleep(0.2)


@contextmanager
def telling(total: int, write: Callable[[str], object]) -> Iterator[Callable[[int], None]]:
    """For ``progress``: says ten times how far it is."""
    sent = 0

    def progress(more: int) -> None:
        nonlocal sent
        before, sent = sent, sent + more
        if 10 * before // total != 10 * sent // total:
            write(f"{sent:,} of {total:,} inputs")

    yield progress
