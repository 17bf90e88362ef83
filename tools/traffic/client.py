"""A client that sends what sessions say, many of them at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import aiohttp
import orjson

from tools.traces import Step
from tools.traffic.sessions import Session

TIMEOUT_S = 60.0
_USAGE = b'"prompt_tokens":'


@dataclass(frozen=True)
class Reply:
    """What came back. ``status`` is None where nothing or not all of it did; ``error`` then says why."""

    request_id: str
    status: int | None
    prompt_tokens: int | None
    seconds: float
    error: str | None = None


class Client:
    """Sends chat requests to the proxy at ``url``. ``async with``."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._url = url + "/v1/chat/completions"
        self._key = key
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)

    async def __aenter__(self) -> Self:
        headers = {"Content-Type": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        self._http = aiohttp.ClientSession(
            headers=headers, timeout=self._timeout, connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.close()

    async def send(
        self, body: dict[str, Any], request_id: str, *, session: str | None = None, leave: bool = False
    ) -> Reply:
        """Send ``body`` and read the reply; with ``leave``, go away after the first bytes of it.

        ``session`` goes into ``X-Session-Id``. Never raises for what the network or the proxy does.
        """
        headers = {"X-Request-Id": request_id} | ({} if session is None else {"X-Session-Id": session})
        start = time.perf_counter()
        status: int | None = None
        try:
            async with self._http.post(self._url, data=orjson.dumps(body), headers=headers) as response:
                if leave:
                    await response.content.readany()
                    response.close()
                    return Reply(request_id, response.status, None, time.perf_counter() - start, "left")
                raw = await response.read()
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Reply(request_id, None, None, time.perf_counter() - start, type(error).__name__)
        return Reply(request_id, status, _prompt_tokens(raw), time.perf_counter() - start)


def _prompt_tokens(raw: bytes) -> int | None:
    at = raw.rfind(_USAGE)
    if at < 0:
        return None
    digits = raw[at + len(_USAGE) :].lstrip()
    size = next((k for k, byte in enumerate(digits) if not 48 <= byte <= 57), len(digits))
    return int(digits[:size]) if size else None


Send = Callable[[dict[str, Any], str], Awaitable[Any]]


async def drive(
    sessions: Sequence[Session],
    send: Send,
    *,
    requests: int,
    concurrent: int = 8,
    on_step: Callable[[str, Session, Step], None] | None = None,
    prefix: str = "r",
) -> int:
    """Send ``requests`` requests of the sessions, each session's one after the other, ``concurrent`` sessions at once.

    Request ids are ``prefix``-NUMBER, in the order in which they are sent. ``on_step`` sees each before it is sent.
    Sessions take turns: each sends one request and stands in line again. Returns how many were sent.
    """
    line: asyncio.Queue[Session] = asyncio.Queue()
    for session in sessions:
        line.put_nowait(session)
    sent = 0

    async def work() -> None:
        nonlocal sent
        while sent < requests:
            number, sent = sent, sent + 1
            session = await line.get()
            step = session.step()
            request_id = f"{prefix}-{number}"
            if on_step is not None:
                on_step(request_id, session, step)
            await send(step.body, request_id)
            line.put_nowait(session)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrent, len(sessions))):
            group.create_task(work())
    return sent
