"""An engine for load tests: it counts the IDs that it receives, says so, and does nothing else.

It speaks as much of vLLM's contract as TokTier asks for (`/version`, `/v1/models`, `/tokenize`, chat completions, plain
and streamed), on a bare socket, and judges nothing: `Engine.received` hands what arrived to whoever wants to look.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import orjson
from tokenizers import Tokenizer

from toktier import files
from toktier.engines.reference import ReferenceEngine
from toktier.errors import TokTierError
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.template import ChatTemplate
from toktier.tokenizer import EMBEDDED

VERSION = "0.32.0"
PROBE_AGENT = "toktier-probe"
"""User-Agent of the proxy's own questions."""
CHAT = "/v1/chat/completions"
PIECES = 4
"""Events of a streamed reply before the one with the usage."""
_JSON, _EVENTS = "application/json", "text/event-stream"

Tokenize = Callable[[Mapping[str, Any]], Sequence[int]]


def reference_ids(
    source: Path = EMBEDDED,
    chat_template: Path | None = None,
    encode: Callable[[str], Sequence[int]] | None = None,
) -> Tokenize:
    """What the engine itself would come to: the IDs of a chat body, from a tokenizer folder by the reference alone.

    ``chat_template``: a file in place of the model's own. ``encode``: another encoder in the reference's place.
    """
    read = files.read(source)
    own = _by_reference(read.tokenizer) if encode is None else encode
    template = ChatTemplate.load((read.small, read.json("tokenizer_config.json")), override=chat_template)
    assert template is not None
    profile, settings = VllmProfile(), ProfileSettings(engine_version=VERSION)

    def ids(body: Mapping[str, Any]) -> Sequence[int]:
        return own(template.render(profile.normalise(body, template, settings)))

    return ids


def _by_reference(tokenizer_json: bytes) -> Callable[[str], Sequence[int]]:
    engine = ReferenceEngine(Tokenizer.from_str(tokenizer_json.decode()))

    def encode(text: str) -> Sequence[int]:
        found: list[int] = engine.encode(text).tolist()
        return found

    return encode


@dataclass(frozen=True)
class Received:
    """One chat request as it arrived. ``ids`` is None where it had none."""

    request_id: str | None
    body: Mapping[str, Any]
    ids: Sequence[int] | None


class Engine:
    """Serves ``models`` on a free port of the loopback. ``async with``, or `start` and `stop`, again and again.

    ``tokenize`` answers the probe and `/tokenize`; a client's text request is answered with a count of 0.
    ``delay_s`` is waited before a reply and before each event of a stream.
    """

    def __init__(
        self,
        tokenize: Tokenize,
        models: Sequence[str] = ("m",),
        *,
        delay_s: float = 0.0,
        received: Callable[[Received], None] | None = None,
    ) -> None:
        self.tokenize = tokenize
        self.models = tuple(models)
        self.delay_s = delay_s
        self.received = received
        self.requests = 0
        """Chat requests that were no probes."""
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._port = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen: at first on a free port, later on the same one again."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self._port, backlog=1024)
        self._port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Down, as by a crash: nothing is accepted, and every connection breaks where it is."""
        if self._server is not None:
            self._server.close()
            self._server = None
        tasks = [connection.abort() for connection in list(self.connections)]
        await asyncio.gather(*(task for task in tasks if task is not None), return_exceptions=True)

    def answer(self, method: str, path: str, headers: Mapping[str, str], raw: bytes) -> tuple[int, str, list[bytes]]:
        """Status, content type, and the body in pieces (several: a stream)."""
        if path == "/version":
            return _plain({"version": VERSION})
        if path == "/v1/models":
            return _plain({"object": "list", "data": [{"id": m, "object": "model"} for m in self.models]})
        if method != "POST" or path not in ("/tokenize", CHAT):
            return _plain({"error": {"message": "no such route", "code": 404}}, 404)
        try:
            return self._model(path, headers, orjson.loads(raw))
        except (TokTierError, ValueError, TypeError, AttributeError, KeyError) as error:  # a body of no known shape
            return _plain({"error": {"message": type(error).__name__, "code": 400}}, 400)

    def _model(self, path: str, headers: Mapping[str, str], body: Mapping[str, Any]) -> tuple[int, str, list[bytes]]:
        if path == "/tokenize":
            return _plain({"tokens": list(self.tokenize(body))})
        transfer = body.get("kv_transfer_params")
        ids = transfer.get("prompt_token_ids") if isinstance(transfer, dict) else None
        probe = headers.get("user-agent") == PROBE_AGENT
        if not probe:
            self.requests += 1
            if self.received is not None:
                self.received(Received(headers.get("x-request-id"), body, ids))
        count = len(ids) if ids is not None else len(self.tokenize(body)) if probe else 0
        return _reply(body, count)


class _Connection(asyncio.Protocol):
    """HTTP/1.1 as the proxy speaks it: one request at a time, bodies with their length."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._transport: asyncio.Transport
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._engine.connections.add(self)

    def connection_lost(self, _exc: Exception | None) -> None:
        self._engine.connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def abort(self) -> asyncio.Task[None] | None:
        """Break the connection; returns what was being written, to wait for."""
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._task is None:
            self._next()

    def _next(self) -> None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        stop = end + 4 + int(headers.get("content-length", 0))
        if len(self._buffer) < stop:
            return
        raw = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        method, target, _ = first.split(" ")
        self._task = asyncio.get_running_loop().create_task(
            self._write(method, self._engine.answer(method, target.partition("?")[0], headers, raw))
        )
        self._task.add_done_callback(self._written)

    async def _write(self, method: str, reply: tuple[int, str, list[bytes]]) -> None:
        status, content_type, pieces = reply
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {content_type}\r\n"
        if content_type != _EVENTS:
            await asyncio.sleep(self._engine.delay_s)
            body = b"" if method == "HEAD" else pieces[0]
            self._transport.write(f"{head}Content-Length: {len(pieces[0])}\r\n\r\n".encode() + body)
            return
        self._transport.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        for piece in pieces:
            await asyncio.sleep(self._engine.delay_s)
            await self._writable.wait()
            self._transport.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self._transport.write(b"0\r\n\r\n")

    def _written(self, task: asyncio.Task[None]) -> None:
        self._task = None
        with contextlib.suppress(asyncio.CancelledError):
            task.result()
            if not self._transport.is_closing():
                self._next()


def _plain(value: Any, status: int = 200) -> tuple[int, str, list[bytes]]:
    return status, _JSON, [orjson.dumps(value)]


def _reply(body: Mapping[str, Any], count: int) -> tuple[int, str, list[bytes]]:
    usage = {"prompt_tokens": count, "completion_tokens": PIECES, "total_tokens": count + PIECES}
    common = {"id": "chatcmpl-0", "created": 0, "model": body.get("model")}
    if not body.get("stream"):
        message = {"role": "assistant", "content": "word " * PIECES}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return _plain({**common, "object": "chat.completion", "choices": [choice], "usage": usage})
    common["object"] = "chat.completion.chunk"
    pieces = []
    for number in range(PIECES):
        finish = "stop" if number == PIECES - 1 else None
        choice = {"index": 0, "delta": {"content": "word "}, "finish_reason": finish}
        pieces.append({**common, "choices": [choice]})
    options = body.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        pieces.append({**common, "choices": [], "usage": usage})
    events = [b"data: " + orjson.dumps(piece) + b"\n\n" for piece in pieces]
    return 200, _EVENTS, [*events, b"data: [DONE]\n\n"]
