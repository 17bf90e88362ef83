"""The chat route through the real application, before a scripted upstream, with a pretended tier."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import proxy.api.chat
from proxy.ingest import Ingest
from proxy.lanes import TURN_S
from proxy.registry import State
from tests.support.fake_tier import ids_of
from tests.support.fake_upstream import FakeUpstream
from tests.support.proxy import Stage, staged
from toktier.errors import TemplateFailure, Unrenderable
from toktier.reasons import Bypass

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi ü"}]}
IDS = {"prompt_token_ids": ids_of(BODY)}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path) as it:
        yield it


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
    for bad in (5, "", ["x"]):
        status, error = await stage.error({**BODY, "cache_salt": bad})
        assert (status, error["param"]) == (400, "cache_salt")


async def test_salt_off_leaves_the_body_alone(tmp_path: Path) -> None:
    async with staged(tmp_path, auth={"salt": "off"}, model={"mode": "text"}, wait=State.TEXT) as stage:
        raw = json.dumps({**BODY, "cache_salt": "own"}).encode()
        assert (await stage.post(raw))[0] == 200
        assert stage.up.chats[0].body == raw


@pytest.mark.parametrize(
    "extra",
    [
        {"prompt_token_ids": [1]},
        {"input_ids": [1]},
        {"kv_transfer_params": {"do_remote_prefill": True, "prompt_token_ids": []}},
        {"nvext": {"token_data": None}},
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


async def test_unknown_model_goes_nowhere(stage: Stage) -> None:
    for name in ("http://127.0.0.1:1/m", "../../etc/passwd", "org/unknown", "M", "", 5, ["m"], {"m": 1}):
        status, error = await stage.error({**BODY, "model": name})
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert str(name) == "" or str(name) not in error["message"].split()
    assert stage.up.chats == []


async def test_no_model_means_the_only_one(stage: Stage) -> None:
    assert (await stage.post({"messages": BODY["messages"]}))[0] == 200
    assert stage.up.chats[0].json["kv_transfer_params"] == IDS


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b'"x"', b"\xff{}", b'{"model":"m",}', b"[" * 100])
async def test_broken_json_is_400(stage: Stage, raw: bytes) -> None:
    status, error = await stage.error(raw)
    assert (status, error["code"]) == (400, "invalid_json")


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
    ],
)
async def test_token_ids_out_of_range_are_400(stage: Stage, extra: dict[str, Any]) -> None:
    status, error = await stage.error({**BODY, **extra})
    assert (status, error["param"]) == (400, next(iter(extra)))
    inside = {"stop_token_ids": [0, 999], "logit_bias": {"999": 1, "x": 2}, "allowed_token_ids": ["a", True]}
    assert (await stage.post({**BODY, **inside}))[0] == 200


async def test_session_headers_are_hints(stage: Stage) -> None:
    await stage.post(BODY, headers={"X-Session-Affinity": "ses_1"})
    assert stage.tier.calls[-1][1] == "ses_1"
    await stage.post({**BODY, "prompt_cache_key": "key_1"})
    assert stage.tier.calls[-1][1] == "key_1"


async def test_large_bodies_are_prepared_off_the_loop(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": 100}) as stage:
        stage.tier.delay_s = 0.3
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 1000}]}
        slow = asyncio.create_task(stage.post(body))
        await asyncio.sleep(0.05)
        start = time.perf_counter()
        async with stage.client.get(stage.proxy.url + "/health") as reply:
            assert reply.status == 200
        assert time.perf_counter() - start < 0.2
        assert (await slow)[0] == 200


def noted(function: Callable[..., Any], threads: list[str]) -> Callable[..., Any]:
    """``function``, whose caller's thread is noted."""

    def call(*args: Any, **more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return function(*args, **more)

    return call


@pytest.mark.parametrize("busy", [False, True])
async def test_what_may_take_long_is_done_off_the_loop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """A body that is large; one that is small, where the loop has had its share of work in this turn."""
    threads: list[str] = []
    monkeypatch.setattr(
        proxy.api.chat, "refuse_ids_out_of_range", noted(proxy.api.chat.refuse_ids_out_of_range, threads)
    )
    monkeypatch.setattr(Ingest, "whole", noted(Ingest.whole, threads))
    monkeypatch.setattr(stage.tier, "prepare", noted(stage.tier.prepare, threads))
    if busy:
        stage.proxy.core.lanes.turn._spent = TURN_S
    body = {**BODY, "stop_token_ids": [1] * (3 if busy else 200_000)}
    assert (await stage.post(body))[0] == 200
    assert len(threads) == 3
    assert all(name.startswith("toktier-worker") for name in threads)


class Slow:
    """A window engine that takes long with its first use in a thread."""

    begun = False

    def begin(self) -> None:
        self.begun = True


async def test_the_loop_begins_with_an_engine_while_nobody_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    monkeypatch.setattr(stage.tier, "prepare", noted(stage.tier.prepare, threads))
    core = stage.proxy.core
    runtime = core.generation.registry.models["m"]
    assert runtime.loaded is not None
    runtime.loaded = replace(runtime.loaded, window=(slow := Slow()))
    core.in_flight += 1  # a stream, say
    assert (await stage.post(BODY))[0] == 200
    assert not slow.begun
    core.in_flight -= 1
    assert (await stage.post(BODY))[0] == 200
    assert slow.begun
    assert (await stage.post(BODY))[0] == 200
    assert [name.startswith("toktier-worker") for name in threads] == [True, True, False]
    again = Slow()
    core._take(runtime, replace(runtime.loaded, window=again))
    assert again.begun, "as soon as it is loaded"


async def test_the_loop_does_not_wait_for_a_session_in_use(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": 1 << 20}) as stage:
        stage.tier.busy, stage.tier.delay_s = True, 0.3
        slow = asyncio.create_task(stage.post(BODY))
        await asyncio.sleep(0.05)
        start = time.perf_counter()
        async with stage.client.get(stage.proxy.url + "/health") as reply:
            assert reply.status == 200
        assert time.perf_counter() - start < 0.2
        assert (await slow)[0] == 200
        assert "kv_transfer_params" in stage.up.chats[-1].json


@pytest.mark.parametrize("moment", ["tokenizing", "before_first_byte", "after_first_byte", "non_stream"])
async def test_client_that_leaves_cancels_the_upstream(tmp_path: Path, moment: str) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": 0}) as stage:
        stage.tier.delay_s = 0.3 if moment == "tokenizing" else 0
        steps: list[dict[str, Any]] = [{"sleep_ms": 5000}, {"send": "data: x\n\n"}]
        if moment == "after_first_byte":
            steps.insert(0, {"send": "data: {}\n\n"})
        stage.up.scripts.append(steps)
        body = {**BODY, "stream": moment != "non_stream"}

        async def ask() -> None:
            async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=body) as reply:
                await reply.content.readany()
                await asyncio.sleep(60)

        task = asyncio.create_task(ask())
        await asyncio.sleep(0.15)
        assert stage.up.script_started.is_set() == (moment != "tokenizing")
        left = asyncio.get_running_loop().time()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        line = (await stage.proxy.logged(1))[0]
        assert "client_gone" in line["flags"]
        if moment == "tokenizing":
            await asyncio.sleep(0.4)
            assert stage.up.chats == []
            stage.up.scripts.clear()
        else:
            async with asyncio.timeout(1):
                while not stage.up.ended:
                    await asyncio.sleep(0.01)
            assert stage.up.ended[0] - left < 1
        assert (await stage.post(BODY))[0] == 200


async def test_miscounted_prompt_ends_ids_until_probed_again(stage: Stage) -> None:
    stage.up.scripts.append([{"send": json.dumps({"choices": [], "usage": {"prompt_tokens": 9999}})}])
    await stage.post(BODY)
    line = (await stage.proxy.logged(1))[0]
    assert line["prompt_tokens_equal"] is False
    assert any(e["event"] == "model_state" and e.get("state") == "unprobed" for e in stage.proxy.events)
    await stage.proxy.settled(State.OK)


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


async def test_keep_alive_survives_refusals(stage: Stage) -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with aiohttp.ClientSession(connector=connector) as one:
        for body in (b"{", json.dumps({**BODY, "input_ids": []}).encode(), json.dumps(BODY).encode()):
            async with one.post(stage.proxy.url + "/v1/chat/completions", data=body) as reply:
                await reply.read()
                assert reply.headers.get("Connection") != "close"
