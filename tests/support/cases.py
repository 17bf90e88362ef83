"""Plays the given HTTP cases (data: cases/cases.jsonl, kinds in its README) through a real proxy on a real socket."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import pytest
import zstandard

from tests.support.fake_upstream import FakeUpstream
from tests.support.proxy import Running

CHAT = "/v1/chat/completions"

PLAYED: set[str] = set()
"""Cases that a test of the modules imported so far plays alone."""


def plays(name: str) -> pytest.MarkDecorator:
    """Marks a test that plays this case, which it gets as ``case``."""
    PLAYED.add(name)
    return pytest.mark.parametrize("case", [name], indirect=True)


def expand(value: Any, number: int = 0) -> Any:
    """``$repeat``, ``$concat`` and ``$i`` replaced."""
    if isinstance(value, dict):
        if "$repeat" in value:
            text, times = value["$repeat"]
            return text * times
        if "$concat" in value:
            return "".join(expand(part, number) for part in value["$concat"])
        return {key: expand(item, number) for key, item in value.items()}
    if isinstance(value, list):
        return [expand(item, number) for item in value]
    return value.replace("$i", str(number)) if isinstance(value, str) else value


@dataclass
class Reply:
    """What the client got; status None when it left or was cut before a status came."""

    status: int | None
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    interim: bool = False
    """Whether "100 Continue" came first."""
    closed: bool = False


@dataclass
class Outcome:
    """Everything that a case's ``assert`` block may ask about."""

    up: FakeUpstream
    proxy: Running
    bodies: list[bytes] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    sessions_before: int = 0
    left_at: list[float] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    """Body bytes that the scripted upstream sent, by request."""

    @property
    def log(self) -> list[dict[str, Any]]:
        return self.proxy.log


class Player:
    """Sends a case's requests and collects the outcome."""

    def __init__(self, up: FakeUpstream, proxy: Running, client: aiohttp.ClientSession) -> None:
        self.up, self.proxy, self.client = up, proxy, client
        self.outcome = Outcome(up, proxy, sessions_before=len(proxy.core.store))

    async def post(
        self, raw: bytes, path: str = CHAT, headers: dict[str, str] | None = None, leave_after_s: float | None = None
    ) -> None:
        """One request to its end, or until the client leaves."""
        before = len(self.proxy.log)
        self.outcome.bodies.append(raw)
        reply = Reply(None)
        self.outcome.replies.append(reply)

        async def ask() -> None:
            async with self.client.post(self.proxy.url + path, data=raw, headers=headers) as answer:
                reply.status, reply.headers = answer.status, dict(answer.headers)
                async for piece in answer.content.iter_any():
                    reply.body += piece

        task = asyncio.create_task(ask())
        if leave_after_s is not None:
            await asyncio.sleep(leave_after_s)
            self.outcome.left_at.append(asyncio.get_running_loop().time())
            task.cancel()
        result = (await asyncio.gather(task, return_exceptions=True))[0]
        reply.closed = isinstance(result, BaseException)
        await self.proxy.logged(before + 1)
        self.outcome.sent.append(self.up.sent)

    async def bodies(self, bodies: list[Any]) -> None:
        """Kinds ``chat``, ``chat_each`` and ``turns``."""
        for number, body in enumerate(bodies):
            await self.post(json.dumps(expand(body, number), ensure_ascii=False).encode())

    async def sequence(self, requests: list[dict[str, Any]]) -> None:
        """Kind ``sequence``: ``auth`` names a tenant whose key is ``key-of-`` it."""
        for number, request in enumerate(requests):
            headers = dict(request.get("headers", {}))
            if "auth" in request:
                headers["Authorization"] = f"Bearer key-of-{request['auth']}"
            raw = json.dumps(expand(request["body"], number)).encode()
            await self.post(raw, request.get("path", CHAT), headers)

    async def upstream(self, case: dict[str, Any], variant: Any, scale: float) -> None:
        """Kind ``upstream``, one variant."""
        self.up.time_scale = scale
        script = list(case.get("script", []))
        request = dict(case["request"])
        if isinstance(variant, dict):
            script = variant["script"]
        elif variant == "after_3_chunks":
            script = [script[-1]] * 3 + script
        elif variant == "non_stream":
            request["stream"] = False
        self.up.scripts.append(script)
        leave = case.get("client", {}).get("disconnect_after_ms")
        await self.post(json.dumps(request).encode(), leave_after_s=None if leave is None else leave / 1000)

    async def http_each(self, request: dict[str, Any]) -> None:
        """Kind ``http_each``: HTTP traits, so byte by byte on a socket of its own."""
        body = expand(request.get("body", {}))
        raw = json.dumps(body).encode()
        if "body_repeat" in request:
            unit, times = request["body_repeat"]
            raw = (unit * times).encode()
        encoders: dict[str, Callable[[bytes], bytes]] = {
            "gzip": gzip.compress,
            "zstd": zstandard.ZstdCompressor().compress,
        }
        headers = {"Host": "x", "Content-Type": "application/json", **request.get("headers", {})}
        if "encode" in request:
            headers["Content-Encoding"] = request["encode"]
            if not request.get("send_plain") and request["encode"] in encoders:
                raw = encoders[request["encode"]](raw)
        if request.get("chunked"):
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = headers.get("Content-Length") if request.get("no_body") else str(len(raw))
        self.outcome.bodies.append(raw)
        self.outcome.replies.append(await self._raw(headers, b"" if request.get("no_body") else raw, request))

    async def _raw(self, headers: dict[str, Any], raw: bytes, request: dict[str, Any]) -> Reply:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.proxy.port)
        reply = Reply(None)
        try:
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            writer.write(f"POST {CHAT} HTTP/1.1\r\n{lines}\r\n".encode())
            waits = str(headers.get("Expect", "")).lower() == "100-continue"
            head = await self._head(reader) if waits else b""
            if head.startswith(b"HTTP/1.1 100"):
                reply.interim, head = True, b""
            if not head:
                sending = asyncio.create_task(self._send(writer, raw, bool(request.get("chunked"))))
                head = await self._head(reader)
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            reply.status = int(head.split()[1])
            fields = (line.partition(":") for line in head.decode().split("\r\n")[1:] if line)
            reply.headers = {name: value.strip() for name, _, value in fields}
            async with asyncio.timeout(5):
                reply.body = await reader.readexactly(int(reply.headers["Content-Length"]))
                reply.closed = waits and not reply.interim and await reader.read() == b""
        finally:
            writer.close()
        return reply

    @staticmethod
    async def _head(reader: asyncio.StreamReader) -> bytes:
        async with asyncio.timeout(10):
            return await reader.readuntil(b"\r\n\r\n")

    @staticmethod
    async def _send(writer: asyncio.StreamWriter, raw: bytes, chunked: bool) -> None:
        for start in range(0, len(raw), 1 << 20):
            piece = raw[start : start + (1 << 20)]
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            await writer.drain()
        if chunked:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
