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
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

import aiohttp
import structlog
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from proxy import config, errors
from proxy.lookout import Lookout
from proxy.wire import LARGE_BODY, READ_BUFFER, Body, Full, Reply, Sending, Wire

__all__ = ["LARGE_BODY", "READ_BUFFER", "Again", "Attempts", "Body", "Reply", "Sending", "Upstream", "is_silence"]

_log = structlog.get_logger("toktier.upstream")
_UNSENDABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""Characters that no header or reason phrase of a reply may have, but which aiohttp's parser lets through."""
_NO_BYTE = "Server disconnected"
"""`ServerDisconnectedError.message` when nothing of a reply had arrived; else it is what had."""


Again = Callable[[], Awaitable[Body]]
"""Makes the body of the second time."""


@dataclass(slots=True)
class Attempts:
    """How a request was sent: how often, and how long the last connection took in microseconds (0: reused)."""

    count: int = 0
    connect_us: int = 0
    reused: bool = False

    def connected(self, took_ns: int | None) -> None:
        """The request goes out on a connection that took so many nanoseconds; None: on one that served before."""
        self.reused = took_ns is None
        self.connect_us = (took_ns or 0) // 1000


class Upstream:
    """Sends requests to one configured upstream. Make it inside a running event loop; `close` it there."""

    def __init__(self, name: str, settings: config.Upstream) -> None:
        self.name = name
        self.settings = settings
        self.credential = _credential(settings)
        """Value of the Authorization header of TokTier's own."""
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a connection failed, also if a second one served: what the probe found may be void. Not for
        silence (`is_silence`), which any client's request may meet."""
        self.lookout = Lookout(name, settings)
        self._base = settings.url
        self._prefix = URL(settings.url, encoded=True).raw_path.rstrip("/")
        self._pooled = Wire(settings, keep=True)
        self._fresh = Wire(settings, keep=False)

    def _path(self, target: str) -> str:
        """A target of ours as the engine's server is asked for it."""
        if "?" in target or "#" in target:
            return URL(self._base + target, encoded=True).raw_path_qs
        return self._prefix + target

    def serves(self, settings: config.Upstream) -> bool:
        """Whether this is what ``settings`` say. Raises OSError where the key file cannot be read."""
        return self.settings == settings and self.credential == _credential(settings)

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
        begun: Sending | None = None,
    ) -> Reply:
        """The reply, its head read and its body not. ``target`` is an encoded path with query, from the allow-list.

        A second time, the body is what ``again`` makes, or the same without it. ``begun``: the request is under way
        (`begin`). The caller closes the reply. Raises `ApiError` 429, 502 or 504. Cancellation closes the connection.
        """
        path = self._path(target)
        try:
            try:
                if begun is not None:
                    return _checked(await self._in_time(attempts, partial(_reply, begun, attempts)))
                return _checked(await self._send(self._pooled, method, path, headers, body, attempts))
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionError) as error:
                if not attempts.reused or not _nothing_received(error):
                    raise
                self.on_failure()  # another process may listen by now: it is asked before further IDs go out
                if again is not None:
                    body = await again()
            return _checked(await self._send(self._fresh, method, path, headers, body, attempts))
        except Full:
            raise errors.upstream_full(self.settings.max_connections) from None
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
        if not is_silence(error):
            self.on_failure()

    async def idle(self) -> Sending | None:
        """A connection that a request can begin on at once, if there is one. It is the caller's (`Sending`)."""
        return await self._pooled.idle()

    def begin(self, sending: Sending, method: str, target: str, headers: CIMultiDict[str], body: Body) -> None:
        """Hands a request to an `idle` connection: for `send`, which waits for its reply. Raises as `Sending.begin`."""
        sending.begin(method, self._path(target), headers, body)

    async def _send(
        self, wire: Wire, method: str, path: str, headers: CIMultiDict[str], body: Body | None, attempts: Attempts
    ) -> Reply:
        return await self._in_time(
            attempts, lambda heard: wire.request(method, path, headers, body, attempts.connected, heard)
        )

    async def _in_time(self, attempts: Attempts, ask: Callable[[Callable[[], None]], Awaitable[Reply]]) -> Reply:
        """What ``ask`` gives, which is told what to call whenever the engine may be taken to have got something."""
        attempts.count += 1
        attempts.reused, attempts.connect_us = False, 0
        # aiohttp's own limit on silence ends with an interim (1xx) reply, and does not hold while a body is being sent.
        loop, silence_s = asyncio.get_running_loop(), self.settings.read_timeout_s
        async with asyncio.timeout(None) as limit:

            def heard() -> None:
                if not limit.expired():
                    limit.reschedule(loop.time() + silence_s)

            return await ask(heard)

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
        data = None if body is None else [body]
        async with asyncio.timeout(timeout_s):
            reply = await self._fresh.request(method, self._path(path), CIMultiDict(headers), data)
            try:
                pieces = bytearray()
                async for piece in reply.content.iter_any():
                    pieces += piece
                    if len(pieces) > 64 << 20:
                        raise ValueError("reply over 64 MiB")
                return reply.status, bytes(pieces), reply.headers
            finally:
                reply.close()


def _credential(settings: config.Upstream) -> str | None:
    secret = settings.secret()
    return None if secret is None else f"Bearer {secret}"


async def _reply(sending: Sending, attempts: Attempts, heard: Callable[[], None]) -> Reply:
    attempts.connected(None)
    sending.heard = heard
    return await sending.reply()


def is_silence(error: BaseException) -> bool:
    """Whether an engine that stays connected said nothing for too long. That is no sign of another process: a long
    prefill is silent too. A host that is gone ends the silent connection (`proxy.lookout`) and does not answer the
    watch (`proxy.probe`)."""
    return isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError) and not error.errno


def _checked(reply: Reply) -> Reply:
    """``reply``, if it can be sent on. Raises `aiohttp.ClientError` (and closes it) where its head is no HTTP."""
    words = (reply.reason or "", *reply.headers.values())
    if reply.status < 200 or any(_UNSENDABLE.search(word) for word in words):
        reply.close()
        raise aiohttp.ClientPayloadError("the head of the reply is not valid")
    return reply


def _nothing_received(error: BaseException) -> bool:
    return not isinstance(error, aiohttp.ServerDisconnectedError) or error.message == _NO_BYTE
