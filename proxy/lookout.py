"""A silent connection to an upstream: its end says at once that another process may listen there from now on.

An engine that ends, however it ends, closes its connections; a request on a new connection a moment later would meet
its successor, with another model perhaps, and no connection would have failed. So one connection is kept on which
nothing is ever sent. Engines' servers keep such a connection (uvicorn counts its keep-alive time from the first reply).

Invariants
1. Nothing is sent but what TCP and TLS send themselves.
2. Where the peer (a balancer, say) closes silent connections of its own accord, their ends soon say nothing any more:
   after `FEW` short lives of one length, as a time limit makes them, each followed by a connection at once, they are
   not told until one has lived long or otherwise. Engines that are restarted again and again live as long as it comes.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable

import structlog
from yarl import URL

from proxy import config

_log = structlog.get_logger("toktier.lookout")

SHORT_S = 120.0
"""A life below this may have ended by a time limit of the peer."""
FEW = 4
ALIKE_S = 1.0
"""Lives are of one length where they differ by no more than this, or by a tenth."""
FIRST_PAUSE_S = 0.25
LAST_PAUSE_S = 5.0
"""Between attempts while nothing listens."""
DISTRUSTED_PAUSE_S = 60.0
"""Before the next connection where ends say nothing."""


class _Silent(asyncio.Protocol):
    def __init__(self, ended: asyncio.Future[None]) -> None:
        self._ended = ended

    def data_received(self, data: bytes) -> None:
        """A server that speaks first is none that waits for requests; the connection is of no use."""
        self._end()

    def eof_received(self) -> None:
        self._end()

    def connection_lost(self, _error: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)


class Lookout:
    """Watches one upstream. Made and used inside one running event loop."""

    def __init__(self, name: str, settings: config.Upstream) -> None:
        self.on_gone: Callable[[], None] = lambda: None
        """Called when the connection ended."""
        self._name = name
        url = URL(settings.url)
        self._host, self._port, self._secure = url.host or "", url.port or 0, url.scheme == "https"
        self._verify = settings.verify_tls
        self._connect_timeout_s = settings.connect_timeout_s
        self._present = asyncio.Event()
        self._wanted = asyncio.Event()

    async def ready(self, within_s: float = 1.0) -> bool:
        """Waits until the connection stands, at most ``within_s`` seconds. Whether it does."""
        self._wanted.set()
        try:
            async with asyncio.timeout(within_s):
                await self._present.wait()
        except TimeoutError:
            return False
        return True

    async def keep(self) -> None:
        """Holds the connection and makes it anew. Ends only by cancellation."""
        short: deque[float] = deque(maxlen=FEW)
        pause = FIRST_PAUSE_S
        while True:
            ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            transport = await self._connect(ended)
            if transport is None:
                short.clear()  # what does not listen at all was ended
                await self._rest(pause)
                pause = min(LAST_PAUSE_S, pause * 2)
                continue
            pause = FIRST_PAUSE_S
            lived = await self._hold(transport, ended)
            if lived < SHORT_S:
                short.append(lived)
            else:
                short.clear()
            trusted = len(short) < FEW or max(short) - min(short) > max(ALIKE_S, 0.1 * max(short))
            _log.info("upstream_left", upstream=self._name, after_s=round(lived, 3), trusted=trusted)
            if trusted:
                self.on_gone()
            else:
                await asyncio.sleep(DISTRUSTED_PAUSE_S)

    async def _hold(self, transport: asyncio.BaseTransport, ended: asyncio.Future[None]) -> float:
        """Until the connection has ended; the seconds that it lived."""
        loop = asyncio.get_running_loop()
        since = loop.time()
        self._present.set()
        self._wanted.clear()
        try:
            await ended
        finally:
            self._present.clear()
            transport.close()
        return loop.time() - since

    async def _rest(self, seconds: float) -> None:
        """Until ``seconds`` have passed or someone wants the connection."""
        try:
            async with asyncio.timeout(seconds):
                await self._wanted.wait()
        except TimeoutError:
            return
        self._wanted.clear()

    async def _connect(self, ended: asyncio.Future[None]) -> asyncio.BaseTransport | None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                transport, _ = await loop.create_connection(
                    lambda: _Silent(ended), self._host, self._port, ssl=self._tls()
                )
        except (OSError, TimeoutError):  # ssl.SSLError is an OSError
            return None
        peer = transport.get_extra_info("socket")
        if peer is not None:  # a machine that is gone closes nothing: the kernel asks
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
                if hasattr(socket, name):
                    peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        return transport

    def _tls(self) -> ssl.SSLContext | None:
        if not self._secure:
            return None
        context = ssl.create_default_context()
        if not self._verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context
