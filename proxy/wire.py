"""One request on one of aiohttp's connections to an engine, and its reply: no more than TokTier needs of a client.

aiohttp makes the connections, keeps idle ones and parses replies; its `ClientSession` is left out, which takes longer
than all of that for cookies, redirects, tracing and objects that nobody asks for (docs/log.md).

Invariants
1. A connection goes back to the others only when the whole request has been sent and the whole reply has come; in any
   other case it is closed.
2. While a body is being sent the reply is waited for already: an engine may refuse what it has not read to the end.
3. What is handed to the socket at once is the head and at most `AT_ONCE` bytes; the rest follows as it is taken.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ClientRequest
from aiohttp.connector import Connection
from aiohttp.helpers import TimerNoop
from aiohttp.http import HttpProcessingError, StreamWriter
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from proxy import config

READ_BUFFER = 64 << 10
"""Bytes of a reply held while the client does not read (aiohttp pauses the upstream at twice this)."""
LARGE_BODY = 256 << 10
"""Larger bodies are written piece by piece: to join them would copy megabytes."""
AT_ONCE = 1 << 20
"""Bytes of one write: of 64 KiB to everything at once, what took the least time (docs/log.md)."""
MAX_HEADER = 64 << 10
"""Longest status line or header of a reply, in bytes."""
MAX_HEADERS = 128
"""Headers of a reply."""
_NOT_IN_A_LINE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_WITHOUT_BODY = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
"""Methods whose requests say nothing of a body where there is none."""

Body = Sequence[bytes | memoryview]
"""A request's body in pieces, which are written one after the other. Nothing in them changes."""


class Full(TimeoutError):
    """All connections that may be open are in use, and none has become free in time."""


class Connector(aiohttp.TCPConnector):
    """aiohttp's, but an idle connection on which something arrived meanwhile (a second reply) is closed, not reused.

    ``within_s``: how long a request waits for a connection to become free (`Full`), and then for a new one, from the
    look-up of the name on (TimeoutError). aiohttp would not limit the first, nor the look-up.
    """

    def __init__(self, within_s: float, **options: Any) -> None:
        super().__init__(**options)
        self._within_s = within_s
        self._made: WeakKeyDictionary[ResponseHandler, int] = WeakKeyDictionary()

    async def _get(self, key: Any, traces: Any) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                return connection
            connection.close()
        return None

    async def _create_connection(self, req: ClientRequest, traces: Any, timeout: Any) -> Any:  # noqa: ASYNC109
        since = time.perf_counter_ns()
        async with asyncio.timeout(self._within_s):
            protocol = await super()._create_connection(req, traces, timeout)
        self._made[protocol] = time.perf_counter_ns() - since
        return protocol

    async def _wait_for_available_connection(self, key: Any, traces: Any) -> None:
        try:
            async with asyncio.timeout(self._within_s):
                await super()._wait_for_available_connection(key, traces)
        except TimeoutError:
            raise Full from None

    def made_in(self, protocol: ResponseHandler) -> int | None:
        """Nanoseconds that the connection took, when it is asked for the first time; later, and so where the
        connection is used again, None."""
        return self._made.pop(protocol, None)


class Reply:
    """The head of a reply; the body comes with ``content``. To be closed by whoever has it."""

    __slots__ = ("_connection", "_upload", "content", "headers", "reason", "status")

    def __init__(
        self, message: Any, content: aiohttp.StreamReader, connection: Connection, upload: asyncio.Task[None] | None
    ) -> None:
        self.status: int = message.code
        self.reason: str = message.reason
        self.headers: CIMultiDictProxy[str] = message.headers
        self.content = content
        self._connection: Connection | None = connection
        self._upload = upload
        content.on_eof(self._ended)

    def _ended(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._upload is None or self._upload.done():
            connection.release()
        else:
            self._upload.cancel()
            connection.close()

    def close(self) -> None:
        """Nothing more of the body is wanted. Where some of it is still to come the connection ends."""
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._upload is not None:
                self._upload.cancel()
            connection.close()


def _nothing(*_: object) -> None:
    """For who does not want to be told."""


class Wire:
    """Requests to one upstream. ``keep``: connections are used again. Make it inside a running event loop."""

    def __init__(self, settings: config.Upstream, *, keep: bool) -> None:
        pooling: dict[str, Any] = {"keepalive_timeout": settings.keepalive_s} if keep else {"force_close": True}
        self._connector = Connector(
            settings.connect_timeout_s,
            limit=settings.max_connections,
            ssl=settings.verify_tls,
            ttl_dns_cache=30,
            **pooling,
        )
        self.timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.connect_timeout_s, sock_read=settings.read_timeout_s
        )
        # What a connection is asked for by: the same for every request.
        self._to = ClientRequest("POST", URL(settings.url, encoded=True), loop=asyncio.get_running_loop())
        self._host = self._to.headers["Host"]

    @property
    def closed(self) -> bool:
        return self._connector.closed

    async def close(self) -> None:
        """Close every connection."""
        await self._connector.close()

    async def request(
        self,
        method: str,
        path: str,
        headers: CIMultiDict[str],
        body: Body | None,
        connected: Callable[[int | None], None] = _nothing,
        heard: Callable[[], None] = _nothing,
    ) -> Reply:
        """The reply, its head read and its body not. ``path``: encoded, with the query.

        ``connected`` is told how many nanoseconds the connection took, None where it is one that served before;
        ``heard`` is called when the engine may be taken to have got a part of the request. Raises as `ClientSession`,
        and `Full`.
        """
        try:
            connection = await self._connector.connect(self._to, [], self.timeout)
        except Full:
            raise
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError("the connection took too long") from error
        sending = Sending(self, connection)
        connected(self._connector.made_in(sending.protocol))
        sending.heard = heard
        try:
            sending.begin(method, path, headers, body)
        except BaseException:
            sending.close()
            raise
        return await sending.reply()

    async def idle(self) -> Sending | None:
        """A connection that served before, if one is free. To be used, given back or closed."""
        connection = await self._connector._get(self._to.connection_key, [])
        return None if connection is None else Sending(self, connection)

    def head(self, method: str, path: str, headers: CIMultiDict[str], size: int | None) -> bytes:
        """The head of a request whose body has ``size`` bytes, if it has one. Raises ValueError for what is no head."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._host}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if size is not None or method not in _WITHOUT_BODY:
            lines.append(f"Content-Length: {size or 0}")
        if self._connector.force_close:
            lines.append("Connection: close")
        if _NOT_IN_A_LINE.search("".join(lines)):
            raise ValueError("a control character in the head of a request")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Sending:
    """A request on a connection: `begin`, then `reply`; or `give_back`, where it did not begin."""

    def __init__(self, wire: Wire, connection: Connection) -> None:
        assert connection.protocol is not None
        self.protocol = connection.protocol
        self.begun_ns: int | None = None
        """`time.perf_counter_ns` when it began."""
        self.heard: Callable[[], None] = _nothing
        self._wire = wire
        self._connection = connection
        self._upload: asyncio.Task[None] | None = None

    def begin(self, method: str, path: str, headers: CIMultiDict[str], body: Body | None) -> None:
        """Hands what the socket takes at once to it; the rest follows by itself. As for `Wire.request`.

        Raises ValueError for what is no head, and `aiohttp.ClientConnectionResetError`; it is to be closed then.
        """
        protocol, timeout = self.protocol, self._wire.timeout
        protocol.set_response_params(
            timer=TimerNoop(),
            skip_payload=method == "HEAD",
            read_until_eof=True,
            auto_decompress=False,
            read_timeout=timeout.sock_read,
            read_bufsize=READ_BUFFER,
            max_line_size=MAX_HEADER,
            max_field_size=MAX_HEADER,
            max_headers=MAX_HEADERS,
        )
        size = sum(map(len, body or ()))
        left = _groups(self._wire.head(method, path, headers, None if body is None else size), body or (), size)
        self.begun_ns = time.perf_counter_ns()
        if _handed_over(protocol, left, self._was_heard):
            protocol.start_timeout()
        else:
            self._upload = asyncio.create_task(_rest(protocol, left, self._was_heard))

    async def reply(self) -> Reply:
        """Raises as `Wire.request`; the connection is closed then."""
        self.heard()
        try:
            while True:
                try:
                    message, content = await self.protocol.read()
                except HttpProcessingError as error:
                    raise aiohttp.ClientPayloadError("the head of the reply is not valid") from error
                if not 100 <= message.code <= 199 or message.code == 101:
                    return Reply(message, content, self._connection, self._upload)
        except BaseException:
            self.close()
            raise

    def give_back(self) -> None:
        """It is not needed: the connection is for others, unless something was sent on it."""
        if self.begun_ns is None:
            self._connection.release()
        else:
            self.close()

    def close(self) -> None:
        if self._upload is not None:
            self._upload.cancel()
        self._connection.close()

    def _was_heard(self) -> None:
        self.heard()


def _groups(head: bytes, body: Body, size: int) -> deque[list[bytes | memoryview]]:
    """What is to be written, in groups of at most `AT_ONCE` bytes, the head not counted; longer pieces in parts.

    A head on its own would wake the engine's process up, which takes longer than all of a short request.
    """
    if size <= LARGE_BODY:
        return deque([[b"".join((head, *body))]])
    groups: deque[list[bytes | memoryview]] = deque()
    group: list[bytes | memoryview] = [head]
    held = 0
    for piece in body:
        view = memoryview(piece) if len(piece) > AT_ONCE else piece
        for start in range(0, len(view), AT_ONCE):
            part = view[start : start + AT_ONCE]
            if held and held + len(part) > AT_ONCE:
                groups.append(group)
                group, held = [], 0
            group.append(part)
            held += len(part)
    groups.append(group)
    return groups


def _handed_over(protocol: ResponseHandler, left: deque[list[bytes | memoryview]], heard: Callable[[], None]) -> bool:
    """Hands the next group to the socket. Whether it was the last one."""
    transport = protocol.transport
    if transport is None or transport.is_closing():
        raise aiohttp.ClientConnectionResetError("the engine closed the connection")
    transport.writelines(left.popleft())
    heard()
    return not left


async def _rest(protocol: ResponseHandler, left: deque[list[bytes | memoryview]], heard: Callable[[], None]) -> None:
    """Hands over what is left, when the engine has taken what was handed over before."""
    writer = StreamWriter(protocol, asyncio.get_running_loop())
    try:
        while True:
            await writer.drain()
            if _handed_over(protocol, left, heard):
                break
            await asyncio.sleep(0)
    except Exception as error:  # whoever waits for the reply is told
        protocol.set_exception(aiohttp.ClientOSError(None, "the request could not be sent"), error)
    else:
        protocol.start_timeout()
