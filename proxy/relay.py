"""The way back: an upstream's reply to the client, byte for byte, as it arrives.

Invariants
1. The client's bytes equal the upstream's, in order; one more SSE event follows only when the stream broke off.
2. At most one piece of the reply (`proxy.upstream.READ_BUFFER`) waits here: the next is read when the client's socket
   has taken it. A client that takes nothing for `write_timeout_s` is cut.
3. The observer sees what was sent, after it was sent.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

import aiohttp
import orjson
from aiohttp import web

from proxy import changes
from proxy.marks import Marks, marks_of

MAX_LINE = 256 << 10
"""Longest SSE line that is looked into, in bytes; a longer one is relayed but not understood."""
MAX_JSON = 1 << 20
"""Largest JSON reply that is looked into, in bytes."""
_LINE_END = re.compile(rb"\r\n|\n|\r")
_INTERESTING = re.compile(rb'"usage"\s*:\s*\{|"finish_reason"\s*:\s*"|"error"\s*:\s*[{"]')


class End(Enum):
    """How a relay ended."""

    COMPLETE = "complete"
    CLIENT_STALLED = "client_stalled"
    CLIENT_GONE = "client_gone"
    INCOMPLETE = "incomplete_stream"


class SseObserver:
    """Reads usage and the end of a stream out of SSE bytes, in bounded memory, at any chunking.

    A line ends with LF, CR or CR LF; the ``data`` lines of an event are joined with LF (WHATWG HTML, 9.2.6).
    """

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """``headers``: the reply's, for `marks`."""
        self.events = 0
        self.done = False
        self.finished = False
        self.error = False
        self.prompt_tokens: int | None = None
        self.marks = Marks()
        self._headers = headers or {}
        self._open = False
        self._line = b""
        self._after_cr = False
        self._skip = False
        self._data: list[bytes] = []
        self._size = 0

    @property
    def complete(self) -> bool:
        """Whether the stream said how it ended: `[DONE]`, a finish reason, or an error of its own."""
        return self.done or self.finished or self.error

    def feed(self, chunk: bytes) -> None:
        """Bytes in the order in which they were relayed."""
        if not chunk:
            return
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r") if chunk else False
        first, *rest = _LINE_END.split(chunk)
        self._hold(first)
        for part in rest:
            line, self._line = self._line, b""
            skip, self._skip = self._skip, False
            self._end_line(b"" if skip else line, skip)
            self._hold(part)

    @property
    def boundary(self) -> bool:
        """Whether an event added now would not run into one that has begun."""
        return not self._open and not self._line and not self._skip

    def _hold(self, part: bytes) -> None:
        if len(self._line) + len(part) > MAX_LINE:
            self._line, self._skip = b"", True
        elif not self._skip:
            self._line += part

    def _end_line(self, line: bytes, skipped: bool) -> None:
        self._open = skipped or bool(line)
        if skipped:
            self._data = self._data or [b""]
            return
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                value = value.removeprefix(b" ")
                self._size += len(value) + 1
                if self._size <= MAX_LINE:
                    self._data.append(value)
                else:
                    self._data = [b""]  # an event that is too long is not looked into
            return
        if self._data:
            self.events += 1
            self._event(b"\n".join(self._data))
            self._data, self._size = [], 0

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
        elif _INTERESTING.search(data):
            try:
                value = orjson.loads(data)
            except orjson.JSONDecodeError:
                return
            if not isinstance(value, dict):
                return
            self.error = self.error or bool(value.get("error"))
            self.marks = marks_of(self._headers, value)
            self.prompt_tokens = _prompt_tokens(value, self.prompt_tokens)
            choices = value.get("choices")
            if isinstance(choices, list):
                self.finished = self.finished or any(isinstance(c, dict) and c.get("finish_reason") for c in choices)


class JsonObserver:
    """Reads usage and an error out of a JSON reply that is not too large."""

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """``headers``: the reply's, for `marks`."""
        self.prompt_tokens: int | None = None
        self.error = False
        self.marks = Marks()
        self._headers = headers or {}
        self._pieces: list[bytes] = []
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        """Bytes in the order in which they were relayed."""
        self._size += len(chunk)
        if self._size <= MAX_JSON:
            self._pieces.append(chunk)
        else:
            self._pieces.clear()

    def end(self) -> None:
        """The reply is complete."""
        if self._pieces:
            try:
                value = orjson.loads(b"".join(self._pieces))
            except orjson.JSONDecodeError:
                return
            if isinstance(value, dict):
                self.error = bool(value.get("error"))
                self.marks = marks_of(self._headers, value)
                self.prompt_tokens = _prompt_tokens(value, None)


def _prompt_tokens(value: dict[str, object], known: int | None) -> int | None:
    usage = value.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else known


@dataclass(slots=True)
class Relayed:
    """What became of a reply. ``body_bytes`` were sent to the client. Until it has ended, the client is who left."""

    end: End = End.CLIENT_GONE
    status: int | None = None
    body_bytes: int = 0
    upstream_broke: bool = False
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
    def error(self) -> bool:
        """Whether the reply's own bytes tell of an error, whatever its status."""
        observer = self.sse or self.json
        return observer is not None and observer.error


def _plain(reply: aiohttp.ClientResponse) -> bool:
    return reply.headers.get("Content-Encoding", "identity").strip().lower() in ("", "identity")


async def relay(
    request: web.BaseRequest,
    reply: aiohttp.ClientResponse,
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
    response = web.StreamResponse(
        status=reply.status, reason=reply.reason, headers=changes.reply_headers(reply.headers)
    )
    relayed.status = reply.status
    if _plain(reply):
        kind = reply.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind == "text/event-stream":
            relayed.sse = SseObserver(reply.headers)
        elif kind == "application/json":
            relayed.json = JsonObserver(reply.headers)
    try:
        await response.prepare(request)
        broken = await _pump(reply, response, write_timeout_s, relayed, read)
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
    except TimeoutError:
        relayed.end = End.CLIENT_STALLED
        _cut(request)
    except ConnectionError:
        relayed.end = End.CLIENT_GONE
    return response


async def _pump(
    reply: aiohttp.ClientResponse, response: web.StreamResponse, write_timeout_s: float, relayed: Relayed, read: bytes
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
                observer.feed(piece)
        try:
            piece = await reply.content.readany()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return True
        if not piece:
            return False


def _cut(request: web.BaseRequest) -> None:
    """Close the client's connection at once, with what it has not read: its body can never be complete."""
    if request.transport is not None:
        request.transport.abort()
