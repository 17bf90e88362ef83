"""The chat route: what a client gets refused, without a word to the upstream."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from tests.support.proxy import Stage

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi ü"}]}


@pytest.mark.parametrize(
    "extra",
    [
        {"prompt_token_ids": [1]},
        {"input_ids": [1]},
        {"kv_transfer_params": {"do_remote_prefill": True, "prompt_token_ids": []}},
        {"nvext": {"token_data": ""}},
        {"prompt_token_ids_b64": "AA=="},
    ],
)
async def test_clients_cannot_send_ids(stage: Stage, extra: dict[str, Any]) -> None:
    status, error = await stage.error({**BODY, **extra})
    assert (status, error["code"]) == (400, "forbidden_field")
    assert error["param"].split(".")[0] in extra
    assert stage.up.chats == []


async def test_ids_hidden_by_a_repeated_or_escaped_key_are_found(stage: Stage) -> None:
    head = json.dumps(BODY)[:-1].encode()
    for tail in (
        b',"kv_transfer_params":{"prompt_token_ids":[1]},"kv_transfer_params":{}}',
        b',"kv_transfer_params":{"prompt_token_ids":[1],"prompt_token_ids":null}}',
        b',"input\\u005fids":[1]}',
        b',"kv_transfer_params":{"prompt_token_i\\u0064s":[1]}}',
    ):
        assert (await stage.error(head + tail))[0] == 400
    assert stage.up.chats == []


async def test_unknown_model_goes_nowhere(stage: Stage) -> None:
    for name in ("http://127.0.0.1:1/m", "../../etc/passwd", "org/unknown", "M", "", 5, ["m"], {"m": 1}):
        status, error = await stage.error({**BODY, "model": name})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert str(name) == "" or str(name) not in error["message"].split()
    assert stage.up.chats == []


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff{}", b'{"model":"m",}', b"[" * 100])
async def test_broken_json_is_400(stage: Stage, raw: bytes) -> None:
    status, error = await stage.error(raw)
    assert (status, error["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("raw", [b"\0", b"\xff\xfe", "{".encode("utf-16"), b"{\0\0\0\0", '{"x":"'.encode("utf-32-be")])
async def test_broken_json_in_other_encodings_is_400(stage: Stage, raw: bytes) -> None:
    status, error = await stage.error(raw)
    assert (status, error["code"]) == (400, "invalid_json")


async def test_a_place_that_is_not_utf16_is_named(stage: Stage) -> None:
    raw = json.dumps(BODY).encode("utf-16-le")
    for size in (0, 1 << 20):
        status, error = await stage.error(raw[:-2] + b" \0" * size + b"\x00\xd8" + raw[-2:])
        assert (status, error["code"]) == (400, "invalid_json")
        assert error["message"] == f"The body is not UTF-16-LE at byte {len(raw) - 2 + 2 * size}."


async def test_lone_surrogate_is_named(stage: Stage) -> None:
    raw = (
        b'{"model":"m","messages":[{"role":"user","content":"ok \\ud83d\\ude00"},'
        b'{"role":"tool","tool_call_id":"c1","content":"bad \\ud83d end"}],"stream":true}'
    )
    status, error = await stage.error(raw)
    assert (status, error["param"]) == (400, "messages[1].content")
    assert "character 4" in error["message"]
    assert stage.up.chats == []
    assert all(tenant == "toktier-probe" for tenant, _ in stage.tier.calls)


@pytest.mark.parametrize(
    "extra",
    [
        {"stop_token_ids": [5, 1000]},
        {"stop_token_ids": [-1]},
        {"logit_bias": {"1000": 1}},
        {"allowed_token_ids": [2000]},
        {"logprobs": True, "logprob_token_ids": [5, 1000]},
        {"logprobs": True, "logprob_token_ids": [-1]},
    ],
)
async def test_token_ids_out_of_range_are_400(stage: Stage, extra: dict[str, Any]) -> None:
    status, error = await stage.error({**BODY, **extra})
    assert (status, error["param"]) == (400, list(extra)[-1])
    inside = {
        "stop_token_ids": [0, 999],
        "logit_bias": {"999": 1, "x": 2},
        "allowed_token_ids": ["a", True],
        "logprob_token_ids": [0],
    }
    assert (await stage.post({**BODY, **inside}))[0] == 200


async def test_keep_alive_survives_refusals(stage: Stage) -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as one:
        for body in (b"{", json.dumps({**BODY, "input_ids": []}).encode(), json.dumps(BODY).encode()):
            async with one.post(stage.proxy.url + "/v1/chat/completions", data=body) as reply:
                await reply.read()
                assert reply.headers.get("Connection") != "close"
