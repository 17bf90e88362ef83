"""One inference engine (or a balancer before several): connections, and one re-send where it is safe.

Invariants
1. Requests go to the configured URL only: no redirects, no proxies from the environment, no cookies.
2. The reply's bytes are not decoded. Bytes that an engine sends while no request waits for them are no one's reply.
3. A request is sent a second time only when a *reused* connection failed before any byte of a reply: the engine had
   closed it while idle and never saw the request. The second time uses a new connection and is the last; another
   process may listen there, so it gets what is right for any (`Again`).
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import aiohttp
import structlog
from aiohttp.abc import AbstractStreamWriter
from aiohttp.connector import Connection
from aiohttp.http import StreamWriter
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from proxy import config, errors
from proxy.lookout import Lookout

_log = structlog.get_logger("toktier.upstream")
READ_BUFFER = 64 << 10
"""Bytes of a reply held while the client does not read (aiohttp pauses the upstream at twice this)."""
LARGE_BODY = 256 << 10
"""Larger bodies are written piece by piece, each when the engine has taken the one before: one write of megabytes would
hold the event loop, and a copy of them. So many bytes at most in one write."""
_MAX_HEADER = 64 << 10
_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no header or reason phrase of a reply may have, but which aiohttp's parser lets through."""
_NO_BYTE = "Server disconnected"
"""`ServerDisconnectedError.message` when nothing of a reply had arrived; else it is what had."""


Body = Sequence[bytes | memoryview]
"""A request's body in pieces, which are written one after the other. Nothing in them changes."""
Again = Callable[[], Awaitable[Body]]
"""Makes the body of the second time."""


@dataclass(slots=True)
class Attempts:
    """How a request was sent: how often, and how long the last connection took in microseconds (0: reused)."""

    count: int = 0
    connect_us: int = 0
    reused: bool = field(default=False, repr=False)
    _since: float = field(default=0.0, repr=False)
    _silence: Callable[[], None] = field(default=lambda: None, repr=False)
    """Called when a part of the request has been sent: the engine's silence counts from here."""


class _Connector(aiohttp.TCPConnector):
    """aiohttp's, but an idle connection on which something arrived meanwhile (a second reply) is closed, not reused."""

    async def _get(self, key: Any, traces: Any) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        return None


class Upstream:
    """Sends requests to one configured upstream. Make it inside a running event loop; `close` it there."""

    def __init__(self, name: str, settings: config.Upstream) -> None:
        self.name = name
        self.settings = settings
        secret = settings.secret()
        self.credential = None if secret is None else f"Bearer {secret}"
        """Value of the Authorization header of TokTier's own."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a connection failed, also if a second one served: what the probe found may be void."""
        self.lookout = Lookout(name, settings)
        self._base = settings.url
        self._pooled = self._session(keep=True)
        self._fresh = self._session(keep=False)

    def _session(self, keep: bool) -> aiohttp.ClientSession:
        s = self.settings
        pooling: dict[str, Any] = {"keepalive_timeout": s.keepalive_s} if keep else {"force_close": True}
        connector = _Connector(limit=s.max_connections, ssl=s.verify_tls, ttl_dns_cache=30, **pooling)
        trace = aiohttp.TraceConfig()
        trace.on_connection_reuseconn.append(_on_reuse)
        trace.on_connection_create_start.append(_on_create_start)
        trace.on_connection_create_end.append(_on_create_end)
        trace.on_request_headers_sent.append(_on_sent)
        trace.on_request_chunk_sent.append(_on_sent)
        return aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=s.connect_timeout_s, sock_read=s.read_timeout_s),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            read_bufsize=READ_BUFFER,
            max_line_size=_MAX_HEADER,
            max_field_size=_MAX_HEADER,
            trace_configs=[trace],
        )

    async def close(self) -> None:
        """Close every connection."""
        await self._pooled.close()
        await self._fresh.close()

    async def send(
        self,
        method: str,
        target: str,
        headers: CIMultiDict[str],
        body: Body | None,
        attempts: Attempts,
        again: Again | None = None,
    ) -> aiohttp.ClientResponse:
        """The reply, its head read and its body not. ``target`` is an encoded path with query, from the allow-list.

        A second time, the body is what ``again`` makes, or the same without it. The caller closes the reply. Raises
        `ApiError` 502 or 504. Cancellation closes the connection.
        """
        url = URL(self._base + target, encoded=True)
        try:
            try:
                return _checked(await self._send(self._pooled, method, url, headers, body, attempts))
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
                if not attempts.reused or not _nothing_received(error):
                    raise
                self.on_failure()  # another process may listen by now: it is asked before further IDs go out
                if again is not None:
                    body = await again()
            return _checked(await self._send(self._fresh, method, url, headers, body, attempts))
        except TimeoutError as error:
            self._failed(error)
            if isinstance(error, aiohttp.ConnectionTimeoutError):
                raise errors.upstream_unreachable() from None
            raise errors.upstream_timeout() from None
        except (aiohttp.ClientError, OSError) as error:
            self._failed(error)
            raise errors.upstream_unreachable() from None

    def _failed(self, error: BaseException) -> None:
        _log.warning("upstream_failure", upstream=self.name, error=type(error).__name__)
        self.on_failure()

    async def _send(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: URL,
        headers: CIMultiDict[str],
        body: Body | None,
        attempts: Attempts,
    ) -> aiohttp.ClientResponse:
        attempts.count += 1
        attempts.reused = False
        attempts.connect_us = 0
        data: bytes | _Pieces | None = None
        if body is not None:
            size = sum(map(len, body))
            data = _Pieces(body, size, lambda: attempts._silence()) if size > LARGE_BODY else b"".join(body)
        # aiohttp's own limit on silence ends with an interim (1xx) reply, and does not hold while a body is being sent.
        loop, silence_s = asyncio.get_running_loop(), self.settings.read_timeout_s
        try:
            async with asyncio.timeout(None) as limit:

                def heard() -> None:
                    if not limit.expired():
                        limit.reschedule(loop.time() + silence_s)

                attempts._silence = heard
                return await session.request(
                    method, url, headers=headers, data=data, allow_redirects=False, trace_request_ctx=attempts
                )
        finally:
            attempts._silence = lambda: None

    async def ask(self, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes]:
        """As `question`, without the headers."""
        status, reply, _ = await self.question(method, path, body, timeout_s)
        return status, reply

    async def question(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> tuple[int, bytes, CIMultiDictProxy[str]]:
        """A small request of TokTier's own (a probe): status, whole body and headers, within ``timeout_s`` seconds.

        Always on a new connection, so that what it finds is about the process that listens now. Raises
        aiohttp.ClientError, OSError, TimeoutError or ValueError (more than 64 MiB).
        """
        headers = {"Accept-Encoding": "identity", "User-Agent": "toktier-probe"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if self.credential is not None:
            headers["Authorization"] = self.credential
        data: bytes | _Pieces | None = body
        if body is not None and len(body) > LARGE_BODY:
            data = _Pieces([body], len(body), lambda: None)
        async with asyncio.timeout(timeout_s):
            url = URL(self._base + path, encoded=True)
            async with self._fresh.request(
                method, url, headers=headers, data=data, allow_redirects=False, trace_request_ctx=Attempts()
            ) as reply:
                pieces = bytearray()
                async for piece in reply.content.iter_any():
                    pieces += piece
                    if len(pieces) > 64 << 20:
                        raise ValueError("reply over 64 MiB")
                return reply.status, bytes(pieces), reply.headers


def _checked(reply: aiohttp.ClientResponse) -> aiohttp.ClientResponse:
    """``reply``, if it can be sent on. Raises `aiohttp.ClientError` (and closes it) where its head is no HTTP."""
    words = (reply.reason or "", *reply.headers.values())
    if reply.status < 200 or any(_UNSENDABLE.search(word) for word in words):
        reply.close()
        raise aiohttp.ClientPayloadError("the head of the reply is not valid")
    return reply


class _Pieces(aiohttp.Payload):
    """A body whose pieces are handed to the socket as they are: to join them would copy megabytes."""

    _autoclose = True  # nothing is open

    def __init__(self, body: Body, size: int, heard: Callable[[], None]) -> None:
        """``size``: of all pieces, in bytes. ``heard`` is called when the engine has taken a part of them."""
        super().__init__(body, content_type="application/json")
        self._size = size
        self._heard = heard

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._value).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """All of it: its length is the one that was told."""
        assert isinstance(writer, StreamWriter)
        writer.send_headers()
        for group in _groups(self._value):
            transport = writer.transport
            if transport is None or transport.is_closing():
                raise aiohttp.ClientConnectionResetError("the engine closed the connection")
            transport.writelines(group)
            writer.output_size += sum(map(len, group))
            self._heard()
            await writer.drain()


def _groups(body: Body) -> Iterator[list[bytes | memoryview]]:
    """The pieces in groups of at most `LARGE_BODY` bytes, longer ones in parts."""
    group: list[bytes | memoryview] = []
    held = 0
    for piece in body:
        view = memoryview(piece) if len(piece) > LARGE_BODY else piece
        for start in range(0, len(view), LARGE_BODY):
            part = view[start : start + LARGE_BODY]
            if group and held + len(part) > LARGE_BODY:
                yield group
                group, held = [], 0
            group.append(part)
            held += len(part)
    if group:
        yield group


def _nothing_received(error: BaseException) -> bool:
    return not isinstance(error, aiohttp.ServerDisconnectedError) or error.message == _NO_BYTE


async def _on_reuse(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    context.trace_request_ctx.reused = True


async def _on_create_start(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    context.trace_request_ctx._since = time.perf_counter()


async def _on_create_end(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    attempts: Attempts = context.trace_request_ctx
    attempts.reused = False
    attempts.connect_us = int((time.perf_counter() - attempts._since) * 1e6)


async def _on_sent(_session: aiohttp.ClientSession, context: SimpleNamespace, _params: Any) -> None:
    context.trace_request_ctx._silence()
