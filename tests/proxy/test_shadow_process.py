"""`toktier serve` and its checking processes: at the end of either, nothing is left and nothing untold."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from typer.testing import CliRunner

from proxy.cli import app
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import CACHE
from tests.support.serving import CHAT, Process, body, serving, until
from tests.support.wrong_tier import reference_ids, small


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


@asynccontextmanager
async def checking(folder: Path) -> AsyncIterator[tuple[Process, str]]:
    """A server that has checked a first request, and its address."""
    async with FakeUpstream(tokenize=reference_ids) as up:
        config = (
            f'[server]\ncache_dir = "{CACHE}"\n[shadow]\nrate = 1.0\n[upstreams.u]\nurl = "{up.url}"\n'
            f'[models.m]\nupstream = "u"\ntokenizer = "{small().source}"\n'
        )
        async with serving(folder, config) as process:
            url = await process.url()
            await until(
                lambda: any(line["event"] == "model_state" and line["state"] == "ok" for line in process.lines()),
                process.lines,
                300,
            )
            await ask(url)
            await until(lambda: bool(told(process, "shadow_check")), process.lines, 300)
            yield process, url


async def ask(url: str) -> None:
    async with aiohttp.ClientSession() as client, client.post(url + CHAT, json=body()) as reply:
        assert reply.status == 200


def told(process: Process, event: str) -> list[dict[str, object]]:
    return [line for line in process.lines() if line["event"] == event]


def worker(process: Process) -> int:
    return int(str(told(process, "shadow_worker")[-1]["pid"]))


@pytest.mark.slow
async def test_a_drain_leaves_no_check_untold_and_no_process(tmp_path: Path) -> None:
    async with checking(tmp_path) as (process, url):
        for _ in range(4):
            await ask(url)
        process.signal(signal.SIGTERM)
        assert await process.ended() == 0
        assert len(told(process, "shadow_check")) + len(told(process, "shadow_dropped")) == 5
        assert [line["state"] for line in told(process, "shadow_worker")] == ["started", "stopped"]
        assert gone(worker(process))
        assert process.lines()[-1]["event"] == "stopped"
        audited = CliRunner().invoke(app, ["audit", str(process.log)])
        assert audited.exit_code == 0, audited.output
        assert "CANARY" not in process.log.read_text()


async def test_a_killed_server_takes_its_processes_with_it(tmp_path: Path) -> None:
    async with checking(tmp_path) as (process, _):
        pid = worker(process)
        assert not gone(pid)
        process.signal(signal.SIGKILL)
        await process.ended()
        async with asyncio.timeout(300):
            while not gone(pid):
                await asyncio.sleep(0.02)
