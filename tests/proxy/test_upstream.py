"""Connections to an engine: when a request is sent again, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from multidict import CIMultiDict

from proxy.config import Upstream as Settings
from proxy.errors import ApiError
from proxy.upstream import LARGE_BODY, Attempts, Upstream
from tests.support.fake_upstream import FakeUpstream


async def send(upstream: Upstream, body: bytes = b'{"messages":[]}') -> tuple[int, Attempts]:
    attempts = Attempts()
    reply = await upstream.send("POST", "/v1/chat/completions", CIMultiDict(), [body], attempts)
    await reply.content.read()
    reply.close()
    return reply.status, attempts


@pytest.fixture
async def up() -> AsyncIterator[FakeUpstream]:
    async with FakeUpstream() as it:
        yield it


@pytest.fixture
async def upstream(up: FakeUpstream) -> AsyncIterator[Upstream]:
    it = Upstream("e", Settings(url=up.url, keepalive_s=60))
    yield it
    await it.close()


async def test_connections_are_reused(up: FakeUpstream, upstream: Upstream) -> None:
    first = (await send(upstream))[1]
    second = (await send(upstream))[1]
    assert (first.count, first.reused, first.connect_us > 0) == (1, False, True)
    assert (second.count, second.reused, second.connect_us) == (1, True, 0)
    assert {seen.connection for seen in up.seen} == {1}


@pytest.mark.parametrize("end", [{"close": True}, {"reset": True}])
async def test_a_reused_connection_that_fails_unanswered_is_replaced_once(
    up: FakeUpstream, upstream: Upstream, end: dict[str, Any]
) -> None:
    failures: list[None] = []
    upstream.on_failure = lambda: failures.append(None)
    await send(upstream)
    up.scripts.append([end])
    status, attempts = await send(upstream)
    assert (status, attempts.count) == (200, 2)
    assert [seen.connection for seen in up.seen] == [1, 1, 2]
    assert len(failures) == 1
    up.scripts.extend([[end], [end], [end]])
    await send_expecting(upstream, 502, 1)
    assert len(failures) == 2


async def send_expecting(upstream: Upstream, status: int, count: int) -> None:
    attempts = Attempts()
    with pytest.raises(ApiError) as caught:
        await upstream.send("POST", "/v1/chat/completions", CIMultiDict(), [b'{"messages":[]}'], attempts)
    assert (caught.value.status, attempts.count) == (status, count)


async def test_the_second_failure_is_final(up: FakeUpstream, upstream: Upstream) -> None:
    await send(upstream)
    up.scripts.extend([[{"close": True}], [{"close": True}]])
    await send_expecting(upstream, 502, 2)
    assert len(up.seen) == 3


@pytest.mark.parametrize("part", [b"H", b"HTTP/1.1 20", b"HTTP/1.1 200 OK\r\nContent-Le", b"HTTP/1.1 200 OK\r\n"])
async def test_a_reply_that_had_begun_is_not_asked_for_again(up: FakeUpstream, upstream: Upstream, part: bytes) -> None:
    await send(upstream)
    up.scripts.append([{"raw": part}, {"sleep_ms": 20}, {"close": True}])
    await send_expecting(upstream, 502, 1)
    assert len(up.seen) == 2


async def test_a_new_connection_that_fails_is_not_repeated(up: FakeUpstream, upstream: Upstream) -> None:
    up.scripts.append([{"close": True}])
    await send_expecting(upstream, 502, 1)


async def test_idle_connections_closed_by_the_engine(upstream: Upstream, up: FakeUpstream) -> None:
    up.idle_close_s = 0.1
    await send(upstream)
    await asyncio.sleep(0.25)
    status, attempts = await send(upstream)
    assert status == 200
    assert attempts.count <= 2


async def test_half_closed_idle_connections_are_not_used() -> None:
    """The engine has said that it sends no more, and would still read a request."""
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    got: list[bytes] = []
    left: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b'{"messages":[]}'))
        writer.write(reply)
        await writer.drain()
        writer.write_eof()
        left.append(await reader.read())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    upstream = Upstream("e", Settings(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", keepalive_s=60))
    for _ in range(3):
        status, attempts = await send(upstream)
        assert (status, attempts.count, attempts.reused) == (200, 1, False)
        await asyncio.sleep(0.05)
    assert len(got) == 3
    assert left == [b""] * 3, "and the connections are closed at once"
    await upstream.close()
    server.close()


async def test_own_keep_alive_is_shorter(up: FakeUpstream) -> None:
    it = Upstream("e", Settings(url=up.url, keepalive_s=0.1))
    try:
        await send(it)
        await asyncio.sleep(0.3)
        assert (await send(it))[1].reused is False
    finally:
        await it.close()


async def test_large_bodies_arrive_whole_with_their_length(up: FakeUpstream, upstream: Upstream) -> None:
    body = b'{"messages":[],"x":"' + bytes(range(97, 123)) * 100_000 + b'"}'
    await send(upstream)
    for script in ([], [{"close": True}]):
        up.scripts.extend([script] if script else [])
        status, attempts = await send(upstream, body)
        assert (status, attempts.count) == (200, 1 + len(script))
        assert up.seen[-1].body == body
        assert up.seen[-1].header("Content-Length") == str(len(body))


async def test_nothing_listens() -> None:
    async with FakeUpstream() as up:
        url = up.url
    it = Upstream("e", Settings(url=url))
    try:
        await send_expecting(it, 502, 1)
    finally:
        await it.close()


async def test_no_total_time_out(upstream: Upstream) -> None:
    assert upstream._pooled.timeout.total is None
    assert upstream._fresh.timeout.total is None


async def test_cookies_are_not_kept(up: FakeUpstream, upstream: Upstream) -> None:
    up.scripts.append([{"head": {"headers": {"Set-Cookie": "a=b"}}}, {"send": "{}"}])
    await send(upstream)
    await send(upstream)
    assert up.seen[-1].header("Cookie") is None


async def test_credential_is_not_in_the_repr(up: FakeUpstream) -> None:
    it = Upstream("e", Settings(url=up.url, api_key="sk-secret"))  # type: ignore[arg-type]
    try:
        await it.ask("GET", "/version", None, 5)
        assert up.seen[0].header("Authorization") == "Bearer sk-secret"
        assert "sk-secret" not in repr(it.settings)
    finally:
        await it.close()


async def test_a_reply_that_nobody_asked_for_is_nobodys(up: FakeUpstream, upstream: Upstream) -> None:
    """On an idle connection it would be taken for the answer to the next request, another tenant's perhaps."""
    stray = b"HTTP/1.1 203 X\r\nContent-Length: 6\r\n\r\nstray!"
    up.scripts.append(
        [
            {"raw": b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
            {"sleep_ms": 50},
            {"raw": stray},
            {"sleep_ms": 60_000},
        ]
    )
    assert (await send(upstream))[0] == 200
    await asyncio.sleep(0.3)
    status, attempts = await send(upstream)
    assert (status, attempts.count, attempts.reused) == (200, 1, False)
    assert [seen.connection for seen in up.seen] == [1, 2]


@pytest.mark.parametrize("interim", [b"HTTP/1.1 103 Early Hints\r\n\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 3])
async def test_silence_after_an_interim_reply_is_a_time_out(up: FakeUpstream, interim: bytes) -> None:
    upstream = Upstream("e", Settings(url=up.url, read_timeout_s=0.3))
    up.scripts.append([{"raw": interim}, {"sleep_ms": 60_000}])
    async with asyncio.timeout(30):
        await send_expecting(upstream, 504, 1)
    await upstream.close()


async def test_an_engine_that_stops_reading_the_body_is_a_time_out() -> None:
    connected: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: connected.append(writer), "127.0.0.1", 0, limit=1024)
    upstream = Upstream("e", Settings(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", read_timeout_s=0.3))
    with pytest.raises(ApiError) as caught:
        async with asyncio.timeout(30):
            await send(upstream, b" " * (32 << 20))
    assert caught.value.status == 504
    await upstream.close()
    for writer in connected:
        writer.transport.abort()
    server.close()


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade",
        b"HTTP/1.1 000 X\r\nContent-Length: 0",
        b"HTTP/1.1 099 X\r\nContent-Length: 0",
        b"HTTP/1.1 200 a\x01b\r\nContent-Length: 0",
        b"HTTP/1.1 200 OK\r\nX-A: a\x01b\r\nContent-Length: 0",
    ],
)
async def test_a_head_that_no_client_can_be_sent_is_502(up: FakeUpstream, upstream: Upstream, head: bytes) -> None:
    up.scripts.append([{"raw": head + b"\r\n\r\n"}, {"sleep_ms": 60_000}])
    await send_expecting(upstream, 502, 1)
    assert (await send(upstream))[0] == 200


@pytest.mark.parametrize(
    "sizes",
    [(10,), (0, 5), (LARGE_BODY,), (LARGE_BODY + 1,), (7, 3 * LARGE_BODY + 1, 2), (30_000,) * 40, (90_000, 10) * 9],
)
async def test_a_body_in_pieces_arrives_whole_also_the_second_time(
    up: FakeUpstream, upstream: Upstream, sizes: tuple[int, ...]
) -> None:
    await send(upstream)
    size = sum(sizes)
    whole = b'{"messages":[],"x":"' + bytes(97 + k % 26 for k in range(size)) + b'"}'
    pieces: list[bytes | memoryview] = [whole[:20]]
    start = 20
    for number, length in enumerate(sizes):
        piece = whole[start : start + length]
        pieces.append(memoryview(piece) if number % 2 else piece)
        start += length
    pieces.append(whole[start:])
    up.scripts.append([{"close": True}])
    attempts = Attempts()
    reply = await upstream.send("POST", "/v1/chat/completions", CIMultiDict(), pieces, attempts)
    reply.close()
    assert attempts.count == 2
    assert [seen.body for seen in up.seen[1:]] == [whole] * 2
    assert {seen.header("content-length") for seen in up.seen[1:]} == {str(len(whole))}
