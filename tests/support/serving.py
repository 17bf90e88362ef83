"""`toktier serve` as a process, and an upstream for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.conftest import ROOT

CHAT = "/v1/chat/completions"


class Engine:
    """An upstream whose streamed reply ends when the test says so."""

    def __init__(self) -> None:
        self.finish = asyncio.Event()
        self.streaming = asyncio.Event()
        self.authorizations: list[str | None] = []

    async def chat(self, request: web.Request) -> web.StreamResponse:
        self.authorizations.append(request.headers.get("Authorization"))
        if not (await request.json()).get("stream"):
            return web.json_response({"choices": [], "usage": {"prompt_tokens": 1}})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b'data: {"n":1}\n\n')
        self.streaming.set()
        await self.finish.wait()
        await response.write(b"data: [DONE]\n\n")
        return response

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m"}]})


@contextlib.asynccontextmanager
async def answering() -> AsyncIterator[tuple[Engine, str]]:
    """An engine that answers, and its URL."""
    it = Engine()
    served = web.Application()
    served.router.add_post(CHAT, it.chat)
    served.router.add_get("/v1/models", it.models)
    async with TestServer(served) as server:
        yield it, str(server.make_url("/")).rstrip("/")


class Process:
    """A process with a configuration in ``folder``, where its log and its standard error are too."""

    def __init__(self, folder: Path, config: str, **variables: str) -> None:
        self.config, self.log, self.errors = folder / "toktier.toml", folder / "toktier.log", folder / "stderr"
        self.config.write_text(config, "utf-8")
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOKTIER_")}
        env |= {"TOKTIER_AUTH__STATE_DIR": str(folder / "state"), "TOKTIER_LOG__PATH": str(self.log), **variables}
        with self.errors.open("wb") as errors:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "proxy.cli", "serve", "--config", str(self.config), "--port", "0"],
                cwd=ROOT, env=env, stdout=subprocess.DEVNULL, stderr=errors,
            )  # fmt: skip

    def signal(self, number: signal.Signals) -> None:
        self.popen.send_signal(number)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    async def event(self, name: str, count: int = 1) -> dict[str, Any]:
        """The count-th line of that event, once it is there."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [line for line in self.lines() if line["event"] == name]
            return len(found) >= count

        await until(there, f"event {name}: {self.errors.read_text()}")
        return found[count - 1]

    async def url(self) -> str:
        await until(lambda: "listens on" in self.errors.read_text(), self.errors.read_text)
        return self.errors.read_text().strip().rpartition(" ")[2]

    async def ended(self) -> int:
        return await asyncio.wait_for(asyncio.to_thread(self.popen.wait), 30)


async def until(condition: Callable[[], bool], what: object, seconds: float = 40.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what() if callable(what) else what
        await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def serving(folder: Path, config: str, **variables: str) -> AsyncIterator[Process]:
    process = Process(folder, config, **variables)
    try:
        yield process
    finally:
        if process.popen.poll() is None:
            process.popen.kill()
        process.popen.wait()


def one_model(url: str) -> str:
    return f'[upstreams.u]\nurl = "{url}"\n[models.m]\nupstream = "u"\n'


def body(**more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "CANARY-PROMPT"}], **more}


def certificate(folder: Path, name: str) -> None:
    """Writes cert.pem and key.pem."""
    made = subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN={name} -addext subjectAltName=IP:127.0.0.1 "
        f"-keyout {folder / 'key.pem'} -out {folder / 'cert.pem'}".split(),
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no openssl command")
