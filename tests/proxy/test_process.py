"""`toktier serve` as a process: signals, drain, reload, TLS, a full disk. In text mode; IDs have their own tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from proxy.config import Auth
from proxy.tenants import Tenants
from tests.support.tokenizer_files import small_spec, write

ROOT = Path(__file__).resolve().parents[2]
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


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    it = Engine()
    served = web.Application()
    served.router.add_post(CHAT, it.chat)
    served.router.add_get("/v1/models", it.models)
    async with TestServer(served) as server:
        yield it, str(server.make_url("/")).rstrip("/")


class Process:
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


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
async def test_a_full_disk_under_the_log_does_not_touch_requests(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    _, upstream = engine
    async with (
        serving(tmp_path, one_model(upstream), TOKTIER_LOG__PATH="/dev/full") as process,
        aiohttp.ClientSession() as client,
    ):
        url = await process.url()
        for _ in range(20):
            async with client.post(url + CHAT, json=body()) as reply:
                assert reply.status == 200
        async with asyncio.timeout(10):
            dropped = 0.0
            while dropped < 20:
                async with client.get(url + "/metrics") as reply:
                    text = await reply.text()
                dropped = float(text.partition("\ntoktier_log_lines_dropped_total ")[2].partition("\n")[0])
                await asyncio.sleep(0.02)
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0


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


async def test_tls_and_a_renewed_certificate(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    _, upstream = engine
    certificate(tmp_path, "first")
    tls = '[server]\ntls_cert = "cert.pem"\ntls_key = "key.pem"\n'
    async with serving(tmp_path, one_model(upstream) + tls) as process:
        url = await process.url()
        assert url.startswith("https://")

        async def status() -> int:
            context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
            async with aiohttp.ClientSession() as client, client.post(url + CHAT, json=body(), ssl=context) as reply:
                return reply.status

        assert await status() == 200
        certificate(tmp_path, "second")
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await status()
        process.signal(signal.SIGHUP)
        await process.event("reloaded")
        assert await status() == 200


def descendants(pid: int) -> set[int]:
    """The processes that ``pid`` started, and those that they started, as far as they live."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            _, _, rest = path.read_text().rpartition(")")
            parents[int(path.parent.name)] = int(rest.split()[1])
    found: set[int] = set()
    while more := {child for child, parent in parents.items() if parent in {pid, *found}} - found:
        found |= more
    return found


def alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc")
@pytest.mark.parametrize("by", ["start", "reload"])
async def test_a_drain_while_a_tokenizer_is_loaded(tmp_path: Path, engine: tuple[Engine, str], by: str) -> None:
    """Streams finish, new requests are refused, and no process is left, whether the load came by start or by SIGHUP."""
    it, upstream = engine
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    loads = one_model(upstream) + '[models.loads]\nupstream = "u"\ntokenizer = "embedded"\n'
    variables = {"TMPDIR": str(scratch), "TOKTIER_SERVER__CACHE_DIR": str(tmp_path / "cache")}
    async with (
        serving(tmp_path, loads if by == "start" else one_model(upstream), **variables) as process,
        aiohttp.ClientSession() as client,
    ):
        url = await process.url()
        async with client.post(url + CHAT, json=body(stream=True)) as streamed:
            await asyncio.wait_for(it.streaming.wait(), 10)
            if by == "reload":
                process.config.write_text(loads)
                process.signal(signal.SIGHUP)
            await until(lambda: bool(descendants(process.popen.pid)), "the comparison has not begun")
            started = descendants(process.popen.pid)
            process.signal(signal.SIGTERM)
            await process.event("draining")
            async with client.post(url + CHAT, json=body()) as refused:
                assert refused.status == 503
                assert refused.headers["Retry-After"] == "1"
            it.finish.set()
            assert (await streamed.read()).endswith(b"data: [DONE]\n\n")
        assert await process.ended() == 0
        await until(lambda: not any(map(alive, started)), "processes are left")
    assert process.lines()[-1]["event"] == "stopped"
    assert list(scratch.iterdir()) == []


async def test_a_drain_while_a_reload_hangs(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    """The new configuration lies on a disk that does not answer: here, in a pipe that nobody writes to."""
    _, upstream = engine
    async with serving(tmp_path, one_model(upstream)) as process:
        await process.event("listening")
        process.config.unlink()
        os.mkfifo(process.config)
        process.signal(signal.SIGHUP)
        await asyncio.sleep(0.3)
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
        assert process.lines()[-1]["event"] == "stopped"


async def test_a_full_disk_under_cache_and_state(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    """Nothing can be kept: the model is served all the same, once the key is there; without one, the start says why."""
    _, upstream = engine

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    state = tmp_path / "state"
    model = write(tmp_path / "model", small_spec(), tokenizer_config={"chat_template": "{{ messages[0].content }}"})
    config = one_model(upstream) + f'tokenizer = "{model}"\n'
    variables = {"TOKTIER_SERVER__CACHE_DIR": str(tmp_path / "cache"), "TOKTIER_LOG__PATH": "/dev/stdout"}
    for round_ in ("no key", "a key"):
        env = {n: v for n, v in os.environ.items() if not n.startswith("TOKTIER_")} | variables
        env["TOKTIER_AUTH__STATE_DIR"] = str(state)
        path = tmp_path / "toktier.toml"
        path.write_text(config, "utf-8")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy.cli", "serve", "--config", str(path), "--port", "0",
            cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=limited,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        if round_ == "no key":
            _, errors = await asyncio.wait_for(process.communicate(), 40)
            assert process.returncode not in (0, None)
            assert b"Traceback" not in errors
            assert b"state_dir" in errors
            assert list(state.iterdir()) == []
            Tenants(Auth(state_dir=state))
            continue
        try:
            lines: dict[str, dict[str, Any]] = {}
            async with asyncio.timeout(60):
                while "tokenizer.loaded" not in lines:
                    line = json.loads(await process.stdout.readline())
                    lines[line["event"]] = line
            url = lines["listening"]["urls"][0]
            async with aiohttp.ClientSession() as client, client.post(url + CHAT, json=body()) as reply:
                assert reply.status == 200
            process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.communicate(), 30)
            assert process.returncode == 0
        finally:
            if process.returncode is None:
                process.kill()
        assert [file for file in (tmp_path / "cache").rglob("*") if file.is_file()] == []


async def test_an_end_while_a_tokenizer_is_loaded(tmp_path: Path, engine: tuple[Engine, str]) -> None:
    """The load and the process that compares it are not waited for, and leave nothing behind."""
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    config = one_model(engine[1]) + 'tokenizer = "embedded"\n'
    variables = {"TMPDIR": str(scratch), "TOKTIER_SERVER__CACHE_DIR": str(tmp_path / "cache")}
    async with serving(tmp_path, config, **variables) as process:
        await process.event("listening")
        await until(lambda: any(scratch.glob("*/files/tokenizer.json")), "the comparison has begun")
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
    assert process.lines()[-1]["event"] == "stopped"
    assert list(scratch.iterdir()) == []
