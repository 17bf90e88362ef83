"""A request on one connection: what is written when, and when the connection serves again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import aiohttp.abc
import pytest
from multidict import CIMultiDict

from proxy.config import Upstream as Settings
from proxy.wire import AT_ONCE, LARGE_BODY, Wire

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


class Server(asyncio.Protocol):
    """Answers what it has by now, as ``answer`` says (None: nothing yet). Notes what it gets, and when it is left."""

    def __init__(self, answer: Callable[[bytes], bytes | None]) -> None:
        self._answer = answer
        self.pieces: list[bytes] = []
        self.connections = 0
        self.left = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.connections += 1
        self._got = b""

    def data_received(self, data: bytes) -> None:
        self.pieces.append(data)
        self._got += data
        if (answer := self._answer(self._got)) is not None:
            self._got = b""
            self._transport.write(answer)

    def connection_lost(self, _: Exception | None) -> None:
        self.left.set()


@asynccontextmanager
async def wired(answer: Callable[[bytes], bytes | None], *, keep: bool = True) -> AsyncIterator[tuple[Server, Wire]]:
    it = Server(answer)
    server = await asyncio.get_running_loop().create_server(lambda: it, "127.0.0.1", 0)
    wire = Wire(Settings(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"), keep=keep)
    try:
        yield it, wire
    finally:
        await wire.close()
        server.close()


def whole(got: bytes) -> bytes | None:
    head, _, body = got.partition(b"\r\n\r\n")
    size = int(next(line for line in head.split(b"\r\n") if line.startswith(b"Content-Length")).split(b":")[1])
    return OK if len(body) == size else None


async def test_the_head_goes_with_the_body() -> None:
    async with wired(whole) as (server, wire):
        for number in (1, 2):
            took: list[int | None] = []
            headers = CIMultiDict([("X-A", "1"), ("x-a", "é")])
            reply = await wire.request("POST", "/v1/x?y=1", headers, [b"ab", memoryview(b"cd")], took.append)
            assert (reply.status, reply.reason, await reply.content.read()) == (200, "OK", b"{}")
            reply.close()
            assert len(server.pieces) == number
            assert server.connections == 1
            assert (took[0] is None) == (number == 2)
        lines = server.pieces[1].decode().split("\r\n")
        host = f"Host: 127.0.0.1:{server._transport.get_extra_info('sockname')[1]}"
        assert lines == ["POST /v1/x?y=1 HTTP/1.1", host, "X-A: 1", "x-a: é", "Content-Length: 4", "", "abcd"]


@pytest.mark.parametrize(("method", "told"), [("GET", False), ("HEAD", False), ("DELETE", True), ("POST", True)])
async def test_no_body(method: str, told: bool) -> None:
    async with wired(lambda _: OK.removesuffix(b"{}") if method == "HEAD" else OK) as (server, wire):
        reply = await wire.request(method, "/", CIMultiDict(), None)
        assert (b"Content-Length: 0" in server.pieces[0]) == told
        assert await reply.content.read() == (b"" if method == "HEAD" else b"{}")
        reply.close()


async def test_a_connection_for_one_request_says_so() -> None:
    async with wired(whole, keep=False) as (server, wire):
        for _ in range(2):
            reply = await wire.request("POST", "/", CIMultiDict(), [b""])
            assert await reply.content.read() == b"{}"
            reply.close()
        assert server.connections == 2
        assert all(b"\r\nConnection: close\r\n" in piece for piece in server.pieces)


@pytest.mark.parametrize("value", ["a\x01b", "a\nb", "a\rb", "a\x7f"])
async def test_what_is_no_head_is_not_sent(value: str) -> None:
    async with wired(lambda _: OK) as (server, wire):
        with pytest.raises(ValueError, match="control character"):
            await wire.request("POST", "/", CIMultiDict({"X-A": value}), [b"{}"])
        assert server.pieces == []


async def test_an_answer_before_the_end_of_the_body_is_relayed_and_ends_the_connection() -> None:
    refusal = b"HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\n{}"
    async with wired(lambda got: refusal if len(got) > LARGE_BODY else None) as (server, wire):
        real = server.data_received

        def received(data: bytes) -> None:
            real(data)
            if not server._got:
                server.data_received = lambda data: None  # type: ignore[method-assign]
                server._transport.pause_reading()

        server.data_received = received  # type: ignore[method-assign]
        reply = await wire.request("POST", "/", CIMultiDict(), [b"x" * (24 << 20)])
        assert (reply.status, await reply.content.read()) == (413, b"{}")
        reply.close()
        server._transport.resume_reading()
        async with asyncio.timeout(30):
            await server.left.wait()


async def test_a_long_body_is_handed_over_in_parts_and_arrives() -> None:
    body = [bytes([97 + k % 26]) * (LARGE_BODY // 3 + k) for k in range(40)] + [b"y" * (2 * AT_ONCE)]
    heard: list[None] = []
    async with wired(whole) as (server, wire):
        for _ in range(2):
            server.pieces.clear()
            reply = await wire.request("POST", "/", CIMultiDict(), body, heard=lambda: heard.append(None))
            assert await reply.content.read() == b"{}"
            reply.close()
            assert b"".join(server.pieces).partition(b"\r\n\r\n")[2] == b"".join(body)
        assert server.connections == 1
        assert len(heard) > 2 * sum(map(len, body)) // AT_ONCE


async def test_a_server_that_goes_while_the_body_is_sent() -> None:
    async with wired(lambda got: None) as (server, wire):
        server.data_received = lambda data: server._transport.abort()  # type: ignore[method-assign]
        with pytest.raises((aiohttp.ClientError, OSError)):
            await wire.request("POST", "/", CIMultiDict(), [b"x" * (24 << 20)])


async def test_a_name_is_looked_up_only_so_long() -> None:
    class Never(aiohttp.abc.AbstractResolver):
        async def resolve(self, *_: object, **__: object) -> list[aiohttp.abc.ResolveResult]:
            await asyncio.Event().wait()
            raise AssertionError

        async def close(self) -> None: ...

    wire = Wire(Settings(url="http://engine.invalid", connect_timeout_s=0.1), keep=True)
    wire._connector._resolver = Never()
    try:
        async with asyncio.timeout(20):
            with pytest.raises(aiohttp.ConnectionTimeoutError):
                await wire.request("POST", "/", CIMultiDict(), [b"{}"])
    finally:
        await wire.close()
