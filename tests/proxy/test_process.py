"""`toktier serve` as a process: signals, drain, reload, TLS. In text mode; IDs have their own tests."""

from __future__ import annotations

import asyncio
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

from tests.conftest import ROOT
from tests.support.serving import CHAT, Engine, answering, body, certificate, one_model, serving


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
