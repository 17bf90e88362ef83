"""What is answered where no handler is reached, and that no connection outlives what answers on it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.proxy import Stage, staged
from tests.support.raw_http import head, talk

BROKEN = {
    "a broken A-label": b"GET http://xn--a/health HTTP/1.1\r\nHost: a\r\n\r\n",
    "one with a path of the engine": b"POST http://u:p@xn--a:80/v1/chat/completions HTTP/1.1\r\nHost: a\r\n\r\n",
    "one in authority form": b"CONNECT xn--a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "no port": b"GET http://a:99999/health HTTP/1.1\r\nHost: a\r\n\r\n",
    "no method": b"\x00 / HTTP/1.1\r\nHost: a\r\n\r\n",
    "no header": b"GET /health HTTP/1.1\r\nHost\r\n\r\n",
}


async def all_closed(stage: Stage) -> None:
    async with asyncio.timeout(10):
        while stage.proxy.core.door.connections:
            await asyncio.sleep(0.01)


def events(stage: Stage, name: str) -> list[dict[str, Any]]:
    return [event for event in stage.proxy.events if event["event"] == name]


@pytest.mark.parametrize("sent", BROKEN.values(), ids=BROKEN.keys())
async def test_what_is_no_request_is_answered_like_all_else_and_closed(stage: Stage, sent: bytes) -> None:
    answer = await talk(stage.proxy.port, sent, quiet_s=5)
    assert answer.endswith(b"<closed>")
    told, _, body = answer.removesuffix(b"<closed>").partition(b"\r\n\r\n")
    first, *lines = told.decode().split("\r\n")
    assert first == "HTTP/1.1 400 Bad Request"
    assert not [line for line in lines if line.lower().startswith("server:")]
    assert json.loads(body)["error"]["code"] == "bad_request"
    assert [event["status"] for event in events(stage, "bad_http")] == [400]
    assert not events(stage, "server_error")
    assert not stage.up.chats
    await all_closed(stage)


async def test_what_comes_behind_it_is_not_read(stage: Stage) -> None:
    good = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    answer = await talk(stage.proxy.port, good + BROKEN["a broken A-label"] + good)
    assert answer.count(b"HTTP/1.1 200") == 1
    assert answer.count(b"HTTP/1.1 400") == 1
    assert answer.endswith(b"<closed>")


async def test_a_connection_ends_with_its_task(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(web.BaseRequest):
        def __init__(self, *_: object) -> None:
            raise ArithmeticError

    monkeypatch.setattr("proxy.server._Unreadable", Failing)
    assert await talk(stage.proxy.port, BROKEN["a broken A-label"], quiet_s=5) == b"<closed>"
    assert [(event["status"], event["error"]) for event in events(stage, "server_error")] == [(None, "ArithmeticError")]
    await all_closed(stage)
    assert (await talk(stage.proxy.port, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n")).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(("count", "status"), [(128, 200), (129, 400)])
async def test_headers_are_limited_in_number(stage: Stage, count: int, status: int) -> None:
    lines = b"".join(b"X-%d: y\r\n" % number for number in range(count - 1))
    answer = await talk(stage.proxy.port, b"GET /health HTTP/1.1\r\nHost: a\r\n" + lines + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(("count", "status"), [(128, 200), (129, 502)])
async def test_headers_of_a_reply_are_limited_in_number(stage: Stage, count: int, status: int) -> None:
    lines = b"".join(b"X-%d: y\r\n" % number for number in range(count - 1))
    stage.up.scripts.append([{"raw": b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n" + lines + b"\r\n{}"}, {"close": True}])
    body = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
    answer = await talk(stage.proxy.port, head(f"Content-Length: {len(body)}") + body)
    assert answer.startswith(b"HTTP/1.1 %d " % status)


HEALTH = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"


def small(port: int) -> socket.socket:
    """A client whose kernel takes next to nothing that it does not read."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    return client


async def test_who_reads_none_of_the_answers_is_cut(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"write_timeout_s": 0.3}) as stage:
        client = small(stage.proxy.port)
        door, end = stage.proxy.core.door, asyncio.get_running_loop().time() + 2
        with client:
            while asyncio.get_running_loop().time() < end and not (door.inside and next(iter(door.inside))._paused):
                with suppress(BlockingIOError):
                    client.send(HEALTH * 100)
                await asyncio.sleep(0)
            await all_closed(stage)
        assert (await talk(stage.proxy.port, HEALTH)).startswith(b"HTTP/1.1 200")


async def test_a_connection_that_is_closed_does_not_wait_for_who_does_not_read(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"write_timeout_s": 0.3}) as stage:
        client = small(stage.proxy.port)
        with client:
            await asyncio.sleep(0.05)
            (protocol,) = stage.proxy.core.door.inside
            while not protocol.has_unsent:
                with suppress(BlockingIOError):
                    client.send(HEALTH)
                await asyncio.sleep(0)
            assert not protocol._paused
            protocol.force_close()
            await all_closed(stage)


async def test_an_answer_counts_until_it_is_sent(stage: Stage) -> None:
    door = stage.proxy.core.door
    await asyncio.wait_for(door.sent(), 20)
    with small(stage.proxy.port) as client:
        await asyncio.sleep(0.05)
        (protocol,) = door.inside
        while not protocol.has_unsent:
            with suppress(BlockingIOError):
                client.send(HEALTH)
            await asyncio.sleep(0)
        assert (protocol.is_answering, door.unsent()) == (False, 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(door.sent(), 0.2)
        waiting = asyncio.create_task(door.sent())
        while not waiting.done():
            with suppress(BlockingIOError):
                client.recv(65_536)
            await asyncio.sleep(0.001)
        assert door.unsent() == 0


async def test_who_reads_in_time_is_not_cut(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"write_timeout_s": 0.5}) as stage:
        client = small(stage.proxy.port)
        loop = asyncio.get_running_loop()
        with client:
            await asyncio.sleep(0.05)
            (protocol,) = stage.proxy.core.door.inside
            for _ in range(3):
                while not protocol._paused:
                    with suppress(BlockingIOError):
                        client.send(HEALTH)
                    await asyncio.sleep(0)
                await asyncio.sleep(0.25)  # three times that are longer than the limit
                while protocol._paused:
                    await loop.sock_recv(client, 65_536)
            await asyncio.sleep(0.6)
            assert stage.proxy.core.door.connections == 1
            assert not protocol.stalled
