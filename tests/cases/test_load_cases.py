"""The given cases of kind ``load``, each against a proxy process of its own.

Their inputs are as given. What would take minutes is scaled: numbers of requests and clients, and with them the memory
that sessions may take (`TOKTIER_CASES_SCALE=1` plays them as given: minutes, and 6 GiB). Nothing is asserted that other
work on the machine could change, so F01 asks for how long the process itself can have held its loop
(`tools.bench.lag_proxy`), and F05 for a whole report, not for its numbers.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from array import array
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.conftest import ROOT
from tests.support.cases import CHAT, expand, plays
from tests.support.fake_upstream import FakeUpstream
from tests.support.reference import Reference
from tests.support.tokenizer_files import CACHE
from tools.bench import lag_proxy
from tools.traffic import Client, Engine, Received, Served, config

pytestmark = [pytest.mark.xdist_group("reference"), pytest.mark.slow]

QUIET = {"rate": 0, "first": 0, "parity_rate": 0}
"""No checks beside: what they take is not the case's."""
SCALE = float(os.environ.get("TOKTIER_CASES_SCALE", 1 / 32))
BUDGET = 512 << 20
"""What a proxy's sessions may take that is to stay below 1 GiB, with a tokenizer of 150,000 entries in it."""


DONE = "data: [DONE]\n\n"


def proxy_for(engine: Engine | FakeUpstream, **tables: Any) -> dict[str, Any]:
    return config(engine.url, server={"cache_dir": str(CACHE)}, shadow=QUIET, **tables)


def peak_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) / 1024


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def sample(metrics: str, name: str) -> float:
    (line,) = [line for line in metrics.splitlines() if line.split(" ")[0] == name]
    return float(line.split(" ")[1])


@plays("S06")
async def test_sessions_without_end_take_bounded_memory(
    case: dict[str, Any], reference: Reference, tmp_path: Path
) -> None:
    source, wants = case["input"], case["expected"]["assert"]
    assert (source["clients"], wants.keys()) == (1, {"rss_mib_max", "ids_equal_reference"})
    assert wants["ids_equal_reference"]
    requests, budget = int(source["requests"] * SCALE), int(BUDGET * SCALE)
    got: list[Received] = []
    async with Engine(reference.ids, received=got.append) as engine:
        tree = proxy_for(engine, sessions={"budget_bytes": budget})
        async with Served(tree, folder=tmp_path / "proxy") as proxy, Client(proxy.url) as client:
            peaks = []
            for number in [*range(requests), 0]:
                reply = await client.send(expand(source["body"], number), f"r-{number}")
                assert reply.status == 200
                peaks.append(peak_mib(proxy.pid))
            _, metrics = await proxy.ask("/metrics")
            lines = list(proxy.events("request"))
    assert peaks[-1] <= wants["rss_mib_max"]
    assert peaks[-1] - peaks[2 * requests // 3] <= wants["rss_mib_max"] * SCALE, "what is full does not grow"
    assert 0 < sample(metrics, "toktier_session_bytes") <= budget
    assert 1 < sample(metrics, "toktier_sessions") < requests / 2, "most were evicted"
    assert [line["path"] for line in lines] == ["init"] * len(lines), "which costs a full encode"
    expected = Expansion(source["body"], reference)
    for number in (0, requests // 2):
        assert expected.ids(number) == reference.ids(expand(source["body"], number))
    for number, one in zip([*range(requests), 0], got, strict=True):
        assert one.ids == expected.ids(number)


class Expansion:
    """The reference's IDs of S06's bodies, without encoding the same 100,000 characters each time: the word that they
    repeat is one ID, so the IDs are those of a body with two of it, and as many more."""

    def __init__(self, body: dict[str, Any], reference: Reference) -> None:
        self._body, self._reference = body, reference
        whole = reference.ids(expand(body, 0))
        self._word = max(set(whole), key=whole.count)
        self._times = whole.count(self._word)

    def ids(self, number: int) -> list[int]:
        (message,) = self._body["messages"]
        *head, repeated = message["content"]["$concat"]
        short = {"$concat": [*head, {"$repeat": [repeated["$repeat"][0], 2]}]}
        ids = self._reference.ids(expand({**self._body, "messages": [{**message, "content": short}]}, number))
        at, few = ids.index(self._word), ids.count(self._word)
        return ids[:at] + [self._word] * self._times + ids[at + few :]


@plays("F01")
async def test_a_long_prompt_does_not_hold_the_streams(
    case: dict[str, Any], reference: Reference, tmp_path: Path
) -> None:
    source, wants = case["input"], case["expected"]["assert"]
    assert wants.keys() == {"loop_gap_ms_max"}
    long = expand(source["then"])
    noted = tmp_path / "noted"
    command = (sys.executable, "-P", lag_proxy.__file__, str(ROOT), str(noted))
    async with (
        FakeUpstream(tokenize=reference.ids) as up,
        Served(proxy_for(up), command=command, folder=tmp_path / "proxy") as proxy,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http,
    ):
        event = 'data: {"choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
        chunks: list[float] = []

        async def stream(number: int) -> None:
            content = f"stream {number}"
            body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": content}]}
            up.scripts.append([{"repeat": {"send": event, "sleep_ms": 20, "times": 150}}, {"send": DONE}])
            async with http.post(proxy.url + CHAT, json=body) as reply:
                assert reply.status == 200
                whole = b""
                async for piece in reply.content.iter_any():
                    chunks.append(time.monotonic())
                    whole += piece
                assert whole.decode() == event * 150 + DONE

        async with asyncio.TaskGroup() as group:
            for number in range(source["streams"]):
                group.create_task(stream(number))
            while up.scripts or len(chunks) < 5 * source["streams"]:  # all of them are under way
                await asyncio.sleep(0.01)
            begun = time.monotonic()
            async with http.post(proxy.url + CHAT, json=long) as reply:
                assert reply.status == 200
                await reply.read()
            ended = time.monotonic()
    assert max(chunks) > ended, "the streams went on all the while"
    assert any(begun < at < ended for at in chunks)
    assert up.chats[-1].json["kv_transfer_params"]["prompt_token_ids"] == reference.ids(long)
    values = array("d", noted.read_bytes())
    held = [held for at, held in zip(values[::3], values[2::3], strict=True) if begun <= at <= ended]
    assert held
    assert max(held) * 1000 <= wants["loop_gap_ms_max"]


@plays("F05")
async def test_what_the_proxy_adds_is_reported(
    case: dict[str, Any], reference: Reference, tmp_path: Path, record_property: Any
) -> None:
    """Of the four processes there are two here, unless played as given. Clients take turns at them: a miss costs a
    full encode, no more."""
    source, wants = case["input"], case["expected"]["assert"]
    assert wants.keys() == {"reports"}
    assert source["compare"] == ["direct", "proxy 1 worker", "proxy 4 workers"]
    clients = int(source["clients"] * min(SCALE * 2, 1))
    body = expand({**source["body"], "stream": source["stream"]})
    got: list[Received] = []
    reports = {}
    async with Engine(reference.ids, delay_s=0.01, received=got.append) as engine, AsyncExitStack() as stack:
        proxies: list[Served] = []
        for workers in (0, 1, 4 if SCALE == 1 else 2):
            while len(proxies) < workers:
                one = Served(proxy_for(engine), folder=tmp_path / str(len(proxies)))
                proxies.append(await stack.enter_async_context(one))
            got.clear()
            urls = [proxy.url for proxy in proxies] or [engine.url]
            before = sum(cpu_s(proxy.pid) for proxy in proxies)
            times = await asyncio.gather(*(timed(urls[n % len(urls)], body) for n in range(clients)))
            used = sum(cpu_s(proxy.pid) for proxy in proxies) - before
            assert len(got) == clients
            right = reference.ids(body)
            assert all(one.ids == (right if workers else None) for one in got)
            reports[workers] = report(times, used, len(right) * clients)
    direct = reports[0]
    for workers, told in reports.items():
        assert told.keys() >= set(wants["reports"])
        assert all(math.isfinite(value) for value in told.values())
        assert 0 < told["ttft_p50"] <= told["ttft_p99"]
        assert (told["cpu_s_per_1k_tokens"] > 0) == (workers > 0)
        assert told["itl_p99"] > 0
        added = {f"added_{name}": told[name] - direct[name] for name in ("ttft_p50", "ttft_p99", "itl_p99")}
        record_property(f"F05, {workers} workers", json.dumps({**told, **added, "cores": os.cpu_count()}))


async def timed(url: str, body: dict[str, Any]) -> list[float]:
    """A streamed request: when it was sent, and when each piece of its reply came."""
    async with aiohttp.ClientSession() as http:
        times = [time.monotonic()]
        async with http.post(url + CHAT, json=body) as reply:
            assert reply.status == 200
            async for _ in reply.content.iter_any():
                times.append(time.monotonic())
    assert len(times) > 1  # all in one piece where clients are too slow to keep up
    return times


def report(all_times: Sequence[Sequence[float]], cpu: float, tokens: int) -> dict[str, float]:
    """Seconds: to the first piece of a reply, between pieces, of the proxies' CPU for a thousand prompt tokens."""
    first = sorted(times[1] - times[0] for times in all_times)
    between = sorted(b - a for times in all_times for a, b in pairwise(times[1:]))

    def rank(ordered: Sequence[float], share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return {
        "ttft_p50": rank(first, 0.5),
        "ttft_p99": rank(first, 0.99),
        "itl_p99": rank(between, 0.99),
        "cpu_s_per_1k_tokens": cpu / tokens * 1000,
    }
