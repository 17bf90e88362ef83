"""`toktier serve` as a process: signals, drain, reload, TLS. In text mode; IDs have their own tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.conftest import ROOT
from tests.support.serving import CHAT, Engine, Process, answering, body, certificate, one_model, serving

LONG = 8_000_000


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    async with answering() as it:
        yield it


async def test_serves_logs_and_ends(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    it, upstream = engine
    async with serving(tmp_path, one_model(upstream)) as process, aiohttp.ClientSession() as client:
        url = await process.url()
        listening = await process.event("listening")
        assert url == listening["urls"][0] == f"http://127.0.0.1:{listening['port']}"
        assert listening["pid"] == process.popen.pid
        headers = {"Authorization": "Bearer CANARY-KEY", "X-Request-Id": "req-1"}
        async with client.post(url + CHAT, json=body(), headers=headers) as reply:
            assert reply.status == 200
        assert it.authorizations == [None], "auth.mode none keeps the client's credential"
        line = await process.event("request")
        assert (line["request_id"], line["model"], line["status"], line["path"]) == ("req-1", "m", 200, "bypass")
        assert line["bypass"] == "text_mode_configured"
        async with client.get(url + "/metrics") as reply:
            text = await reply.text()
            assert 'toktier_requests_total{model="m",path="bypass",status="200"} 1.0' in text
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
        assert [line["event"] for line in process.lines()][-2:] == ["draining", "stopped"]
        assert "CANARY" not in process.log.read_text() + process.errors.read_text()
        assert (tmp_path / "state" / "hmac.key").stat().st_mode & 0o777 == 0o600


async def test_sigterm_lets_streams_finish_and_refuses_new_requests(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    it, upstream = engine
    async with serving(tmp_path, one_model(upstream)) as process, aiohttp.ClientSession() as client:
        url = await process.url()
        async with client.post(url + CHAT, json=body(stream=True)) as streamed:
            await asyncio.wait_for(it.streaming.wait(), 10)
            process.signal(signal.SIGTERM)
            await process.event("draining")
            async with client.post(url + CHAT, json=body()) as refused:
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "shutting_down"
            async with client.get(url + "/ready") as ready:
                assert ready.status == 503
            it.finish.set()
            assert (await streamed.read()).endswith(b"data: [DONE]\n\n")
        assert await process.ended() == 0


async def test_grace_is_limited(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    it, upstream = engine
    config = one_model(upstream) + "[server]\nshutdown_grace_s = 0.3\n"
    async with serving(tmp_path, config) as process, aiohttp.ClientSession() as client:
        url = await process.url()
        async with client.post(url + CHAT, json=body(stream=True)):
            await asyncio.wait_for(it.streaming.wait(), 10)
            process.signal(signal.SIGINT)
            assert await process.ended() == 1
        assert (await process.event("drain_timeout"))["requests"] == 1
        it.finish.set()


async def test_a_second_signal_ends_it_at_once(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    it, upstream = engine
    async with serving(tmp_path, one_model(upstream)) as process, aiohttp.ClientSession() as client:
        url = await process.url()
        async with client.post(url + CHAT, json=body(stream=True)):
            await asyncio.wait_for(it.streaming.wait(), 10)
            process.signal(signal.SIGTERM)
            await process.event("draining")
            process.signal(signal.SIGTERM)
            assert await process.ended() == 1
        await process.event("killed")
        it.finish.set()


async def test_sighup_applies_what_it_can_and_says_what_it_cannot(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    _, upstream = engine
    async with serving(tmp_path, one_model(upstream)) as process, aiohttp.ClientSession() as client:
        url = await process.url()

        async def status(model: str) -> int:
            async with client.post(url + CHAT, json=body(model=model)) as reply:
                return reply.status

        assert (await status("m"), await status("new")) == (200, 404)
        more = '[models.new]\nupstream = "u"\n[server]\nmax_body_bytes = 2048\nkeepalive_s = 9\n'
        process.config.write_text(one_model(upstream) + more)
        process.signal(signal.SIGHUP)
        reloaded = await process.event("reloaded")
        assert reloaded["applied"] == ["server.max_body_bytes", "models.new (added)"]
        assert reloaded["needs_restart"] == ["server.keepalive_s"]
        assert (await status("m"), await status("new")) == (200, 200)
        async with client.post(url + CHAT, json=body(padding="x" * 3000)) as reply:
            assert reply.status == 413
        process.config.write_text("[models.m]\nupstraem = 3\n")
        process.signal(signal.SIGHUP)
        refused = [await process.event("reload_refused", number) for number in (1, 2)]
        assert {line["place"].split()[0] for line in refused} == {"models.m.upstream", "models.m.upstraem"}
        assert "did you mean upstream?" in [line["remedy"] for line in refused]
        assert (await status("m"), await status("new")) == (200, 200), "the old configuration stays"


async def test_sighup_reads_keys_again(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    it, upstream = engine
    keys = tmp_path / "keys"
    keys.write_text("alice:CANARY-one\n", "utf-8")
    config = one_model(upstream) + f'[auth]\nmode = "keys"\nkey_file = "{keys}"\n'
    async with serving(tmp_path, config) as process, aiohttp.ClientSession() as client:
        url = await process.url()

        async def status(key: str | None) -> int:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with client.post(url + CHAT, json=body(), headers=headers) as reply:
                if reply.status == 401:
                    assert (await reply.json())["error"]["code"] == "invalid_api_key"
                return reply.status

        assert [await status(key) for key in (None, "CANARY-two", "CANARY-one")] == [401, 401, 200]
        keys.write_text("alice:CANARY-two\n", "utf-8")
        process.signal(signal.SIGHUP)
        await process.event("reloaded")
        assert [await status(key) for key in ("CANARY-one", "CANARY-two")] == [401, 200]
        served = [line for line in process.lines() if line["event"] == "request" and line["status"] == 200]
        assert len({line["tenant"] for line in served}) == 1
        assert it.authorizations == [None, None]
        assert "CANARY" not in process.log.read_text()


async def test_an_address_in_use_is_said_plainly(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    _, upstream = engine
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config = tmp_path / "toktier.toml"
        config.write_text(one_model(upstream), "utf-8")
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "proxy.cli", "serve", "--config", str(config), "--port", str(port)],
            cwd=ROOT, capture_output=True, text=True, timeout=60,
            env={**os.environ, "TOKTIER_AUTH__STATE_DIR": str(tmp_path / "state")},
        )  # fmt: skip
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"server.host, server.port: cannot listen on 127.0.0.1:{port} (address already in use).")
    events = [json.loads(line)["event"] for line in done.stdout.splitlines()]
    assert events[-2:] == ["cannot_listen", "stopped"]
    assert "listening" not in events


async def test_tls_and_a_renewed_certificate(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    _, upstream = engine
    certificate(tmp_path, "first")
    tls = '[server]\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n[limits]\nheader_timeout_s = 3\n'
    async with serving(tmp_path, one_model(upstream) + tls) as process:
        url = await process.url()
        assert url.startswith("https://")

        async def status() -> int:
            context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
            async with aiohttp.ClientSession() as client, client.post(url + CHAT, json=body(), ssl=context) as reply:
                return reply.status

        assert await status() == 200
        port = (await process.event("listening"))["port"]
        reader, silent = await asyncio.open_connection("127.0.0.1", port)  # it never begins its handshake
        certificate(tmp_path, "second")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status()
        process.signal(signal.SIGHUP)
        await process.event("reloaded")
        assert await status() == 200
        assert await asyncio.wait_for(reader.read(), 20) == b""
        silent.close()


@contextlib.asynccontextmanager
async def talking(folder: Path, tls: bool, more: str = "") -> AsyncIterator[tuple[Process, asyncio.StreamReader]]:
    """A process whose engine replies with `LONG` bytes; the client that asked for them reads as the test does."""

    async def chat(_: web.Request) -> web.Response:
        return web.Response(body=b"x" * LONG, content_type="application/json")

    served = web.Application()
    served.router.add_post(CHAT, chat)
    server = "[server]\n" + more
    if tls:
        certificate(folder, "a")
        server += f'tls_cert = "{folder / "cert.pem"}"\ntls_key = "{folder / "key.pem"}"\n'
    async with TestServer(served) as engine:
        config = one_model(str(engine.make_url("/")).rstrip("/")) + server
        async with serving(folder, config) as process:
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.setblocking(False)
            port = int((await process.url()).rpartition(":")[2])
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            context = ssl.create_default_context(cafile=str(folder / "cert.pem")) if tls else None
            name = "127.0.0.1" if tls else None
            reader, writer = await asyncio.open_connection(sock=client, ssl=context, server_hostname=name, limit=4096)
            raw = json.dumps(body()).encode()
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw)
            await reader.readuntil(b"\r\n\r\n")
            yield process, reader
            writer.close()


@pytest.mark.parametrize("tls", [False, True])
async def test_the_end_of_a_reply_is_waited_for(tmp_path: Path, tls: bool) -> None:
    async with talking(tmp_path, tls) as (process, reader):
        process.signal(signal.SIGTERM)
        got = 0
        while piece := await reader.read(65_536):
            got += len(piece)
            await asyncio.sleep(0.001)
        assert got == LONG
        assert await process.ended() == 0
        assert process.lines()[-1]["event"] == "stopped"


async def test_the_end_of_a_reply_that_nobody_reads_is_cut_and_told(tmp_path: Path) -> None:
    async with talking(tmp_path, True, "shutdown_grace_s = 0.5\n") as (process, reader):
        while not any(line["event"] == "request" for line in process.lines()):
            await reader.read(2048)
            await asyncio.sleep(0)
        process.signal(signal.SIGTERM)
        assert await process.ended() == 1
        assert (await process.event("drain_timeout"))["requests"] == 1


@pytest.mark.parametrize("tls", [False, True])
async def test_who_reads_nothing_is_cut(tmp_path: Path, tls: bool) -> None:
    async with talking(tmp_path, tls, "write_timeout_s = 0.5\n") as (process, _):
        assert (await process.event("request"))["flags"] == ["client_stalled"]
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
