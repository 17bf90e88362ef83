"""The clients of a soak: sessions that go on and on, some that leave, and some that send rubbish."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from urllib.parse import urlsplit

import aiohttp
import orjson
from yarl import URL

from tools.traffic import Client, Session

CHAT = "/v1/chat/completions"
LEAVES_IN_REQUEST = 0.02
LEAVES_IN_REPLY = 0.04
RUBBISH = 0.03
"""How often a session's turn comes with each of these."""
LARGEST_BODY = 1 << 20
"""Of the proxy's configuration: larger ones are refused."""


@dataclass(frozen=True)
class Bad:
    """A request that must be refused, with the statuses that are right for it. ``body`` may be a callable's result."""

    name: str
    body: bytes
    statuses: tuple[int, ...]
    path: str = CHAT
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def bad_requests(rng: Random) -> list[Bad]:
    """One of each kind."""
    chat = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    plain = json.dumps(chat).encode()
    noise = rng.randbytes(rng.randint(1, 400))
    return [
        Bad("broken_json", plain[: rng.randrange(1, len(plain))], (400,)),
        Bad("noise", noise, (400,)),
        Bad("no_object", b"[1, 2, 3]", (400,)),
        Bad("deep", b'{"model":"m","messages":' + b"[" * 50_000 + b"]" * 50_000 + b"}", (400,)),
        Bad("not_utf8", plain.replace(b"hi", b"\xff\xfe"), (400,)),
        Bad("surrogate", plain.replace(b"hi", b"\\ud800"), (400,)),
        Bad("unknown_model", json.dumps(chat | {"model": "other"}).encode(), (404,)),
        Bad("ids", json.dumps(chat | {"kv_transfer_params": {"prompt_token_ids": [1]}}).encode(), (400,)),
        Bad("too_large", b" " * (LARGEST_BODY + 1), (413,)),
        Bad("bomb", gzip.compress(b" " * (LARGEST_BODY * 16)), (413,), headers={"Content-Encoding": "gzip"}),
        Bad("broken_gzip", b"\x1f\x8b" + noise, (400,), headers={"Content-Encoding": "gzip"}),
        Bad("coding", plain, (415,), headers={"Content-Encoding": "rot13"}),
        Bad("expectation", plain, (417,), headers={"Expect": "miracle"}),
        Bad("route", plain, (404,), path="/v1/chat/../admin"),
        Bad("method", b"", (405,), method="DELETE"),
        Bad("key", plain, (401,), headers={"Authorization": "Bearer nobody"}),
    ]


@dataclass
class Sent:
    """What the clients did, for the verdict afterwards."""

    started: dict[str, str] = field(default_factory=dict)
    """Request id -> what it was: a step's kind, ``leaves_in_request``, ``leaves_in_reply`` or a `Bad`'s name."""
    statuses: Counter[tuple[str, int | str | None]] = field(default_factory=Counter)
    """By what it was, and the reply's status or why there was none."""
    wrong: list[str] = field(default_factory=list)
    """Refusals with another status than they must have."""
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    """Request id -> the count that the reply told its client."""


class Clients:
    """``sessions`` tasks, each a session of its own. ``gate`` is waited for before each request."""

    def __init__(
        self, url: str, keys: list[str], seed: int, gate: Callable[[], Awaitable[None]], *, pause_s: float
    ) -> None:
        self.sent = Sent()
        self._url = url
        self._keys = keys
        self._seed = seed
        self._gate = gate
        self._pause_s = pause_s
        self._number = 0
        parts = urlsplit(url)
        self._address = (parts.hostname or "", parts.port or 0)

    async def run(self, sessions: int, seconds: float) -> None:
        """Returns when the time is over and every request has ended."""
        over = asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, over.set)
        async with contextlib.AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(Client(self._url, key=key)) for key in self._keys]
            http = await stack.enter_async_context(aiohttp.ClientSession())
            async with asyncio.TaskGroup() as group:
                for number in range(sessions):
                    client = clients[number % len(clients)]
                    key = self._keys[number % len(clients)]
                    group.create_task(self._live(number, client, key, http, over))

    async def _live(
        self, number: int, client: Client, key: str, http: aiohttp.ClientSession, over: asyncio.Event
    ) -> None:
        rng = Random(f"soak/{self._seed}/{number}")
        chars = rng.choice((3_000, 10_000, 25_000, 50_000))
        session = Session(
            f"{self._seed}/{number}",
            chars=chars,
            start_chars=rng.choice((chars // 10, chars // 2)),
            turn_chars=min(chars // 12, 1_500),
            lifetime=rng.randint(10, 60),
        )
        await self._wait(rng.random() * self._pause_s, over)
        while not over.is_set():
            await self._gate()
            if over.is_set():
                return
            kind = rng.random()
            if kind < RUBBISH:
                await self._rubbish(rng, key, http)
            elif kind < RUBBISH + LEAVES_IN_REQUEST:
                await self._half(rng, session, key)
            else:
                leave = kind < RUBBISH + LEAVES_IN_REQUEST + LEAVES_IN_REPLY
                await self._turn(session, client, leave, session.name if rng.random() < 0.5 else None)
            await self._wait(rng.uniform(0.3, 1.7) * self._pause_s, over)

    async def _wait(self, seconds: float, over: asyncio.Event) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await over.wait()

    def _id(self, kind: str) -> str:
        self._number += 1
        name = f"soak-{self._number}"
        self.sent.started[name] = kind
        return name

    async def _turn(self, session: Session, client: Client, leave: bool, hint: str | None) -> None:
        step = session.step()
        kind = "leaves_in_reply" if leave else step.kind
        request_id = self._id(kind)
        reply = await client.send(step.body, request_id, session=hint, leave=leave)
        self.sent.statuses[kind, reply.error or reply.status] += 1
        if reply.status == 200 and reply.prompt_tokens is not None:
            self.sent.prompt_tokens[request_id] = reply.prompt_tokens

    async def _half(self, rng: Random, session: Session, key: str) -> None:
        """Sends a part of the body, and goes."""
        raw = orjson.dumps(session.step().body)
        request_id = self._id("leaves_in_request")
        _, writer = await asyncio.open_connection(*self._address)
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: soak\r\nAuthorization: Bearer {key}\r\nX-Request-Id: {request_id}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(raw)}\r\n\r\n"
        )
        with contextlib.suppress(ConnectionError):
            writer.write(head.encode() + raw[: rng.randrange(len(raw))])
            await writer.drain()
            await asyncio.sleep(rng.choice((0.0, 0.01, 0.2)))
            if rng.random() < 0.5:
                writer.transport.abort()
            writer.close()
            await writer.wait_closed()
        self.sent.statuses["leaves_in_request", None] += 1

    async def _rubbish(self, rng: Random, key: str, http: aiohttp.ClientSession) -> None:
        bad = rng.choice(bad_requests(rng))
        request_id = self._id(bad.name)
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": request_id, **bad.headers}
        url = URL(self._url + bad.path, encoded=True)
        status: int | None = None
        try:
            async with http.request(bad.method, url, data=bad.body or None, headers=headers) as reply:
                await reply.read()
                status = reply.status
        except (aiohttp.ClientError, OSError):
            # A refusal may come, and the connection close, while the body is still being sent.
            if bad.name not in ("too_large", "bomb", "expectation"):
                self.sent.wrong.append(f"{bad.name}: no answer")
        if status is not None and status not in bad.statuses:
            self.sent.wrong.append(f"{bad.name}: {status}")
        self.sent.statuses[bad.name, status] += 1


def summary(statuses: Counter[tuple[str, int | str | None]]) -> dict[str, dict[str, int]]:
    """By kind, then by status."""
    out: dict[str, dict[str, int]] = {}
    for (kind, status), count in sorted(statuses.items(), key=str):
        out.setdefault(kind, {})[str(status) if status is not None else "none"] = count
    return out
