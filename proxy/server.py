"""aiohttp's server as TokTier runs it: how many may connect, how long headers may take, and what is answered where no
handler is reached (malformed HTTP, or a crash in aiohttp).

Invariants
1. Such an answer is JSON in OpenAI's shape and quotes nothing of the request; the log gets the error's type.
2. A connection that is turned away is answered and closed, without a look at what it sends any more.
3. From its opening, and from the first byte of each later request, a connection has ``header_timeout_s`` to send a
   whole head. (`proxy.body` limits the body, aiohttp's keep-alive time-out the time between requests.)
4. A connection ends with the task that answers on it, however that ends: no timer would end it later.
5. A client that does not take what was written has ``write_timeout_s``, from the moment at which no more can be written
   or the connection is closed; then the connection is cut, whatever is unsent. (A timer of `proxy.relay` does the same
   for one piece of a reply.)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import structlog
from aiohttp import web
from aiohttp.http import SERVER_SOFTWARE, HttpVersion10, HttpVersion11, RawRequestMessage
from aiohttp.web_protocol import ERROR, RequestHandler
from yarl import URL

from proxy import errors
from proxy.config import Limits
from proxy.errors import ApiError

_log = structlog.get_logger("toktier.server")

VERSIONS = (HttpVersion10, HttpVersion11)
"""What TokTier speaks."""
MAX_HEADER_BYTES = 32 << 10
"""Longest request line or header; agents put whole turns' metadata into one."""
MAX_HEADERS = 128
"""Headers of one request."""

LINGER_S = 1.0
"""How long a connection that is turned away may take to read why. Closed at once, it would be reset where it sends."""
LINGERING = 256
"""Connections that may do so at the same time."""
SENT_EVERY_S = 0.02
SENT_ROUNDS = 2
"""How often nothing must be unsent: what was just written, or has just left the kernel, is not seen the first time."""
NOTED_EVERY_S = 1.0
"""Connections that were turned away are logged together, once in so many seconds."""


def allow_open_files() -> None:
    """Every connection is an open file, and a process starts with leave for 1024, often far below what it may have."""
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource  # not on Windows

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Door:
    """Counts connections, and refuses those that are too many. For the event loop's thread.

    ``limits`` and ``write_timeout_s`` are those in force; ``refused`` is told the code of each refusal.
    """

    def __init__(
        self, limits: Callable[[], Limits], write_timeout_s: Callable[[], float], refused: Callable[[str], None]
    ) -> None:
        self.limits = limits
        self.write_timeout_s = write_timeout_s
        self.refused = refused
        self.inside: set[_Protocol] = set()
        """Connections that are open, those that are being turned away too."""
        self.handshakes = 0
        """Connections whose TLS handshake is not over: `proxy.site` counts them, and ``connections`` does not."""
        self.lingering = 0
        self._noted: dict[str, int] = {}

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self.inside)

    def unsent(self) -> int:
        """Connections on which a reply has ended that has not left the process."""
        return sum(not it.is_answering and it.has_unsent for it in self.inside)

    async def sent(self) -> None:
        """Waits until there are none."""
        rounds = 0
        while rounds < SENT_ROUNDS:
            await asyncio.sleep(SENT_EVERY_S)
            rounds = 0 if self.unsent() else rounds + 1

    def note(self, error: ApiError) -> None:
        """Counts and logs it."""
        assert error.code is not None
        self.refused(error.code)
        if not self._noted:
            asyncio.get_running_loop().call_later(NOTED_EVERY_S, self._log)
        self._noted[error.code] = self._noted.get(error.code, 0) + 1

    def _log(self) -> None:
        for code, count in self._noted.items():
            _log.warning("connections_refused", error=code, count=count)
        self._noted.clear()


DOOR: web.AppKey[Door] = web.AppKey("door", Door)


class _Protocol(RequestHandler):
    __slots__ = ("_began", "_door", "_late", "_turned_away", "_unread", "_wire", "stalled")

    def __init__(self, *arguments: Any, door: Door, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._door = door
        self._wire: Any = None
        """The transport, also where aiohttp has closed it and knows it no more."""
        self._turned_away = False
        self._began = False
        """Whether a byte of a head has come that is not whole yet."""
        self._late: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        """Ends a connection whose client does not take what was written."""
        self.stalled = False
        """Whether that has happened."""

    async def start(self) -> None:
        try:
            await super().start()
        except Exception as error:
            _log.warning("server_error", status=None, error=type(error).__name__)
        finally:
            self.force_close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        door = self._door
        door.inside.add(self)
        self._wire = transport
        most = door.limits().connections
        if door.connections > most:
            self._turn_away(errors.too_many_connections(most))
        else:
            self._expect_head()

    def connection_lost(self, exc: BaseException | None) -> None:
        if self in self._door.inside:
            self._door.inside.remove(self)
            if self._turned_away and self._late is not None:
                self._door.lingering -= 1
        self._head_came()
        super().connection_lost(exc)
        self._was_read()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self.transport is not None:
            self._must_be_read(self.transport)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.transport is not None:  # else it is being closed, with what is left
            self._was_read()

    def force_close(self) -> None:
        transport = self.transport
        super().force_close()
        if transport is not None:
            self._must_be_read(transport)

    @property
    def is_answering(self) -> bool:
        """Whether a handler runs."""
        return self._current_request is not None

    @property
    def has_unsent(self) -> bool:
        """Whether something that was written has not left the process; with TLS, whose buffers do not tell that,
        whether the client has not got it."""
        wire = self._wire
        if wire.get_write_buffer_size() > 0:
            return True
        return wire.get_extra_info("ssl_object") is not None and _in_kernel(wire.get_extra_info("socket")) > 0

    def _must_be_read(self, transport: asyncio.Transport) -> None:
        self._was_read()
        self._unread = self._loop.call_later(self._door.write_timeout_s(), self._not_read, transport)

    def _was_read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _not_read(self, transport: asyncio.Transport) -> None:
        self._unread = None
        self.stalled = True
        transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._turned_away:
            return
        heads = self._request_count
        super().data_received(data)
        if self._request_count != heads:
            self._head_came()
        elif self._late is not None:
            self._began = True
        elif self._waiter is not None and not self._waiter.done():  # between two requests
            self._began = True
            self._expect_head()

    def _expect_head(self) -> None:
        self._late = self._loop.call_later(self._door.limits().header_timeout_s, self._head_late)

    def _head_came(self) -> None:
        self._began = False
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _head_late(self) -> None:
        self._late = None
        if self.transport is None:
            return
        if self._began:
            self._turn_away(errors.head_timeout())
        else:
            self.force_close()

    def _turn_away(self, error: ApiError) -> None:
        self._turned_away = True
        door, transport = self._door, self.transport
        assert transport is not None
        door.note(error)
        transport.write(_raw(error))
        if door.lingering >= LINGERING or not transport.can_write_eof():
            self.force_close()
            return
        transport.write_eof()
        door.lingering += 1
        self._late = self._loop.call_later(LINGER_S, self._linger_over)

    def _linger_over(self) -> None:
        self._late = None
        self._door.lingering -= 1
        self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        _log.warning("bad_http" if status < 500 else "server_error", status=status, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the reply had begun")
        response = errors.from_status(status).response()
        response.force_close()
        return response


def _raw(error: ApiError) -> bytes:
    """The answer as bytes, for a connection on which no request was read."""
    body = error.body()
    headers = {
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        **error.headers,
        "Connection": "close",
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n{lines}\r\n".encode() + body


def _in_kernel(connection: Any) -> int:
    """Bytes that the kernel holds until the other side has them; 0 where it does not say."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import fcntl  # not on Windows
        import termios

        held = fcntl.ioctl(connection.fileno(), termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(held, sys.byteorder)
    return 0


def is_stalled(request: web.BaseRequest) -> bool:
    """Whether the client's connection was cut because the client did not read."""
    protocol = request.protocol
    return isinstance(protocol, _Protocol) and protocol.stalled


def plain_head(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """aiohttp names itself in every reply; TokTier adds no header (`proxy.changes`). Nor does it speak HTTP/0.9 or 2.0
    because a client said so.
    """
    if request.version not in VERSIONS:
        request._cache["version"] = HttpVersion11  # what its status line is written with
    if response.headers.get("Server") == SERVER_SOFTWARE:
        del response.headers["Server"]


class _Unreadable(web.BaseRequest):
    """Stands for what no request can be made of. ``error`` says why, None where aiohttp's own answer to it does."""

    ATTRS = web.BaseRequest.ATTRS | {"error"}
    error: Exception | None = None

    async def refused(self) -> web.StreamResponse:
        return self.protocol.handle_error(self, 400, self.error)

    async def _prepare_hook(self, response: web.StreamResponse) -> None:
        plain_head(self, response)


_Make = Callable[..., web.BaseRequest]
_Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def _guarded(make: _Make) -> _Make:
    """aiohttp makes requests where nothing catches what that raises, a host that is no name (`http://xn--a/`) say."""

    def request(message: RawRequestMessage, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        error = None
        if message is ERROR:
            message = message._replace(version=HttpVersion11)
        else:
            try:
                return make(message, payload, protocol, writer, task)
            except ValueError as wrong:
                error = wrong.with_traceback(None)  # or it would hold the frames
        made = _Unreadable(message._replace(url=URL("/")), payload, protocol, writer, task, protocol._loop)
        made.error = error
        return made

    return request


def _refusing(handle: _Handle) -> _Handle:
    def answer(request: web.BaseRequest) -> Awaitable[web.StreamResponse]:
        return request.refused() if isinstance(request, _Unreadable) else handle(request)

    return answer


class _Server(web.Server):
    door: Door

    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, door=self.door, **self._kwargs)


class Runner(web.AppRunner):
    """`web.AppRunner` for an application of `proxy.app.create_app`."""

    def __init__(self, app: web.Application, **options: Any) -> None:
        super().__init__(app, access_log=None, **options)
        self.door = app[DOOR]

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        server = _Server(
            _refusing(made.request_handler),
            request_factory=_guarded(made.request_factory),
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,
            **made._kwargs,
        )
        server.door = self.door
        return server
