"""`toktier serve` as a process whose disk is full, or that is to end while it loads or hangs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.config import Auth
from proxy.tenants import Tenants
from tests.conftest import ROOT
from tests.support.serving import CHAT, Engine, answering, body, one_model, serving, until
from tests.support.tokenizer_files import small_spec, write


@pytest.fixture
async def engine() -> AsyncIterator[tuple[Engine, str]]:
    async with answering() as it:
        yield it


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


@pytest.mark.slow
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
