"""The chat route when TokTier's own part fails or the upstream does: what cannot go with IDs goes as text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proxy.registry import State
from tests.support.fake_tier import ids_of
from tests.support.fake_upstream import FakeUpstream
from tests.support.proxy import Stage, staged
from toktier.errors import TemplateFailure, Unrenderable
from toktier.reasons import Bypass

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi ü"}]}
IDS = {"prompt_token_ids": ids_of(BODY)}


class Panic(BaseException):
    """What a panic in a Rust engine looks like (pyo3_runtime.PanicException)."""


@pytest.mark.parametrize("inline_below", [0, 1 << 20])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Unrenderable(Bypass.MULTIMODAL, "messages[0].content[1]"), "multimodal"),
        (TemplateFailure(ValueError("CANARY text of the prompt")), "template_error"),
        (ZeroDivisionError("CANARY"), "internal_error"),
        (Panic("CANARY"), "internal_error"),
    ],
)
async def test_what_cannot_be_repaired_goes_as_text(
    tmp_path: Path, fault: BaseException, reason: str, inline_below: int
) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": inline_below}) as stage:
        stage.tier.fault = fault
        assert (await stage.post(BODY))[0] == 200
        sent = stage.up.chats[0].json
        assert sent.pop("cache_salt")
        assert sent == BODY
        line = (await stage.proxy.logged(1))[0]
        assert (line["path"], line["bypass"], line["tokens"]) == ("bypass", reason, None)
        assert not any("CANARY" in str(event) for event in stage.proxy.events if "exc_info" not in event)


async def test_refused_ids_are_sent_again_as_text_and_given_up_after_three(stage: Stage) -> None:
    refusal = json.dumps({"error": {"message": "bad kv_transfer_params.prompt_token_ids", "code": 400}})
    for n in range(1, 4):
        stage.up.scripts.append([{"head": {"status": "400 Bad Request"}}, {"send": refusal}])
        assert (await stage.post(BODY))[0] == 200
        first, second = stage.up.chats[-2:]
        assert first.json["kv_transfer_params"] == IDS
        assert "kv_transfer_params" not in second.json
        line = (await stage.proxy.logged(n))[-1]
        assert (line["bypass"], line["attempts"]) == ("upstream_refused_ids", 2)
        assert "ids_refused_retry" in line["flags"]
    states = [e for e in stage.proxy.events if e["event"] == "model_state" and e.get("state") == "text"]
    assert [e["reason"] for e in states] == ["upstream_refused_ids"]
    await stage.proxy.settled(State.OK)


async def test_an_engine_that_refuses_the_text_as_well_did_not_refuse_the_ids(stage: Stage) -> None:
    """vLLM's validation errors quote the whole body: one client's mistakes must not end the IDs of all."""
    quoting = json.dumps({"error": {"message": "top_logprobs: wrong; input: {'prompt_token_ids': [1]}", "code": 400}})
    for n in range(1, 5):
        stage.up.scripts.extend([[{"head": {"status": "400 Bad Request"}}, {"send": quoting}]] * 2)
        assert await stage.post(BODY) == (400, quoting.encode())
        line = (await stage.proxy.logged(n))[-1]
        assert (line["status"], line["attempts"]) == (400, 2)
    assert stage.proxy.core.generation.registry.models["m"].state is State.OK
    assert (await stage.post(BODY))[0] == 200
    assert stage.up.chats[-1].json["kv_transfer_params"] == IDS


async def test_other_errors_are_relayed_as_they_are(stage: Stage) -> None:
    answer = '{"error":{"message":"max_tokens too large","type":"BadRequestError","param":null,"code":400}}'
    stage.up.scripts.append([{"head": {"status": "400 Bad Request", "headers": {"X-E": "1"}}}, {"send": answer}])
    assert await stage.post(BODY) == (400, answer.encode())
    stage.up.scripts.append([{"head": {"status": "429 Too Many", "headers": {"Retry-After": "7"}}}, {"send": "{}"}])
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=BODY) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (429, "7")
    assert len(stage.up.chats) == 2


async def test_miscounted_prompt_ends_ids_until_probed_again(stage: Stage) -> None:
    stage.up.scripts.append([{"send": json.dumps({"choices": [], "usage": {"prompt_tokens": 9999}})}])
    await stage.post(BODY)
    line = (await stage.proxy.logged(1))[0]
    assert line["prompt_tokens_equal"] is False
    assert any(e["event"] == "model_state" and e.get("state") == "unprobed" for e in stage.proxy.events)
    await stage.proxy.settled(State.OK)


async def test_upstream_down_is_502(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.up.stop()
        status, error = await stage.error(BODY)
        assert (status, error["code"]) == (502, "upstream_unreachable")
        line = (await stage.proxy.logged(1))[0]
        assert "upstream_unreachable" in line["flags"]
        await stage.proxy.settled(State.UNPROBED)
        await stage.up.listen(stage.up.port)
        await stage.proxy.settled(State.OK)
        assert (await stage.post(BODY))[0] == 200


async def test_silent_upstream_is_504(tmp_path: Path) -> None:
    async with staged(tmp_path, upstream={"read_timeout_s": 0.2}) as stage:
        stage.up.scripts.append([{"sleep_ms": 3000}, {"send": "{}"}])
        status, error = await stage.error(BODY)
        assert (status, error["code"]) == (504, "upstream_timeout")


async def test_redirects_are_not_followed(stage: Stage) -> None:
    async with FakeUpstream() as other:
        location = {"status": "307 Temporary", "headers": {"Location": other.url + "/v1/chat/completions"}}
        stage.up.scripts.append([{"head": location}, {"send": "{}"}])
        async with stage.client.post(
            stage.proxy.url + "/v1/chat/completions", json=BODY, allow_redirects=False
        ) as reply:
            assert reply.status == 307
        assert other.seen == []
