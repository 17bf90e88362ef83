"""The upstream of the proxy account: a process that reads a body and replies at once, whatever is in it.

``python -m tools.bench.standin TOKENIZER``: its URL is the first line on standard output; it ends with its standard
input. TokTier's own questions (the probe) get true answers. The reply to a chat request says how many bytes its body
had, and ``GET /last`` gives back the last such body.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import cast

from tools.traffic.engine import CHAT, PROBE_AGENT, Engine, reference_ids

MODEL = "tiny"
"""The model that it serves, named as `tools.engine` names its own."""
LAST = "/last"
REPLY = (
    b'{"id":"chatcmpl-0","object":"chat.completion","created":0,"model":"tiny","choices":[{"index":0,'
    b'"message":{"role":"assistant","content":"word"},"finish_reason":"stop"}],"received":%d}'
)
_HEAD = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"


class _Connection(asyncio.Protocol):
    """HTTP/1.1, one request at a time, bodies with their length. What arrives is kept as it came, not joined."""

    def __init__(self, server: StandIn) -> None:
        self._server = server
        self._transport: asyncio.Transport
        self._head = bytearray()
        self._pieces: list[bytes] | None = None
        self._missing = 0
        self._line = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass

    def data_received(self, data: bytes) -> None:
        if self._pieces is None:
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return
            self._line = bytes(self._head[:end])
            data = bytes(self._head[end + 4 :])
            self._head.clear()
            self._missing = int(_header(self._line, b"content-length") or 0)
            self._pieces = []
        if data:
            self._pieces.append(data)
            self._missing -= len(data)
        if self._missing <= 0:
            pieces, self._pieces = self._pieces, None
            self._transport.writelines(self._server.answer(self._line, pieces))


class StandIn:
    """Listens on a free port of the loopback: `start`, then `url`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._last: list[bytes] = []
        self.url = ""

    async def start(self) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=128)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        return server

    def answer(self, head: bytes, pieces: list[bytes]) -> list[bytes]:
        """A reply in pieces. ``pieces``: the body."""
        method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        agent = (_header(head, b"user-agent") or b"").decode("latin-1")
        if method == "POST" and target == CHAT and agent != PROBE_AGENT:
            self._last = pieces
            body = REPLY % sum(map(len, pieces))
        elif target == LAST:
            return [_HEAD % (200, sum(map(len, self._last))), *self._last]
        else:
            status, _, (body, *_) = self._engine.answer(method, target, {"user-agent": agent}, b"".join(pieces))
            return [_HEAD % (status, len(body)) + body]
        return [_HEAD % (200, len(body)) + body]


def _header(head: bytes, name: bytes) -> bytes | None:
    for line in head.split(b"\r\n")[1:]:
        key, _, value = line.partition(b":")
        if key.lower() == name:
            return value.strip()
    return None


async def _serve(tokenizer: Path) -> None:
    standin = StandIn(Engine(reference_ids(tokenizer), models=(MODEL,)))
    server = await standin.start()
    async with server:
        print(standin.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


def main() -> None:
    import uvloop

    uvloop.run(_serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
