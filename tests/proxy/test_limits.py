"""Every limit through the real proxy: the right error, and the next request is served."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import body
from proxy.errors import ApiError
from tests.support.proxy import Stage, settings_for, staged
from tests.support.raw_http import head, talk

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
RAW = json.dumps(BODY).encode()
CHAT = "/v1/chat/completions"


def sized(size: int) -> dict[str, Any]:
    """A chat body of ``size`` bytes as JSON."""
    body = {"model": "m", "messages": [{"role": "user", "content": ""}]}
    return {**body, "messages": [{"role": "user", "content": "x" * (size - len(json.dumps(body)))}]}


async def served(stage: Stage) -> None:
    """An ordinary request is."""
    assert (await stage.post(BODY))[0] == 200


async def busy(stage: Stage, body: Any = BODY, path: str = CHAT) -> dict[str, Any]:
    """The error object of a request that is refused with 429."""
    async with stage.client.post(stage.proxy.url + path, data=json.dumps(body).encode()) as reply:
        assert reply.status == 429
        assert int(reply.headers["Retry-After"]) >= 1
        error: dict[str, Any] = (await reply.json())["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


async def metric(stage: Stage, name: str) -> float:
    async with stage.client.get(stage.proxy.url + "/metrics") as reply:
        text = await reply.text()
    return float(next(line.rpartition(" ")[2] for line in text.splitlines() if line.startswith(name + " ")))


@asynccontextmanager
async def under_way(stage: Stage, body: Any = BODY) -> AsyncIterator[asyncio.Task[tuple[int, bytes]]]:
    """A request that waits for its engine while the block runs, and is then served."""
    stage.up.script_started.clear()
    stage.up.scripts.append([{"sleep_ms": 60_000}, {"send": "{}"}])
    task = asyncio.create_task(stage.post(body))
    try:
        async with asyncio.timeout(10):
            await stage.up.script_started.wait()
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# connections and heads


async def test_connections_are_limited(tmp_path: Path) -> None:
    async with staged(tmp_path, limits={"connections": 3}) as stage:
        await served(stage)  # the client keeps its connection
        held = [await asyncio.open_connection("127.0.0.1", stage.proxy.port) for _ in range(2)]
        for pieces in ((), (head(f"Content-Length: {len(RAW)}") + RAW,)):
            got = await talk(stage.proxy.port, *pieces, pause=0)
            assert got.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"\r\nRetry-After: 1\r\n" in got
            assert b"\r\nConnection: close\r\n" in got
            assert got.endswith(b"<closed>")
            error = json.loads(got.partition(b"\r\n\r\n")[2].removesuffix(b"<closed>"))["error"]
            assert error["code"] == "too_many_connections"
        await served(stage)
        assert len(stage.up.chats) == 2
        for _, writer in held:
            writer.close()
        async with asyncio.timeout(10):
            while await metric(stage, "toktier_connections") > 1:
                await asyncio.sleep(0.01)
        got = await talk(stage.proxy.port, head(f"Content-Length: {len(RAW)}") + RAW)
        assert got.startswith(b"HTTP/1.1 200")
        async with asyncio.timeout(10):
            while not any(event["event"] == "connections_refused" for event in stage.proxy.events):
                await asyncio.sleep(0.02)
    refused = [event for event in stage.proxy.events if event["event"] == "connections_refused"]
    assert [(event["error"], event["count"]) for event in refused] == [("too_many_connections", 2)]


async def test_more_refused_connections_than_may_linger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.server.LINGERING", 1)
    async with staged(tmp_path, limits={"connections": 1}) as stage:
        await served(stage)
        answers = await asyncio.gather(*(talk(stage.proxy.port) for _ in range(5)))
        assert all(got.startswith(b"HTTP/1.1 503") and got.endswith(b"<closed>") for got in answers)
        await served(stage)
        async with asyncio.timeout(10):
            while await metric(stage, "toktier_connections") > 1:
                await asyncio.sleep(0.01)
        assert stage.proxy.core.door.lingering == 0


async def test_a_head_must_come_in_time(tmp_path: Path) -> None:
    async with staged(tmp_path, limits={"header_timeout_s": 0.2}) as stage:
        for start in (b"P", head()[:-2] + b"X-Never-Ends: "):
            got = await talk(stage.proxy.port, start, quiet_s=3)
            assert got.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
            assert b'"code": "header_timeout"' in got
            assert got.endswith(b"<closed>")
        assert await talk(stage.proxy.port, quiet_s=3) == b"<closed>", "nothing was asked, so nothing is answered"
        await served(stage)


async def test_a_trickle_of_a_head_is_no_reprieve(tmp_path: Path) -> None:
    async with staged(tmp_path, limits={"header_timeout_s": 0.3}) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.proxy.port)
        answer = asyncio.create_task(reader.readuntil(b"\r\n\r\n"))
        writer.write(head()[:-2] + b"X-A: ")
        async with asyncio.timeout(10):
            while not answer.done():
                writer.write(b"a")
                await asyncio.sleep(0.02)
        writer.close()
        assert answer.result().startswith(b"HTTP/1.1 408")


async def test_the_time_for_a_head_is_not_the_time_between_requests_or_for_a_body(tmp_path: Path) -> None:
    async with staged(tmp_path, limits={"header_timeout_s": 0.2}) as stage:
        whole = head(f"Content-Length: {len(RAW)}") + RAW
        got = await talk(stage.proxy.port, whole, whole, whole, pause=0.35)
        assert got.count(b"HTTP/1.1 200") == 3
        cut = whole[: -len(RAW) // 2]
        got = await talk(stage.proxy.port, cut, whole[len(cut) :], pause=0.35)
        assert got.startswith(b"HTTP/1.1 200")
        got = await talk(stage.proxy.port, whole, b"POST /v1", pause=0.3, quiet_s=3)
        assert got.startswith(b"HTTP/1.1 200")
        assert b"HTTP/1.1 408" in got
        assert got.endswith(b"<closed>")


# load


async def test_requests_being_served_are_limited(tmp_path: Path) -> None:
    async with staged(tmp_path, limits={"requests": 1}) as stage:
        async with under_way(stage):
            for path in (CHAT, "/v1/completions", "/v1/nothing"):
                error = await busy(stage, path=path)
                assert (error["code"], error["type"]) == ("too_many_requests", "rate_limit_error")
            async with stage.client.get(stage.proxy.url + "/health") as reply:
                assert reply.status == 200
            assert await metric(stage, 'toktier_refusal_total{code="too_many_requests"}') == 3
        lines = await stage.proxy.logged(4)
        assert [line["error"] for line in lines[:3]] == ["too_many_requests"] * 3
        await served(stage)


async def test_work_that_waits_is_limited_and_short_work_does_not_wait_for_long(tmp_path: Path) -> None:
    server = {"worker_threads": 1, "inline_below_bytes": 0}
    async with staged(tmp_path, server=server, limits={"waiting": 1}) as stage:
        gate = stage.tier.gate = threading.Event()
        long = [asyncio.create_task(stage.post(sized(200_000)))]
        await stage.holds(1)
        long.append(asyncio.create_task(stage.post(sized(200_000))))  # waits for the one thread of long work
        async with asyncio.timeout(10):
            while stage.proxy.core.lanes.waiting < 1:
                await asyncio.sleep(0.005)
        assert (await busy(stage, sized(200_000)))["code"] == "workers_busy"
        stage.tier.gate = None
        await served(stage)  # in a thread of its own
        assert stage.tier.held == 1
        gate.set()
        assert [status for status, _ in await asyncio.gather(*long)] == [200, 200]
        assert (await stage.post(sized(200_000)))[0] == 200
        assert stage.proxy.core.lanes.waiting == 0


async def test_a_client_that_leaves_the_queue_makes_room(tmp_path: Path) -> None:
    server = {"worker_threads": 1}
    async with staged(tmp_path, server=server, limits={"waiting": 1}) as stage:
        gate = stage.tier.gate = threading.Event()
        first = asyncio.create_task(stage.post(sized(200_000)))
        await stage.holds(1)
        calls = len(stage.tier.calls)
        second = asyncio.create_task(stage.post(sized(200_000)))
        async with asyncio.timeout(10):
            while stage.proxy.core.lanes.waiting < 1:
                await asyncio.sleep(0.005)
        second.cancel()
        async with asyncio.timeout(10):
            while stage.proxy.core.lanes.waiting:
                await asyncio.sleep(0.005)
        gate.set()
        assert (await first)[0] == 200
        assert len(stage.tier.calls) == calls, "what the client left is not done"


@pytest.mark.parametrize("chunked", [False, True])
async def test_bytes_of_bodies_are_limited_together(tmp_path: Path, chunked: bool) -> None:
    async with staged(tmp_path, server={"max_body_bytes": 60_000}, limits={"body_bytes": 60_000}) as stage:
        big = sized(40_000)

        async def pieces() -> AsyncIterator[bytes]:
            raw = json.dumps(big).encode()
            for start in range(0, len(raw), 4096):
                yield raw[start : start + 4096]

        async with under_way(stage, big):
            assert await metric(stage, "toktier_body_bytes") == 40_000
            data: Any = pieces() if chunked else json.dumps(big).encode()
            async with stage.client.post(stage.proxy.url + CHAT, data=data) as reply:
                assert (reply.status, reply.headers["Retry-After"]) == (429, "1")
                assert (await reply.json())["error"]["code"] == "bodies_full"
            await served(stage)
            assert await metric(stage, "toktier_body_bytes") == 40_000
        assert (await stage.post(big))[0] == 200
        await stage.proxy.logged(4)
        assert stage.proxy.core.held.size == 0


async def test_a_body_counts_as_the_utf8_that_it_becomes(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"max_body_bytes": 60_000}, limits={"body_bytes": 60_000}) as stage:
        body = {"model": "m", "messages": [{"role": "user", "content": "龍" * 25_000}]}
        raw = json.dumps(body, ensure_ascii=False).encode("utf-16")
        assert len(raw) < 60_000
        status, error = await stage.error(raw)
        assert (status, error["code"]) == (413, "request_too_large")
        await served(stage)
        assert stage.proxy.core.held.size == 0


async def test_a_body_is_not_held_while_its_reply_is_relayed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        stage.up.scripts.append([{"send": "data: {}\n\n"}, {"sleep_ms": 60_000}])
        async with stage.client.post(stage.proxy.url + CHAT, json={**sized(50_000), "stream": True}) as reply:
            await reply.content.readany()
            assert stage.proxy.core.held.size == 0
            reply.close()


async def test_coded_bodies_count_as_what_they_decode_to(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"max_body_bytes": 60_000}, limits={"body_bytes": 60_000}) as stage:
        big = sized(40_000)
        packed = gzip.compress(json.dumps(big).encode())
        async with under_way(stage, big):
            status, error = await stage.error(packed, headers={"Content-Encoding": "gzip"})
            assert (status, error["code"]) == (429, "bodies_full")
        assert (await stage.post(packed, headers={"Content-Encoding": "gzip"}))[0] == 200


async def test_a_body_counts_while_it_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with staged(tmp_path, server={"max_body_bytes": 1 << 20}, limits={"body_bytes": 1 << 20}) as stage:
        held, seen = stage.proxy.core.held, []
        real = body.DECODERS["gzip"]

        def watched(coded: body.Coded) -> Iterator[bytes]:
            for piece in real(coded):
                seen.append(held.size)
                yield piece

        monkeypatch.setitem(body.DECODERS, "gzip", watched)
        big = json.dumps(sized(600_000)).encode()
        packed = gzip.compress(big)
        assert (await stage.post(packed, headers={"Content-Encoding": "gzip"}))[0] == 200
        assert seen[0] == len(packed)
        assert max(seen) > 500_000
        assert held.size == 0
        async with under_way(stage, sized(600_000)):
            seen.clear()
            status, error = await stage.error(packed, headers={"Content-Encoding": "gzip"})
            assert (status, error["code"]) == (429, "bodies_full")
            assert max(seen) <= 1 << 20
            assert len(seen) < 9, "it ends where it is too much"
            assert held.size == 600_000


def test_a_share_that_was_given_back_counts_nothing_more() -> None:
    held = body.Held()
    share = body.Share(held, 100)
    share.take(60)
    with pytest.raises(ApiError):
        share.take(50)
    share.hold(100)
    assert held.size == 100
    share.release()
    share.take(60)  # a thread that decodes still
    assert held.size == 0


# the engine


async def test_connections_to_an_engine_are_waited_for_only_so_long(tmp_path: Path) -> None:
    async with staged(tmp_path, upstream={"max_connections": 1, "connect_timeout_s": 0.3}) as stage:
        async with under_way(stage):
            error = await busy(stage)
            assert error["code"] == "upstream_full"
            line = stage.proxy.log[-1]
            assert (line["status"], line["error"], line["flags"]) == (429, "upstream_full", [])
        await stage.proxy.logged(2)
        await stage.proxy.settled()
        assert not any(line["event"] == "upstream_failure" for line in stage.proxy.events), "that is no sign of a fault"
        await served(stage)


# one body


@pytest.mark.parametrize("rate", [0.0, 100_000.0])
async def test_a_body_that_trickles_ends(tmp_path: Path, rate: float) -> None:
    async with staged(tmp_path, server={"read_timeout_s": 0.3}, limits={"body_bytes_per_s": rate}) as stage:
        start = head(f"Content-Length: {len(RAW)}") + RAW[:-8]
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.proxy.port)
        writer.write(start)
        async with asyncio.timeout(10):
            for byte in RAW[-8:]:  # never silent for long
                await asyncio.sleep(0.1)
                writer.write(bytes([byte]))
            got = await reader.readuntil(b"\r\n\r\n")
        writer.close()
        assert got.startswith(b"HTTP/1.1 408" if rate else b"HTTP/1.1 200")
        await served(stage)


HOSTILE: dict[str, tuple[dict[str, Any], bytes, str]] = {
    "depth": ({"json_depth": 30}, b'{"model":"m","messages":' + b"[" * 40 + b"]" * 40 + b"}", "json_too_deep"),
    "endless depth": ({}, b'{"model":"m","messages":' + b"[" * 500_000, "json_too_deep"),
    "depth without an object": ({}, b"[" * 500_000, "json_too_deep"),
    "depth in an object": ({}, b'{"a":' * 100_000, "json_too_deep"),
    "values": (
        {"json_values": 1000},
        b'{"model":"m","messages":[' + b"[]," * 2000 + b"[]]}",
        "json_too_many_values",
    ),
    "members": (
        {"json_values": 1000},
        b"{" + b",".join(b'"%d":1' % n for n in range(2000)) + b"}",
        "json_too_many_values",
    ),
    "messages": ({"messages": 3}, json.dumps({**BODY, "messages": BODY["messages"] * 4}).encode(), "too_many_messages"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_is_in_a_body_is_limited(tmp_path: Path, name: str) -> None:
    limits, raw, code = HOSTILE[name]
    async with staged(tmp_path, limits=limits) as stage:
        for path in (CHAT, "/v1/messages"):
            status, error = await stage.error(raw, path)
            assert (status, error["code"], error["type"]) == (400, code, "invalid_request_error")
        await served(stage)
        assert len(stage.up.chats) == 1
        assert await metric(stage, f'toktier_refusal_total{{code="{code}"}}') == 2


async def test_what_is_within_the_limits_is_served(tmp_path: Path) -> None:
    limits = {"json_depth": 16, "json_values": 1000, "messages": 3}
    async with staged(tmp_path, limits=limits) as stage:
        deep: Any = 1
        for _ in range(14):
            deep = [deep]
        body = {**BODY, "messages": BODY["messages"] * 3, "metadata": {"deep": deep[0], "many": [1] * 900}}
        assert (await stage.post(body))[0] == 200


async def test_a_reload_changes_the_limits(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await served(stage)
        await stage.proxy.core.reload(settings_for(stage.up.url, tmp_path, limits={"messages": 1}))
        await stage.proxy.settled()
        status, error = await stage.error({**BODY, "messages": BODY["messages"] * 2})
        assert (status, error["code"]) == (400, "too_many_messages")
        await served(stage)


async def test_limits_do_not_outlive_broken_clients(tmp_path: Path) -> None:
    """Bodies that never end, clients that leave, and heads that are cut leave nothing counted."""
    async with staged(tmp_path, server={"read_timeout_s": 0.2}, limits={"header_timeout_s": 0.2}) as stage:
        start = head("Content-Length: 100000") + b"{" + b" " * 50_000
        await asyncio.gather(
            *(talk(stage.proxy.port, start, quiet_s=1) for _ in range(5)),
            *(talk(stage.proxy.port, start, quiet_s=0.01) for _ in range(5)),
            *(talk(stage.proxy.port, head()[:9], quiet_s=0.01) for _ in range(5)),
        )
        await stage.client.close()
        async with asyncio.timeout(10):
            core = stage.proxy.core
            while core.door.connections or core.held.size or core.in_flight:
                await asyncio.sleep(0.01)
        async with aiohttp.ClientSession() as fresh, fresh.post(stage.proxy.url + CHAT, data=RAW) as reply:
            assert reply.status == 200
