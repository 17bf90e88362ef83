"""Where the process listens.

Invariant: with TLS, at most ``limits.connections`` handshakes are under way, and each ends within
``limits.header_timeout_s``. More connections are closed unread. asyncio's own server can do neither at the door: it
hands a connection over when its handshake is done, a minute later at most, and says nothing of it before.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Coroutine
from typing import Any

import structlog
from aiohttp import web

from proxy import errors
from proxy.server import Door, Runner

_log = structlog.get_logger("toktier.server")

BACKLOG = 1024
"""Connections that the kernel holds until they are accepted."""
REST_S = 1.0
"""Pause where a connection cannot be accepted (no file is left to open); asyncio's."""


class TlsServer:
    """Accepts connections; a protocol of ``make`` gets those whose handshake succeeds. ``sockets`` listen."""

    def __init__(self, make: Callable[[], asyncio.BaseProtocol], door: Door, tls: ssl.SSLContext) -> None:
        self.sockets: list[socket.socket] = []
        self._make, self._door, self._tls = make, door, tls
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self, host: str, port: int) -> None:
        """At every address of ``host``. Raises OSError."""
        flags = socket.AI_PASSIVE
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                listening = socket.create_server(address, family=family, backlog=BACKLOG)
                self.sockets.append(listening)
                listening.setblocking(False)
        except OSError:
            for listening in self.sockets:
                listening.close()
            raise
        for listening in self.sockets:
            self._run(self._accept(listening))

    def close(self) -> None:
        """Accepts no more; handshakes under way end."""
        for task in self._tasks:
            task.cancel()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # or it may be collected while it runs
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listening: socket.socket) -> None:
        loop, door = asyncio.get_running_loop(), self._door
        with listening:
            while True:
                try:
                    connection, _ = await loop.sock_accept(listening)
                except ConnectionError:  # it has gone again
                    continue
                except OSError as error:
                    _log.warning("accept_failed", error=type(error).__name__, errno=error.errno)
                    await asyncio.sleep(REST_S)
                    continue
                most = door.limits().connections
                if door.handshakes >= most:
                    connection.close()
                    door.note(errors.too_many_connections(most))
                else:
                    door.handshakes += 1
                    self._run(self._shake_hands(connection))
                await asyncio.sleep(0)  # where many wait, they would all be accepted before anything else

    async def _shake_hands(self, connection: socket.socket) -> None:
        door = self._door
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make, connection, ssl=self._tls, ssl_handshake_timeout=door.limits().header_timeout_s
            )
        except OSError:  # among others what is no TLS, and the time-out; it is closed then
            pass
        finally:
            door.handshakes -= 1


class Site(web.BaseSite):
    """`web.TCPSite`, with a `TlsServer` where there is TLS."""

    __slots__ = ("_door", "_host", "_port")

    def __init__(self, runner: Runner, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(runner, ssl_context=tls, backlog=BACKLOG)
        self._host, self._port, self._door = host, port, runner.door

    @property
    def name(self) -> str:
        return f"{self._host}:{self._port}"

    async def start(self) -> None:
        """Raises OSError."""
        await super().start()
        make, tls = self._runner.server, self._ssl_context
        assert make is not None
        if tls is None:
            self._server = await asyncio.get_running_loop().create_server(
                make, self._host, self._port, backlog=BACKLOG, reuse_address=True
            )
        else:
            server = TlsServer(make, self._door, tls)
            await server.listen(self._host, self._port)
            self._server = server  # type: ignore[assignment]  # sockets and close are all that is used of one
