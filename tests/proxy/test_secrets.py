"""Secrets planted in every header and every field: they go upstream, and nowhere else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import logs
from tests.proxy.test_isolation import auth, ids
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import load_qwen3
from tests.support.proxy import Running, running, settings_for

SECRET = "CANARY"
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Terse."},
        {"role": "user", "content": [{"type": "text", "text": "Read it."}], "name": "ann"},
        {
            "role": "assistant",
            "content": None,
            "reasoning": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "hello"},
    ],
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "read",
                "description": "Reads.",
                "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
            },
        }
    ],
    "tool_choice": "auto",
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "low",
    "stop": ["END"],
    "stop_token_ids": [1],
    "logit_bias": {"1": 1},
    "cache_salt": "mine",
    "prompt_cache_key": "conversation",
    "user": "ann",
    "metadata": {"a": "b"},
    "stream_options": {"include_usage": True},
    "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    "documents": [],
    "kv_transfer_params": None,
    "stream": False,
}
HEADERS = {
    "Authorization": f"Bearer {SECRET}-key",
    "X-Api-Key": SECRET,
    "api-key": SECRET,
    "Cookie": f"a={SECRET}",
    "Proxy-Authorization": f"Basic {SECRET}",
    "X-Session-Id": SECRET,
    "session_id": SECRET,
    "X-Request-Id": f"{SECRET} is no plain identifier",
    "User-Agent": SECRET,
    "Content-Type": f"application/json; {SECRET}=1",
    "Referer": f"http://{SECRET}/",
    "X-Anything": SECRET,
    SECRET: SECRET,
}


def planted() -> Iterator[bytes]:
    """The body with a secret in place of each value, and of each name, one at a time; then some that are no body."""
    for keys in paths(BODY):
        for as_name in (False, True):
            body = copy.deepcopy(BODY)
            holder = body
            for key in keys[:-1]:
                holder = holder[key]
            if not as_name:
                holder[keys[-1]] = SECRET
            elif isinstance(holder, dict):
                holder[SECRET] = holder.pop(keys[-1])
            yield json.dumps(body).encode()
    whole = json.dumps(BODY).encode()
    yield from (whole.replace(b"hello", b"CANARY \\ud800"), whole[:-1] + b', "CANARY": CANARY}', b"CANARY", b'"CANARY"')
    yield from (
        whole[:-9] + b"CANARY",
        whole + b"CANARY",
        b'{"CANARY": [' * 5_000,
        b'{"model": "CANARY"}',
        b"\xffCANARY",
    )
    yield whole.replace(b'"model": "m"', b'"model": "m", "CANARY": 1, "CANARY": 2')
    yield whole.replace(b'"hello"', b'"CANARY<|im_end|>"')


def paths(value: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*before, key)
        if isinstance(item, dict | list):
            yield from paths(item, (*before, key))


def written(proxy: Running) -> str:
    """The log as it would stand in its file."""
    lines = []
    for event in proxy.events:
        plain = logs.plain(None, "", logs.exception_to_location(None, "", dict(event)))
        lines.append(logs.render(None, "", plain).decode())
    return "\n".join(lines)


def kept(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("mode", ["none", "passthrough", "keys"])
async def test_planted_secrets_come_out_nowhere(tmp_path: Path, mode: str) -> None:
    state = tmp_path / "state"
    own = [f"Bearer {SECRET}-key"] if mode == "keys" else []
    async with FakeUpstream(tokenize=ids) as up:
        settings = settings_for(up.url, state, auth=auth(mode, tmp_path), model={"control_tokens": "reject"})
        if mode == "keys":
            (tmp_path / "keys").write_text(f"alice:{SECRET}-key\n")
        async with running(settings, load_qwen3) as proxy, aiohttp.ClientSession() as client:
            answers = []

            async def send(path: str, raw: bytes, headers: dict[str, str]) -> None:
                async with client.post(proxy.url + path, data=raw, headers=headers) as reply:
                    if reply.reason != "X":  # TokTier's own
                        answers.append((await reply.text(), dict(reply.headers)))

            count = 0
            for raw in planted():
                await send(CHAT, raw, HEADERS)
                count += 1
            for path in (
                "/v1/completions?x=CANARY",
                "/tokenize",
                "/CANARY",
                "/v1/models/CANARY",
                "/v1/responses/CANARY",
            ):
                await send(path, b'{"model": "m", "prompt": "CANARY", "CANARY": 1}', HEADERS)
                await send(path, b"CANARY", {**HEADERS, "Content-Encoding": SECRET})
                await send(path, b"CANARY", {**HEADERS, "Content-Encoding": "gzip"})
                await send(path, b"CANARY", {**HEADERS, "Expect": SECRET})
                await send(path, b"CANARY", {**HEADERS, "Authorization": f"Bearer wrong-{SECRET}"})
                count += 5
            await up.stop()
            await send(CHAT, json.dumps(BODY).encode(), HEADERS)
            await proxy.logged(count + 1)
            for text, headers in answers:
                assert SECRET not in text
                assert SECRET not in json.dumps(headers)
            assert len(answers) > 20
            for path in ("/metrics", "/ready", "/health"):
                async with client.get(proxy.url + path, headers=HEADERS) as reply:
                    assert SECRET not in await reply.text()
            log = written(proxy)
            assert SECRET not in log
            assert log.count('"event":"request"') == count + 1
            hidden = [settings.auth.state_dir / "hmac.key"]
            assert all(path.read_text().strip() not in log for path in hidden)
        assert SECRET.encode() not in kept(state)
        assert any(SECRET.encode() in seen.body for seen in up.seen), "upstream it went"
        authorizations = {seen.header("Authorization") for seen in up.chats}
        assert authorizations == ({None} if mode != "passthrough" else {f"Bearer {SECRET}-key"}), own
