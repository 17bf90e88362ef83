from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import structlog
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from structlog.testing import capture_logs

from proxy import logs
from proxy.audit import RequestRecord
from proxy.config import Log
from proxy.registry import CannotLoad, Loaded
from proxy.serve import Drain, Server, _address
from tests.support.proxy import settings_for
from toktier.reasons import Bypass


async def test_draining_finishes_what_runs_and_refuses_what_is_new() -> None:
    counted: list[RequestRecord] = []
    drain, release, entered = Drain(counted.append), asyncio.Event(), asyncio.Event()

    async def slow(_: web.Request) -> web.Response:
        entered.set()
        await release.wait()
        return web.Response(text="done")

    async def health(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(middlewares=[drain.middleware])
    app.router.add_get("/v1/models", slow)
    app.router.add_get("/health", health)
    async with TestClient(TestServer(app)) as client:
        running = asyncio.create_task(client.get("/v1/models"))
        await entered.wait()
        assert drain.running == 1
        drain.start()
        idle = asyncio.create_task(drain.idle())
        with capture_logs() as lines:
            refused = await client.get("/v1/models")
        assert refused.status == 503
        assert (await refused.json())["error"]["code"] == "shutting_down"
        assert refused.headers["Retry-After"] == "1"
        assert [(line["event"], line["status"], line["route"]) for line in lines] == [("request", 503, "/v1/models")]
        with capture_logs() as lines:
            assert (await client.get("/health")).status == 200
            assert (await client.get("/ready")).status == 503
        assert lines == [], "what balancers ask is not logged"
        assert [(record.error, record.status) for record in counted] == [("shutting_down", 503)]
        assert not idle.done()
        release.set()
        assert await (await running).text() == "done"
        await asyncio.wait_for(idle, 20)
        assert drain.running == 0


async def test_an_idle_drain_ends_at_once() -> None:
    drain = Drain(lambda _: None)
    drain.start()
    await asyncio.wait_for(drain.idle(), 20)


async def test_a_handler_that_fails_does_not_hold_the_drain() -> None:
    drain = Drain(lambda _: None)

    async def fail(_: web.Request) -> web.Response:
        raise web.HTTPBadRequest

    app = web.Application(middlewares=[drain.middleware])
    app.router.add_get("/v1/models", fail)
    async with TestClient(TestServer(app)) as client:
        assert (await client.get("/v1/models")).status == 400
    drain.start()
    await asyncio.wait_for(drain.idle(), 20)


def test_addresses_as_urls_have_them() -> None:
    assert _address(("127.0.0.1", 80)) == "127.0.0.1:80"
    assert _address(("::1", 80, 0, 0)) == "[::1]:80"


async def test_a_given_loader_makes_the_tiers(tmp_path: Path) -> None:
    asked: list[str] = []

    def load(name: str, *_: object) -> Loaded:
        asked.append(name)
        raise CannotLoad(Bypass.NO_TEMPLATE, "not here", final=True)

    settings = settings_for("http://127.0.0.1:9", tmp_path)
    before = structlog.get_config()
    try:
        written = logs.configure(Log(path=tmp_path / "log"))
        serving = asyncio.create_task(Server(settings, lambda: settings, written, load).run())
        async with asyncio.timeout(30):
            while not (asked and (tmp_path / "log").exists() and "listening" in (tmp_path / "log").read_text()):
                await asyncio.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(serving, 30) == 0
        written.close()
    finally:
        structlog.configure(**before)
    assert asked == ["m"]
