"""A scripted inference engine on a raw socket: it sends exactly the bytes that a test wants, and keeps what it got.

Probes are answered by `FakeUpstream.engine`, a small honest engine that counts tokens with a given function. A chat
request takes the next script of `FakeUpstream.scripts` if there is one. Script steps are those of the given cases:
``send``, ``send_hex``, ``send_gzip``, ``send_repeat`` [head, unit, n, tail], ``repeat``, ``sleep_ms``, ``close``,
``reset``; and ``head`` (status and headers other than the usual ones), ``raw`` (bytes without framing) and ``wait``
(until an `asyncio.Event` is set).
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Step = dict[str, Any]


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n.lower() == name.lower()), None)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class FakeUpstream:
    """Use as an async context manager."""

    tokenize: Callable[[dict[str, Any]], list[int]] = lambda body: [len(json.dumps(body["messages"])) % 90] * 5
    honours_ids: bool = True
    has_tokenize: bool = True
    version: str = "0.32.0"
    model: str = "m"
    id_path: tuple[str, ...] = ("kv_transfer_params", "prompt_token_ids")
    time_scale: float = 1.0
    framing: str = "chunked"  # or "close"
    idle_close_s: float | None = None
    server: str | None = None
    """Header ``Server`` of its replies."""
    fingerprint: str | None = None
    """``system_fingerprint`` of its replies."""
    max_model_len: int = 40960
    reply_text: str = "ok"
    strict_names: bool = False
    """Whether a chat request for another model than `model` gets 404, as vLLM does it."""
    seen: list[Seen] = field(default_factory=list)
    scripts: deque[list[Step]] = field(default_factory=deque)
    ended: list[float] = field(default_factory=list)
    """Loop times at which the proxy closed a connection while a script was under way."""
    sent: bytes = b""
    """Body bytes of the last script."""
    script_started: asyncio.Event = field(default_factory=asyncio.Event)
    written: int = 0
    """Body bytes of scripts that the socket took."""

    async def __aenter__(self) -> FakeUpstream:
        self._connections = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        await self.listen(0)
        return self

    async def listen(self, port: int) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Down: no connection is accepted or kept."""
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def chats(self) -> list[Seen]:
        """Chat requests that were no probes."""
        return [s for s in self.seen if s.target.startswith("/v1/chat/completions") and not self._probe(s)]

    @staticmethod
    def _probe(seen: Seen) -> bool:
        return seen.header("User-Agent") == "toktier-probe"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self._connections += 1
        number = self._connections
        try:
            while True:
                async with asyncio.timeout(self.idle_close_s):
                    head = await reader.readuntil(b"\r\n\r\n")
                if not await self._request(head, reader, writer, number):
                    return
        except (TimeoutError, asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            self._writers.discard(writer)
            with contextlib.suppress(Exception):
                writer.close()

    async def _request(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> bool:
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        method, target, _ = first.split(" ")
        headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        seen = Seen(method, target, headers, b"", number)
        length = int(seen.header("Content-Length") or 0)
        assert seen.header("Transfer-Encoding") is None, "the proxy sends bodies with their length"
        seen.body = await reader.readexactly(length)
        self.seen.append(seen)
        chat = target.partition("?")[0] == "/v1/chat/completions" and not self._probe(seen)
        if chat and self.scripts:
            return await self._play(self.scripts.popleft(), seen, reader, writer)
        status, body, content_type = self.engine(seen)
        fields = {"Content-Type": content_type, "Content-Length": str(len(body))}
        fields |= {"Server": self.server} if self.server else {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)
        await writer.drain()
        return True

    def engine(self, seen: Seen) -> tuple[int, bytes, str]:
        """An honest engine's answer: status, body, content type."""
        path = seen.target.partition("?")[0]
        if path == "/version":
            value: Any = {"version": self.version}
        elif path.startswith("/v1/models"):
            entry = {"id": self.model, "object": "model", "max_model_len": self.max_model_len}
            value = {"object": "list", "data": [entry]}
        elif path == "/tokenize" and not self.has_tokenize:
            return 404, b"{}", "application/json"
        elif path == "/tokenize" and "messages" in seen.json:
            value = {"tokens": self.tokenize(seen.json)}
        elif path == "/v1/chat/completions":
            body = seen.json
            if body.get("model", self.model) != self.model and self.strict_names:
                return (
                    404,
                    b'{"error":{"message":"no such model","type":"NotFoundError","code":404}}',
                    "application/json",
                )
            marks = {"model": self.model} | ({"system_fingerprint": self.fingerprint} if self.fingerprint else {})
            ids = body
            for name in self.id_path:
                ids = ids.get(name) if isinstance(ids, dict) else None
            try:
                count = len(ids) if ids is not None and self.honours_ids else len(self.tokenize(body))
            except Exception:
                return 400, b'{"error":{"message":"bad messages","type":"BadRequestError"}}', "application/json"
            choice = {"index": 0, "message": {"role": "assistant", "content": self.reply_text}, "finish_reason": "stop"}
            usage = {"prompt_tokens": count, "completion_tokens": 1, "total_tokens": count + 1}
            if body.get("stream"):
                delta = marks | {
                    "choices": [{"index": 0, "delta": {"content": self.reply_text}, "finish_reason": "stop"}]
                }
                events = [delta, marks | {"choices": [], "usage": usage}]
                text = "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n"
                return 200, text.encode(), "text/event-stream"
            value = {"id": "x", "object": "chat.completion", **marks, "choices": [choice], "usage": usage}
        else:
            value = {"path": path}
        return 200, json.dumps(value).encode(), "application/json"

    async def _play(
        self, script: list[Step], seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        """Runs a script; watches meanwhile whether the proxy closes. False when the connection is over."""
        self.sent = b""
        self.script_started.set()
        play = asyncio.create_task(self._steps(script, seen, writer))
        watch = asyncio.create_task(reader.read(1))
        try:
            await asyncio.wait({play, watch}, return_when=asyncio.FIRST_COMPLETED)
            if not play.done() or isinstance(play.exception(), ConnectionError):
                self.ended.append(asyncio.get_running_loop().time())
                return False
            return play.result()
        finally:
            for task in (play, watch):
                task.cancel()
            await asyncio.gather(play, watch, return_exceptions=True)

    async def _steps(self, script: list[Step], seen: Seen, writer: asyncio.StreamWriter) -> bool:
        stream = bool(seen.json.get("stream"))
        started = False

        async def send(data: bytes, status: str = "200 OK", headers: dict[str, str] | None = None) -> None:
            nonlocal started
            if not started:
                started = True
                fields = {"Content-Type": "text/event-stream" if stream else "application/json", **(headers or {})}
                fields |= {"Transfer-Encoding": "chunked"} if self.framing == "chunked" else {"Connection": "close"}
                lines = "".join(f"{n}: {v}\r\n" for n, v in fields.items())
                writer.write(f"HTTP/1.1 {status}\r\n{lines}\r\n".encode())
            if data:
                self.sent += data
                framed = b"%x\r\n%b\r\n" % (len(data), data) if self.framing == "chunked" else data
                writer.write(framed)
            await writer.drain()
            self.written += len(data)

        async def run(steps: list[Step]) -> bool | None:
            for step in steps:
                if "sleep_ms" in step and "send" not in step:
                    await asyncio.sleep(step["sleep_ms"] / 1000 * self.time_scale)
                elif "wait" in step:
                    await step["wait"].wait()
                elif "repeat" in step:
                    inner = step["repeat"]
                    each = [{k: v} for k, v in inner.items() if k != "times"]
                    for _ in range(inner["times"]):
                        if (over := await run(each)) is not None:
                            return over
                elif "head" in step:
                    await send(b"", step["head"].get("status", "200 OK"), step["head"].get("headers"))
                elif "send" in step:
                    await send(step["send"].encode())
                elif "send_hex" in step:
                    await send(bytes.fromhex(step["send_hex"]))
                elif "send_gzip" in step:
                    await send(gzip.compress(step["send_gzip"].encode()), headers={"Content-Encoding": "gzip"})
                elif "send_repeat" in step:
                    head, unit, times, tail = step["send_repeat"]
                    await send((head + unit * times + tail).encode())
                elif "raw" in step:
                    writer.write(step["raw"])
                    await writer.drain()
                elif "close" in step:
                    return False
                elif "reset" in step:
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    return False
                else:
                    raise AssertionError(f"unknown step {step}")
            return None

        over = await run(script)
        if over is not None:
            return over
        if self.framing == "chunked" and started:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            return True
        return False
