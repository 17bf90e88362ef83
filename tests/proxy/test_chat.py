"""The chat route through the real application, before a scripted upstream, with a pretended tier."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.fake_tier import FakeTier, ids_of
from tests.support.fake_upstream import FakeUpstream
from tests.support.proxy import Running, running, settings_for

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi ü"}]}


@dataclass
class Stage:
    up: FakeUpstream
    tier: FakeTier
    proxy: Running
    client: aiohttp.ClientSession

    async def post(self, body: Any, path: str = "/v1/chat/completions", **more: Any) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.client.post(self.proxy.url + path, data=data, **more) as reply:
            return reply.status, await reply.read()


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    tier = FakeTier()
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), tier.load) as proxy,
        aiohttp.ClientSession() as client,
    ):
        yield Stage(up, tier, proxy, client)


async def test_body_goes_up_with_ids_and_salt_at_its_end(stage: Stage) -> None:
    raw = b' {"model" : "m", "messages":[{"role":"user","content":"hi \\u00fc"}],\n "temperature":1.0 } '
    status, _ = await stage.post(raw)
    assert status == 200
    sent = stage.up.chats[0].body
    assert sent.startswith(raw[:-3])
    assert sent.endswith(b" } ")
    added = json.loads(sent)
    assert list(added) == ["model", "messages", "temperature", "cache_salt", "kv_transfer_params"]
    assert added["kv_transfer_params"] == {"prompt_token_ids": ids_of(json.loads(raw))}
    assert len(added["cache_salt"]) >= 32
    line = (await stage.proxy.logged(1))[0]
    assert (line["path"], line["status"], line["prompt_tokens_equal"]) == ("init", 200, True)
    assert line["usage_prompt_tokens"] == line["tokens"] == len(ids_of(json.loads(raw)))
    assert line["versions"] == {"fake": "1"}
