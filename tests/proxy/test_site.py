"""Connections with TLS before their handshake: counted, and not for long."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.config import Limits
from proxy.server import Door
from proxy.site import TlsServer
from tests.support.serving import certificate


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        assert transport.get_extra_info("sslcontext") is not None
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Listening:
    def __init__(self, port: int, door: Door, refused: list[str], client: ssl.SSLContext) -> None:
        self.port, self.door, self.refused, self._client = port, door, refused, client

    async def echo(self) -> bytes:
        """What comes back over a connection of its own."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self._client)
        writer.write(b"hello")
        got = await reader.readexactly(5)
        writer.close()
        return got

    async def silent(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.port)

    async def handshakes(self, count: int) -> None:
        async with asyncio.timeout(10):
            while self.door.handshakes != count:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(folder: Path, **limits: float) -> AsyncIterator[Listening]:
    certificate(folder, "x")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    refused: list[str] = []
    set_to = Limits.model_validate(limits)
    door = Door(lambda: set_to, lambda: 60.0, refused.append)
    server = TlsServer(Echo, door, tls)
    await server.listen("127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Listening(port, door, refused, ssl.create_default_context(cafile=str(folder / "cert.pem")))
    finally:
        server.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()


async def test_handshakes_are_counted_and_limited(tmp_path: Path) -> None:
    async with listening(tmp_path, connections=2) as it:
        assert await it.echo() == b"hello"
        await it.handshakes(0)
        (_, first), (_, second) = await it.silent(), await it.silent()
        await it.handshakes(2)
        reader, third = await it.silent()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert it.refused == ["too_many_connections"]
        first.close()
        await it.handshakes(1)
        assert await it.echo() == b"hello"
        second.write(b"GET / HTTP/1.1\r\n\r\n")  # no TLS
        await it.handshakes(0)
        for writer in (second, third):
            writer.close()


async def test_a_handshake_must_be_done_in_time(tmp_path: Path) -> None:
    async with listening(tmp_path, header_timeout_s=0.3) as it:
        reader, writer = await it.silent()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        await it.handshakes(0)
        writer.close()
        assert it.refused == []


async def test_what_cannot_be_accepted_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.site.REST_S", 0.01)
    loop = asyncio.get_running_loop()
    accept, errors = loop.sock_accept, [OSError(24, "Too many open files"), ConnectionAbortedError()]

    async def failing(listening: socket.socket) -> tuple[socket.socket, object]:
        if errors:
            raise errors.pop()
        return await accept(listening)

    monkeypatch.setattr(loop, "sock_accept", failing)
    async with listening(tmp_path) as it:
        assert await it.echo() == b"hello"
    assert not errors
