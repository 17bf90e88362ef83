"""A proxy whose event loop hangs ends by itself; one that only works does not."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.config import Settings
from proxy.watchdog import EXIT_CODE
from tests.support.fake_tier import ids_of
from tests.support.fake_upstream import FakeUpstream

ROOT = Path(__file__).resolve().parents[2]

SERVE = """
import json, re, sys, time
from pathlib import Path
from proxy.config import Settings
from proxy.serve import run
from tests.support.fake_tier import FakeTier

tier = FakeTier()
whole = tier.prepare

def prepare(tenant, body, *rest, **more):
    text = str(body["messages"][0]["content"])
    if text == "CANARY sleeps":
        time.sleep(600)
    if text == "CANARY backtracks":  # and holds the interpreter
        re.match("(a|aa)+$", "a" * 100 + "b")
    return whole(tenant, body, *rest, **more)

tier.prepare = prepare
settings = Settings.model_validate(json.loads(Path(sys.argv[1]).read_bytes()))
sys.exit(run(settings, lambda: settings, tier.load))
"""


@pytest.mark.parametrize("how", ["sleeps", "backtracks"])
async def test_a_hang_on_the_event_loop_ends_the_process(tmp_path: Path, how: str) -> None:
    async with FakeUpstream(tokenize=ids_of) as up:
        tree: dict[str, Any] = {
            "server": {"port": 0, "stall_exit_s": 1.5},
            "auth": {"state_dir": str(tmp_path / "state")},
            "log": {"path": str(tmp_path / "log")},
            "upstreams": {"e": {"url": up.url}},
            "models": {"m": {"upstream": "e", "tokenizer": "embedded"}},
        }
        settings = tmp_path / "settings.json"
        settings.write_text(json.dumps(tree))
        Settings.model_validate(tree)
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SERVE, str(settings)),
            cwd=ROOT, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        try:
            assert process.stderr is not None
            first = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
            assert "listens on" in first, first + (await process.stderr.read()).decode()
            url = first.split()[-1]
            chat = url + "/v1/chat/completions"
            async with aiohttp.ClientSession() as client:

                async def post(text: str) -> None:
                    body = {"model": "m", "messages": [{"role": "user", "content": text}]}
                    async with client.post(chat, json=body) as reply:
                        assert reply.status == 200

                await post("works")
                async with asyncio.timeout(60):
                    while "kv_transfer_params" not in up.chats[-1].json:
                        await asyncio.sleep(0.05)
                        await post("works")
                await asyncio.sleep(2)
                await post("works")
                assert process.returncode is None, "a loop that runs is left alone"
                with pytest.raises(aiohttp.ClientError):
                    await post(f"CANARY {how}")
            _, said = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == EXIT_CODE
            assert b"Timeout" in said
            assert b"in prepare" in said, "it says where"
            assert b"CANARY" not in said
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
