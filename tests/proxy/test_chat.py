"""The chat route through the real application, before a scripted upstream, with a pretended tier: what goes up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy import changes
from proxy.registry import State
from tests.support.fake_tier import ids_of
from tests.support.fake_upstream import FakeUpstream
from tests.support.proxy import Stage, staged

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi ü"}]}
IDS = {"prompt_token_ids": ids_of(BODY)}


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


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-32-le"])
@pytest.mark.parametrize("size", [1, 200_000])
async def test_json_that_is_not_utf8_goes_up_as_utf8(stage: Stage, encoding: str, size: int) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "ü" * size}]}
    raw = json.dumps(body, ensure_ascii=False).encode(encoding)
    assert (await stage.post(raw))[0] == 200
    sent = stage.up.chats[0].json
    assert sent["messages"] == body["messages"]
    assert sent["kv_transfer_params"]["prompt_token_ids"] == ids_of(body)
    assert (await stage.proxy.logged(1))[0]["bytes_in"] == len(raw)
    assert stage.proxy.core.held.size == 0


@pytest.mark.parametrize(
    ("token_field", "path"),
    [
        ("vllm", ("kv_transfer_params", "prompt_token_ids")),
        ("sglang", ("input_ids",)),
        ("trtllm", ("prompt_token_ids",)),
        ("dynamo", ("nvext", "token_data")),
    ],
)
@pytest.mark.parametrize("has_tokenize", [True, False])
async def test_each_engine_gets_its_field(
    tmp_path: Path, token_field: str, path: tuple[str, ...], has_tokenize: bool
) -> None:
    up = FakeUpstream(tokenize=ids_of, id_path=path, has_tokenize=has_tokenize)
    async with staged(tmp_path, up, upstream={"token_field": token_field}) as stage:
        assert (await stage.post(BODY))[0] == 200
        value = stage.up.chats[0].json
        for name in path:
            value = value[name]
        assert value == ids_of(BODY)


async def test_salt_is_never_the_clients_alone(stage: Stage) -> None:
    for body in (BODY, {**BODY, "cache_salt": "AAAA"}, {**BODY, "cache_salt": None}):
        assert (await stage.post(body))[0] == 200
    plain, mixed, null = (seen.json["cache_salt"] for seen in stage.up.chats)
    assert plain == null != mixed
    assert "AAAA" not in mixed
    assert stage.up.chats[1].body.count(b"cache_salt") == 1
    assert (await stage.post({**BODY, "cache_salt": "é" * changes.MAX_SALT}))[0] == 200
    for bad in (5, "", ["x"], "é" * (changes.MAX_SALT + 1), "x" * 3_000_000):
        status, error = await stage.error({**BODY, "cache_salt": bad})
        assert (status, error["param"], error["code"]) == (400, "cache_salt", "invalid_cache_salt")


async def test_salt_off_leaves_the_body_alone(tmp_path: Path) -> None:
    async with staged(tmp_path, auth={"salt": "off"}, model={"mode": "text"}, wait=State.TEXT) as stage:
        raw = json.dumps({**BODY, "cache_salt": "own"}).encode()
        assert (await stage.post(raw))[0] == 200
        assert stage.up.chats[0].body == raw


@pytest.mark.parametrize("token_field", ["vllm", "sglang", "trtllm"])
async def test_null_in_place_of_ids_counts_as_absent(tmp_path: Path, token_field: str) -> None:
    path = changes.ID_PATHS[token_field]
    up = FakeUpstream(tokenize=ids_of, id_path=path)
    async with staged(tmp_path, up, upstream={"token_field": token_field}) as stage:
        nulls = {"input_ids": None, "prompt_token_ids": None, "prompt_token_ids_b64": None}
        assert (await stage.post({**BODY, **nulls}))[0] == 200
        sent: Any = stage.up.chats[0].json
        for name in path:
            sent = sent[name]
        assert sent == ids_of(BODY)
        assert stage.up.chats[0].body.count(f'"{path[0]}"'.encode()) == 1
        assert (await stage.post({**BODY, "kv_transfer_params": {path[-1]: None}}))[0] == 200


async def test_null_id_field_is_replaced(stage: Stage) -> None:
    assert (await stage.post({**BODY, "kv_transfer_params": None}))[0] == 200
    assert stage.up.chats[0].body.count(b"kv_transfer_params") == 1
    assert stage.up.chats[0].json["kv_transfer_params"] == IDS


async def test_repeated_members_go_as_text(stage: Stage) -> None:
    raw = b'{"model":"m","messages":[],' + json.dumps(BODY)[1:].encode()
    await stage.post(raw)
    sent = stage.up.chats[0].body
    assert sent.startswith(raw[:-1] + b',"cache_salt":')
    assert b"kv_transfer_params" not in sent
    assert (await stage.proxy.logged(1))[0]["bypass"] == "duplicate_keys"


async def test_no_model_means_the_only_one(stage: Stage) -> None:
    assert (await stage.post({"messages": BODY["messages"]}))[0] == 200
    assert stage.up.chats[0].json["kv_transfer_params"] == IDS


async def test_session_headers_are_hints(stage: Stage) -> None:
    await stage.post(BODY, headers={"X-Session-Affinity": "ses_1"})
    assert stage.tier.calls[-1][1] == "ses_1"
    await stage.post({**BODY, "prompt_cache_key": "key_1"})
    assert stage.tier.calls[-1][1] == "key_1"


async def test_nothing_of_the_client_reaches_the_log(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        headers = {"Authorization": "Bearer CANARY-K", "Cookie": "CANARY=C", "X-Api-Key": "CANARY-X"}
        bodies: list[Any] = [
            b'{"model":"m","messages":[{"content":"CANARY-PROMPT {bad"',
            {"model": "CANARY-MODEL", "messages": "CANARY"},
            {"model": "m", "messages": [{"role": "user", "content": "CANARY"}], "CANARY": "CANARY"},
        ]
        for body in bodies:
            _, answer = await stage.post(body, "/v1/chat/completions?key=CANARY-Q", headers=headers)
            assert b"CANARY" not in answer
        await stage.post({}, "/v1/CANARY", headers={"X-Request-Id": "CANARY with text"})
        await stage.proxy.logged(4)
        assert "CANARY" not in repr(stage.proxy.events)
        seen = stage.up.chats[0]
        assert [name for name, value in seen.headers if "CANARY" in value] == []
        assert seen.target.endswith("?key=CANARY-Q")
