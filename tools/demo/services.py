"""The proxy as a process of its own, as a user starts it, and what its log says about each request."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Self

import aiohttp

LOG_LINE_LIMIT = 1 << 20
START_S = 300.0
"""Longest start: the first one derives the tokenizer's certificate."""


class ProxyFailed(RuntimeError):
    """The proxy ended, or never became ready; the text has the end of what it wrote."""


class Proxy:
    """``toktier serve`` on a free port of the loopback. ``async with``; it is ended, by its id, when the block ends."""

    def __init__(self, upstream: str, model: str) -> None:
        self._arguments = ("--upstream", upstream, "--model", model, "--tokenizer", "embedded", "--port", "0")
        self._records: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._news = asyncio.Condition()
        self._listening: dict[str, Any] | None = None
        self._process: asyncio.subprocess.Process
        self._reader: asyncio.Task[None]

    async def __aenter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="toktier-demo-")
        self._said = Path(self._folder.name, "stderr")
        # A user's own TOKTIER_* settings are for their proxy; this one keeps its key in a folder of its own.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOKTIER_")}
        environment["TOKTIER_AUTH__STATE_DIR"] = self._folder.name
        with self._said.open("wb") as stderr:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "proxy.cli",
                "serve",
                *self._arguments,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=environment,
                limit=LOG_LINE_LIMIT,
            )
        self._reader = asyncio.create_task(self._read())
        try:
            await self._ready()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), 10)
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        await asyncio.gather(self._reader, return_exceptions=True)
        self._folder.cleanup()

    @property
    def url(self) -> str:
        """Its address, without a path."""
        assert self._listening is not None
        return str(self._listening["urls"][0])

    async def records(self, request_id: str, count: int = 1, timeout_s: float = 20.0) -> list[dict[str, Any]]:
        """The log's first ``count`` lines about a request, one for each attempt. Raises ``TimeoutError``."""
        async with asyncio.timeout(timeout_s), self._news:
            await self._news.wait_for(lambda: len(self._records[request_id]) >= count)
        return self._records[request_id]

    async def _read(self) -> None:
        assert self._process.stdout is not None
        async for raw in self._process.stdout:
            line = json.loads(raw)
            async with self._news:
                if line.get("event") == "listening":
                    self._listening = line
                elif line.get("event") == "request":
                    self._records[line["request_id"]].append(line)
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    async def _ready(self) -> None:
        """Wait until it serves with repair: `/ready` answers 200 and names nothing as degraded."""
        deadline = time.monotonic() + START_S
        async with self._news:
            await asyncio.wait_for(self._news.wait_for(lambda: self._listening or self._reader.done()), START_S)
        answer: Any = None
        async with aiohttp.ClientSession() as http:
            while time.monotonic() < deadline and self._process.returncode is None and self._listening:
                try:
                    async with http.get(f"{self.url}/ready", timeout=aiohttp.ClientTimeout(5)) as response:
                        answer = await response.json()
                        if response.status == 200 and not answer.get("degraded"):
                            return
                except (aiohttp.ClientError, TimeoutError):
                    pass
                await asyncio.sleep(0.1)
        said = self._said.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise ProxyFailed(f"the proxy did not become ready; it said: {said or answer}")
