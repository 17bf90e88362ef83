"""The real proxy application on a real socket, in the test's event loop, before a fake upstream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from aiohttp import web

from proxy.app import CORE, Core, create_app
from proxy.config import Settings
from proxy.registry import Loaded, State
from proxy.server import Runner
from tests.support.fake_tier import FakeTier, ids_of
from tests.support.fake_upstream import FakeUpstream


class Running:
    """A started proxy: its address, its parts, and the request lines that it logged."""

    def __init__(self, core: Core, app: web.Application, port: int, lines: list[dict[str, Any]]) -> None:
        self.core, self.app, self.port = core, app, port
        self._lines = lines
        self.url = f"http://127.0.0.1:{port}"

    @property
    def log(self) -> list[dict[str, Any]]:
        """One entry per finished request."""
        return [line for line in self._lines if line["event"] == "request"]

    @property
    def events(self) -> list[dict[str, Any]]:
        """Everything that was logged."""
        return self._lines

    async def settled(self, state: State = State.OK, model: str = "m", within_s: float = 60.0) -> None:
        """Waits until the model is in ``state``."""
        async with asyncio.timeout(within_s):
            while self.core.generation.registry.models[model].state is not state:
                await asyncio.sleep(0.005)

    async def logged(self, count: int, within_s: float = 60.0) -> list[dict[str, Any]]:
        """Waits for that many request lines."""
        async with asyncio.timeout(within_s):
            while len(self.log) < count:
                await asyncio.sleep(0.005)
        return self.log


def settings_for(upstream_url: str, state_dir: Path, **changes: Any) -> Settings:
    """One upstream ``e``, one model ``m``, no checks beside; ``changes`` are merged over that, table by table."""
    tree: dict[str, Any] = {
        "server": {"port": 0},
        "auth": {"state_dir": state_dir},
        "shadow": {"rate": 0, "first": 0, "parity_rate": 0},
        "upstreams": {"e": {"url": upstream_url, "connect_timeout_s": 2}},
        "models": {"m": {"upstream": "e", "tokenizer": "embedded"}},
    }
    for table, value in changes.items():
        if table in ("upstream", "model"):
            tree["upstreams" if table == "upstream" else "models"]["e" if table == "upstream" else "m"] |= value
        elif isinstance(value, dict):
            tree[table] = {**tree.get(table, {}), **value}
        else:
            tree[table] = value
    return Settings.model_validate(tree)


@asynccontextmanager
async def running(
    settings: Settings, load: Callable[..., Loaded] | None = None, *, wait: State | None = State.OK
) -> AsyncIterator[Running]:
    """Serve ``settings`` until the block ends; by default wait until model ``m`` may get IDs."""
    lines: list[dict[str, Any]] = []

    def capture(_: Any, method: str, event: dict[str, Any]) -> Any:
        lines.append({"level": method, **event})
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[capture], cache_logger_on_first_use=False)
    app = create_app(settings, load)
    runner = Runner(app, shutdown_timeout=0.2)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        proxy = Running(app[CORE], app, runner.addresses[0][1], lines)
        if wait is not None:
            await proxy.settled(wait)
        yield proxy
    finally:
        await runner.cleanup()
        structlog.configure(**before)


@dataclass
class Stage:
    """A proxy with a pretended tier, its upstream, and a client."""

    up: FakeUpstream
    tier: FakeTier
    proxy: Running
    client: aiohttp.ClientSession

    async def post(self, body: Any, path: str = "/v1/chat/completions", **more: Any) -> tuple[int, bytes]:
        """POST bytes as they are, or anything else as JSON: status and body."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(self.proxy.url + path, data=data, **more) as reply:
            return reply.status, await reply.read()

    async def holds(self, count: int) -> None:
        """Waits until so many requests are at the tier's gate."""
        async with asyncio.timeout(60):
            while self.tier.held != count:
                await asyncio.sleep(0.005)

    async def error(self, body: Any, path: str = "/v1/chat/completions", **more: Any) -> tuple[int, dict[str, Any]]:
        """POST something that is refused: status and OpenAI's error object."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(self.proxy.url + path, data=data, **more) as reply:
            assert reply.headers["Content-Type"] == "application/json"
            error = (await reply.json())["error"]
            assert set(error) == {"message", "type", "param", "code"}
            return reply.status, error


@asynccontextmanager
async def staged(state_dir: Path, up: FakeUpstream | None = None, **changes: Any) -> AsyncIterator[Stage]:
    """A `Stage`; ``changes`` as for `settings_for`, and ``wait`` as for `running`."""
    wait = changes.pop("wait", State.OK)
    tier = FakeTier()
    async with (
        up or FakeUpstream(tokenize=ids_of) as upstream,
        running(settings_for(upstream.url, state_dir, **changes), tier.load, wait=wait) as proxy,
        aiohttp.ClientSession(auto_decompress=False) as client,
    ):
        yield Stage(upstream, tier, proxy, client)
