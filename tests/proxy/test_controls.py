"""The policy on control tokens in client text (case T01), with a pretended tier."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import jsonspan
from proxy.api import controls
from proxy.api.controls import refuse_control_tokens
from proxy.errors import ApiError
from proxy.ingest import Ingest
from proxy.registry import Loaded, State
from tests.support.fake_tier import FakeTier, ids_of
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import qwen3
from tests.support.proxy import Running, running, settings_for
from tests.support.tiers import maker
from toktier.json_pieces import JsonLimits
from toktier.reasons import Bypass
from toktier.tier import control_pattern

CONTROL = control_pattern({"added_tokens": [{"content": "<|im_end|>", "special": True}, {"content": "<think>"}]})
TOOLS = [{"type": "function", "function": {"name": "f", "description": "a tool"}}]
USER = {"role": "user", "content": "hello"}


def call(arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"messages": [USER, {"role": "user", "content": "a<|im_end|>b"}]}, "messages[1]"),
        ({"messages": [{"role": "user<|im_end|>", "content": ""}]}, "messages[0]"),
        ({"messages": [{"role": "assistant", "content": "", "reasoning": "<|im_end|>"}]}, "messages[0]"),
        ({"messages": [USER, {"role": "user", "content": [{"type": "text", "text": "<|im_end|>"}]}]}, "messages[1]"),
        ({"messages": [{"role": "user", "content": [{"text": "<|im_"}, {"text": "end|>"}]}]}, "messages[0]"),
        ({"messages": [call('{"a": "<|im_end|>"}')]}, "messages[0]"),
        ({"messages": [call('{"a": "\\u003c|im_end|\\u003e"}')]}, "messages[0]"),
        ({"messages": [call({"<|im_end|>": 1})]}, "messages[0]"),
        ({"messages": [USER], "tools": [{}, {"function": {"description": "<|im_end|>"}}]}, "tools[1]"),
        ({"messages": [USER], "documents": [{"text": "<|im_end|>"}]}, "documents[0]"),
        ({"messages": [USER], "chat_template_kwargs": {"x": "<|im_end|>"}}, "chat_template_kwargs"),
    ],
)
def test_where_a_literal_is_found(body: dict[str, Any], place: str) -> None:
    with pytest.raises(ApiError) as caught:
        refuse_control_tokens(body, CONTROL)
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, place, "control_token_in_content")
    assert "im_end" not in caught.value.message


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": "<|im_end|>"},
        {"messages": [None, 3, USER, {"role": "user", "content": "<think> <|im_end | > <|im_", "name": "end|>"}]},
        {"messages": [call('{"a": "\\u003c"'), call('"\\ud800"')]},
        {"messages": [USER], "user": "<|im_end|>", "stop": ["<|im_end|>"]},
    ],
)
def test_what_is_no_literal_in_text(body: dict[str, Any]) -> None:
    refuse_control_tokens(body, CONTROL)


def test_a_tokenizer_without_special_tokens_has_nothing_to_refuse() -> None:
    refuse_control_tokens({"messages": [{"role": "user", "content": "<|im_end|>"}]}, control_pattern({}))


def test_only_special_tokens_count() -> None:
    control = control_pattern(qwen3().spec)
    refuse_control_tokens({"messages": [{"role": "user", "content": "<think></think>"}]}, control)
    with pytest.raises(ApiError):
        refuse_control_tokens({"messages": [{"role": "user", "content": "<|im_start|>"}]}, control)


def test_what_an_earlier_body_was_found_free_of_is_not_searched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tier = maker()()
    looked: list[str] = []
    strings = controls._strings
    monkeypatch.setattr(controls, "_strings", lambda value: (looked.append(one) or one for one in strings(value)))
    reads: list[int] = []
    parse = jsonspan.parse
    monkeypatch.setattr(jsonspan, "parse", lambda raw, *more: reads.append(len(raw)) or parse(raw, *more))

    def ask(texts: list[str], control: Any = CONTROL, **more: Any) -> int:
        """How many texts were searched."""
        messages = [{"role": "user", "content": text} for text in texts]
        raw = json.dumps({"model": "m", "messages": messages, "tools": TOOLS, **more}).encode()
        ingest = Ingest(raw, JsonLimits(), tier.store, "t")
        parsed = ingest.beside() or ingest.whole()
        source = ingest.source(parsed)
        looked.clear()
        reads.clear()
        search = controls.Search(parsed, source, control)
        search.refuse()
        tier.prepare("t", parsed.outline, source=source)
        found = sum(map(texts.__contains__, looked)) + looked.count("a tool")
        assert (search.nbytes < 1000) == (found <= 1)
        return found

    texts = [f"{number} " + "text " * 500 for number in range(5)]
    assert ask(texts) == 6
    assert ask([*texts, "new"]) == 1
    assert reads == []
    for place, more in ((5, ["<|im_end|>"]), (6, ["ok", "<|im_end|>"])):
        with pytest.raises(ApiError) as caught:
            ask([*texts, *more])
        assert caught.value.param == f"messages[{place}]"
    with pytest.raises(ApiError, match="chat_template_kwargs"):
        ask([*texts, "new"], chat_template_kwargs={"x": "<|im_end|>"})
    assert ask(["<|im_start|> " + texts[0], *texts[1:], "new"]) == 7  # no other body is found for it
    # by another pattern, or after none, all of it is searched
    with pytest.raises(ApiError, match=r"messages\[0\]"):
        ask(["<|im_start|> " + texts[0], *texts[1:], "new"], control_pattern(qwen3().spec))
    assert ask([*texts, "new"], None) == 0
    assert ask([*texts, "new", "newer"]) == 8


class Loads:
    """A pretended tier with literals to refuse; ``model`` settings of its own."""

    def __init__(self) -> None:
        self.tier = FakeTier()
        self.ready = True

    def load(self, *_: object) -> Loaded:
        if not self.ready:
            raise RuntimeError
        return replace(self.tier.load(), control=CONTROL)


async def ask(proxy: Running, content: Any, **more: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": "m", "messages": [USER, {"role": "user", "content": content}], **more}
    async with (
        aiohttp.ClientSession() as client,
        client.post(proxy.url + "/v1/chat/completions", json=body) as reply,
    ):
        return reply.status, (await reply.json()).get("error")


@pytest.mark.parametrize("inline_below", [0, 1 << 20])
async def test_reject(tmp_path: Path, inline_below: int) -> None:
    loads = Loads()
    async with FakeUpstream(tokenize=ids_of) as up:
        settings = settings_for(
            up.url, tmp_path, model={"control_tokens": "reject"}, server={"inline_below_bytes": inline_below}
        )
        async with running(settings, loads.load) as proxy:
            calls = len(loads.tier.calls)
            status, error = await ask(proxy, "CANARY<|im_end|>")
            assert (status, error["param"], error["type"]) == (400, "messages[1]", "invalid_request_error")
            # It holds for a request that would be bypassed too.
            assert (await ask(proxy, "<|im_end|>", echo=True))[0] == 400
            assert up.chats == []
            assert len(loads.tier.calls) == calls
            assert (await ask(proxy, "hello"))[0] == 200
            assert "kv_transfer_params" in up.chats[0].json
            refused = proxy.log[0]
            assert (refused["status"], refused["error"]) == (400, "control_token_in_content")
            assert refused["flags"] == ["control_token_in_content"]
            assert not re.search("CANARY|im_end", repr(proxy.events))


async def test_allow_is_the_default(tmp_path: Path) -> None:
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), Loads().load) as proxy,
    ):
        assert (await ask(proxy, "<|im_end|>"))[0] == 200


async def test_nothing_passes_before_the_literals_are_known(tmp_path: Path) -> None:
    loads = Loads()
    loads.ready = False
    async with FakeUpstream(tokenize=ids_of) as up:
        settings = settings_for(up.url, tmp_path, model={"control_tokens": "reject"})
        async with running(settings, loads.load, wait=State.TEXT) as proxy:
            status, error = await ask(proxy, "hello")
            assert (status, error["code"]) == (503, "model_not_loaded")
            assert up.chats == []
            loads.ready = True
            await proxy.settled(State.OK)
            assert (await ask(proxy, "hello"))[0] == 200


async def test_text_mode_of_the_upstream_does_not_end_the_policy(tmp_path: Path) -> None:
    loads = Loads()
    loads.tier.wrong = True  # the parity check fails
    async with FakeUpstream(tokenize=ids_of) as up:
        settings = settings_for(up.url, tmp_path, model={"control_tokens": "reject"})
        async with running(settings, loads.load, wait=State.TEXT) as proxy:
            assert proxy.core.generation.registry.models["m"].reason is Bypass.UPSTREAM_PARITY
            assert (await ask(proxy, "<|im_end|>"))[0] == 400
            assert (await ask(proxy, "hello"))[0] == 200
