"""Sends inputs on raw sockets and reads what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import time
from dataclasses import dataclass, field

from tools.fuzz.inputs import Input

PAUSE_S = 0.02
"""Between two pieces of a slow input."""
MAX_REPLY = 64 << 20


@dataclass
class Reply:
    """One reply of the proxy."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes = b""
    cut: bool = False
    """The connection ended before the body did."""


@dataclass
class Outcome:
    """What became of an input. ``end``: ``answered``, ``closed`` (by the proxy), ``left`` (by us), ``hang`` or
    ``refused``."""

    replies: list[Reply] = field(default_factory=list)
    end: str = "answered"
    garbage: bytes = b""
    """What was no HTTP reply."""
    seconds: float = 0.0
    after: int | None = None
    """The input that used the connection before."""


class NotHttp(Exception):
    """The proxy sent something that is no reply."""


async def read_reply(reader: asyncio.StreamReader, method: str) -> Reply | None:
    """The next final reply, or None where the connection ended instead. Raises `NotHttp`."""
    while True:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise NotHttp(error.partial[:200]) from None
            return None
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        version, _, rest = first.partition(" ")
        code, _, reason = rest.partition(" ")
        if not version.startswith("HTTP/1.") or not code.isdecimal():
            raise NotHttp(head[:200])
        headers = {field.lower(): value.strip() for field, _, value in (line.partition(":") for line in lines)}
        if not code.startswith("1"):
            break
    reply = Reply(int(code), reason, headers)
    if method == "HEAD" or reply.status in (204, 304):
        return reply
    try:
        reply.body = await _body(reader, headers)
    except (asyncio.IncompleteReadError, ConnectionError):
        reply.cut = True
    return reply


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if headers.get("transfer-encoding", "").lower() == "chunked":
        pieces = []
        while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
        await reader.readuntil(b"\r\n")
        return b"".join(pieces)
    if "content-length" in headers:
        return await reader.readexactly(int(headers["content-length"]))
    return await reader.read(MAX_REPLY)


class Client:
    """Connections to one proxy. ``patience_s``: longer than that without a reply, and without an end, is a hang."""

    def __init__(self, host: str, port: int, patience_s: float) -> None:
        self._address = host, port
        self._patience = patience_s
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter, int]] = []

    async def send(self, given: Input) -> Outcome:
        """Send one input and read its replies. Connection errors are outcomes, too."""
        start = time.monotonic()
        outcome = Outcome()
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(self._patience):
                reader, writer, outcome.after = await self._connection(given)
                await self._exchange(given, reader, writer, outcome)
        except TimeoutError:
            outcome.end = "hang"
        except NotHttp as error:
            outcome.garbage = error.args[0]
        except ConnectionError:
            outcome.end = "refused" if writer is None else "closed"
        finally:
            outcome.seconds = time.monotonic() - start
            if writer is not None:
                self._done(given, outcome, reader, writer)
        return outcome

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop()[1].close()

    async def _connection(self, given: Input) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, int | None]:
        while self._idle and not given.wire:
            reader, writer, last = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer, last
            writer.close()
        return *await asyncio.open_connection(*self._address, limit=1 << 20), None

    async def _exchange(
        self, given: Input, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, outcome: Outcome
    ) -> None:
        for number, piece in enumerate(given.pieces):
            if number:
                await asyncio.sleep(PAUSE_S)
            writer.write(piece)
        if given.leave is not None:
            await self._leave(given.leave, writer)
            outcome.end = "left"
            return
        sending = asyncio.ensure_future(_drained(writer))
        try:
            while len(outcome.replies) < given.replies:
                reply = await read_reply(reader, given.method)
                if reply is None:
                    outcome.end = "closed"
                    return
                outcome.replies.append(reply)
        finally:
            sending.cancel()

    @staticmethod
    async def _leave(how: str, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        if how == "half":
            with contextlib.suppress(OSError):
                writer.write_eof()
            await asyncio.sleep(PAUSE_S)
        elif how == "abort":
            sock = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def _done(self, given: Input, outcome: Outcome, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        last = outcome.replies[-1] if outcome.replies else None
        reusable = (
            not given.wire
            and outcome.end == "answered"
            and last is not None
            and not last.cut
            and not outcome.garbage
            and last.headers.get("connection", "").lower() != "close"
        )
        if reusable:
            self._idle.append((reader, writer, given.number))
        else:
            writer.close()


async def _drained(writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        await writer.drain()
