"""The way back: an upstream's reply to the client, byte for byte, as it arrives.

Invariants
1. The client's bytes equal the upstream's, in order; one more SSE event follows only when the stream broke off.
2. At most one piece of the reply (`proxy.upstream.READ_BUFFER`) waits here: the next is read when the client's socket
   has taken it, and the reply has ended when the socket has. A client that does not read for `write_timeout_s` is cut.
3. The observer (`proxy.observers`) sees what was sent, after it was sent, and holds the event loop for a few
   milliseconds at most, whatever the engine sends and however much of it comes at once.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum

import aiohttp
from aiohttp import web

from proxy import changes
from proxy.marks import Marks
from proxy.observers import JsonObserver, SseObserver
from proxy.server import is_stalled
from proxy.upstream import is_silence
from proxy.wire import Reply

LOOK = 8 << 10
"""Bytes of a stream that are looked into at once: 8,192 lines at most, which take some milliseconds."""


class End(Enum):
    """How a relay ended."""

    COMPLETE = "complete"
    CLIENT_STALLED = "client_stalled"
    CLIENT_GONE = "client_gone"
    INCOMPLETE = "incomplete_stream"


@dataclass(slots=True)
class Relayed:
    """What became of a reply. ``body_bytes`` were sent to the client. Until it has ended, the client is who left."""

    end: End = End.CLIENT_GONE
    status: int | None = None
    body_bytes: int = 0
    upstream_broke: bool = False
    upstream_silent: bool = False
    """Whether it broke only by saying nothing for too long."""
    sse: SseObserver | None = None
    json: JsonObserver | None = None

    @property
    def prompt_tokens(self) -> int | None:
        """``usage.prompt_tokens`` of the reply, where it has one."""
        observer = self.sse or self.json
        return None if observer is None else observer.prompt_tokens

    @property
    def marks(self) -> Marks:
        """What the reply says of the process that wrote it."""
        observer = self.sse or self.json
        return Marks() if observer is None else observer.marks

    @property
    def began(self) -> str | None:
        """The first characters of the model's text, where the reply shows them."""
        observer = self.sse or self.json
        return None if observer is None else observer.beginning.text

    @property
    def error(self) -> bool:
        """Whether the reply's own bytes tell of an error, whatever its status."""
        observer = self.sse or self.json
        return observer is not None and observer.error


class _Response(web.StreamResponse):
    """Its head goes out with the first bytes of its body, or when it is told to: each write that wakes a client takes
    longer than all that is done for the reply."""

    _send_headers_immediately = False


def _at_hand(reply: Reply) -> bytes:
    """What has come of the body already."""
    return reply.content.read_nowait() if reply.content.exception() is None else b""


def _plain(reply: Reply) -> bool:
    return reply.headers.get("Content-Encoding", "identity").strip().lower() in ("", "identity")


async def relay(
    request: web.BaseRequest,
    reply: Reply,
    relayed: Relayed,
    *,
    write_timeout_s: float,
    ends_with_done: bool,
    read: bytes = b"",
) -> web.StreamResponse:
    """Send ``reply`` to the client and fill in ``relayed``. The caller closes ``reply``, also when this is cancelled.

    ``ends_with_done``: a whole stream of this route ends in ``[DONE]``, so an orderly end without it (and without a
    finish reason) is an early one too. ``read``: bytes of the body that were taken from ``reply`` already.
    """
    response = _Response(status=reply.status, reason=reply.reason, headers=changes.reply_headers(reply.headers))
    relayed.status = reply.status
    if _plain(reply):
        kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            relayed.sse = SseObserver(reply.headers)
        elif kind == "application/json":
            relayed.json = JsonObserver(reply.headers)
    try:
        begin = read or _at_hand(reply)
        writer = await response.prepare(request)
        if writer is not None and not begin:
            writer.send_headers()
        broken = await _pump(reply, response, write_timeout_s, relayed, begin)
        sse = relayed.sse
        relayed.upstream_broke = broken
        early = broken or (ends_with_done and reply.status == 200 and sse is not None and not sse.complete)
        if sse is not None and early and not sse.done:
            relayed.end = End.INCOMPLETE
            if "Content-Length" in reply.headers:
                _cut(request)  # there is no room for an event
            else:
                async with asyncio.timeout(write_timeout_s):
                    await response.write(changes.error_event(sse.boundary))
        elif sse is None and broken:
            # Nothing can be added to a body of another kind; only a broken connection tells the client.
            relayed.end = End.INCOMPLETE
            _cut(request)
        else:
            if relayed.json is not None:
                relayed.json.end()
            relayed.end = End.COMPLETE
            await _finish(request, response, write_timeout_s)
    except TimeoutError:
        relayed.end = End.CLIENT_STALLED
        _cut(request)
    except ConnectionError:
        relayed.end = End.CLIENT_GONE
    finally:
        if is_stalled(request):
            relayed.end = End.CLIENT_STALLED
    return response


async def _finish(request: web.BaseRequest, response: web.StreamResponse, write_timeout_s: float) -> None:
    """End the reply. TimeoutError where the client has left too much of it unread; one that has gone has got it all."""
    async with asyncio.timeout(write_timeout_s):
        with suppress(ConnectionError):
            await response.write_eof()
            await request.writer.drain()


async def _pump(
    reply: Reply, response: web.StreamResponse, write_timeout_s: float, relayed: Relayed, read: bytes
) -> bool:
    """Relay the body. True when the upstream broke off. ConnectionError and TimeoutError are the client's."""
    observer = relayed.sse or relayed.json
    piece = read
    while True:
        if piece:
            async with asyncio.timeout(write_timeout_s):
                await response.write(piece)
            relayed.body_bytes += len(piece)
            if observer is not None:
                await _look(observer, piece)
        try:
            piece = await reply.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            relayed.upstream_silent = is_silence(error)
            return True
        if not piece:
            return False


async def _look(observer: SseObserver | JsonObserver, piece: bytes) -> None:
    """Others get their turn in between: a line costs the same however short it is."""
    if len(piece) <= LOOK or isinstance(observer, JsonObserver):
        observer.feed(piece)
        return
    for start in range(0, len(piece), LOOK):
        observer.feed(piece[start : start + LOOK])
        await asyncio.sleep(0)


def _cut(request: web.BaseRequest) -> None:
    """Close the client's connection at once, with what it has not read: its body can never be complete."""
    if request.transport is not None:
        request.transport.abort()
