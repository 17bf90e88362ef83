"""Requests that are odd, and often wrong: where TokTier has IDs they are the engine's, and where the engine refuses it
still refuses when IDs come along. Everything else must be a bypass.

The requests are those of generated conversations with one or two places changed to something that clients, gateways or
tests have been seen to send. The engine renders each (`/v1/chat/completions/render`, the chat route's own code).
"""

from __future__ import annotations

import copy
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.support.engine import Engine
from toktier.errors import InvalidText, Unrenderable
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.sessions import SessionStore
from toktier.template import ChatTemplate
from toktier.tier import ModelTier
from toktier.tokenizer import embedded
from tools.traces import generate

pytestmark = pytest.mark.engine

SEED, N, EACH = 97, 60, 12

CONTENTS: tuple[Any, ...] = (
    *(None, "", [], 5, True, {}, {"type": "text", "text": "x"}, ["plain"], [None], [[]], "\x00", "a\u2028b\ufeff"),
    *([{"type": "text"}], [{"text": "no type"}], [{"type": "text", "text": None}], [{"type": "text", "text": 7}]),
    [{"type": "text", "text": "marked", "cache_control": {"type": "ephemeral"}}],
    [{"type": "text", "text": "a"}, {"type": "text", "text": ""}, {"type": "text", "text": "\n"}],
    [{"type": "refusal", "refusal": "I will not"}],
    [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "so"}],
    [{"type": "output_text", "text": "responses style"}],
    [{"type": "input_text", "text": "responses style"}],
    [{"type": "tool_reference", "name": "bash"}, {"type": "text", "text": "b"}],
    [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}, {"type": "text", "text": "look"}],
    [{"type": "unheard_of", "x": 1}],
    "x-anthropic-billing-header: v=1; h=2;\nrest",
    "<tool_response>\nfake\n</tool_response>",
    "<think>\nhm\n</think>\n\nanswer</think>tail",
)
ARGUMENTS: tuple[Any, ...] = (
    *("{", "nonsense", "[]", '["a"]', '"text"', "5", "null", "true", " ", '{"a":1}x', '{"a":1}{"b":2}', "\ufeff{}"),
    *(
        None,
        {},
        {"a": {"b": 1.0}},
        [],
        ["a"],
        5,
        True,
        '{"a":"\\ud83d"}',
        '{"a":"\\ud83d\\ude00"}',
        "{'a': 1}",
        '{"a":01}',
    ),
    '{"a":' * 50 + "1" + "}" * 50,
    '{"a":1e999,"b":-1e999,"c":1E2,"d":1e22,"e":123456789012345678901234567890.5}',
)
TOOLS: tuple[Any, ...] = (
    *([], None, {}, "none", [{}], [None]),
    [{"type": "function", "function": {"name": "a"}}] * 2,
    [{"type": "function", "function": {"name": "a", "description": None, "parameters": None}}],
    [{"type": "function", "function": {"name": "a", "parameters": {"type": "object", "$defs": {"x": {}}}, "extra": 1}}],
    [{"function": {"name": "no type", "parameters": {}}}],
    [{"type": "function", "function": {"description": "no name"}}],
    [{"type": "function", "name": "flat", "parameters": {}}],
    [{"type": "web_search"}],
    [{"type": "function", "function": {"name": "a", "parameters": {"z": 1, "a": 1.0, "é": "<&>'"}}, "strict": True}],
    [{"type": "function", "function": {"name": 5}}],
    [{"type": "function", "function": {"name": "a", "strict": "yes", "parameters": [1]}}],
    [{"type": "custom", "custom": {"name": "c"}}],
)
FIELDS: tuple[dict[str, Any], ...] = (
    *({"reasoning_effort": effort} for effort in ("none", "minimal", "low", "high", "max", "odd", None, 5)),
    *({"chat_template_kwargs": kwargs} for kwargs in (None, {}, [], {"enable_thinking": None}, {"enable_thinking": 0})),
    {"chat_template_kwargs": {"enable_thinking": "false", "unheard_of": 1}},
    {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "high"},
    {"chat_template_kwargs": {"messages": [], "tools": None}},
    {"chat_template_kwargs": {"add_generation_prompt": False}},
    {"chat_template_kwargs": {"tokenize": True}},
    {"chat_template_kwargs": {"chat_template": "x"}},
    *({"tool_choice": choice} for choice in ("none", "auto", "required", None, "odd", {"type": "function"})),
    {"tool_choice": {"type": "function", "function": {"name": "bash"}}},
    {"add_generation_prompt": True, "continue_final_message": False, "add_special_tokens": False},
    {"add_special_tokens": True},
    {"documents": []},
    {"documents": [{"title": "t", "text": "x"}]},
    {"echo": False},
    {"truncate_prompt_tokens": None},
    {"truncate_prompt_tokens": -1},
    {"mm_processor_kwargs": {}},
    {"response_format": {"type": "json_object"}},
    {"functions": [{"name": "old"}], "function_call": "auto"},
    {"unheard_of": {"x": 1}},
    {"parallel_tool_calls": False},
    {"messages": []},
    {"messages": None},
    {"prompt": "x"},
)


def change(rng: Random, body: dict[str, Any]) -> str:
    """Makes one place of the body odd; says which."""
    messages = body["messages"]
    at = rng.randrange(len(messages)) if messages else 0
    listed = [message.get("tool_calls") for message in messages or []]
    calls = [call for some in listed if isinstance(some, list) for call in some if isinstance(call, dict)]
    kind = rng.choice(("content", "arguments", "tools", "field", "role", "call", "key", "order"))
    if kind == "tools":
        body["tools"] = copy.deepcopy(rng.choice(TOOLS))
    elif kind == "field" or not messages:
        body |= copy.deepcopy(rng.choice(FIELDS))
    elif kind == "content":
        messages[at]["content"] = copy.deepcopy(rng.choice(CONTENTS))
    elif kind == "arguments" and calls:
        rng.choice(calls).get("function", {})["arguments"] = copy.deepcopy(rng.choice(ARGUMENTS))
    elif kind == "call" and calls:
        call = rng.choice(calls)
        action = rng.choice(("id", "type", "function", "name", "extra", "index", "arguments"))
        if action in ("id", "type", "function"):
            call.pop(action, None)
        elif action == "extra":
            call["extra"] = {"x": [1]}
        elif action == "index":
            call["index"] = 0
        elif "function" in call:
            call["function"].pop(action, None)
        return f"call {action}"
    elif kind == "role":
        messages[at]["role"] = rng.choice(
            ("system", "developer", "user", "assistant", "tool", "function", "odd", None, 5)
        )
    elif kind == "order":
        rng.shuffle(messages)
    else:
        key = rng.choice(
            ("name", "tool_calls", "reasoning", "reasoning_content", "refusal", "audio", "task", "odd", "content")
        )
        values = (None, "", "text", [], {}, 5, ["x"])
        if key == "content" or rng.random() < 0.2:
            messages[at].pop(key, None)
        else:
            messages[at][key] = copy.deepcopy(rng.choice(values))
        return f"key {key}"
    return kind


@pytest.fixture(scope="module")
def tier() -> ModelTier:
    tokenizer = embedded()
    template = ChatTemplate.load(tokenizer)
    assert template is not None
    return ModelTier("tiny", tokenizer, template, VllmProfile(), ProfileSettings(), SessionStore(budget_bytes=1 << 30))


def test_odd_requests(engine: Engine, tier: ModelTier):
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for conversation in generate(SEED, N, long=0):
        rng = Random(conversation.id)
        for number in range(EACH):
            body = copy.deepcopy(rng.choice(conversation.steps[:6]).body)
            body.pop("stream_options", None)
            body["stream"] = False
            changed = [change(rng, body) for _ in range(rng.choice((1, 1, 2)))]
            outcome = judge(engine, tier, body)
            outcomes[outcome] += 1
            if outcome.startswith("wrong"):
                wrong.append(f"{conversation.id} {number} {changed}: {outcome}")
    assert not wrong, "\n".join(wrong)
    assert outcomes["equal"] >= 0.35 * N * EACH, outcomes
    assert outcomes["both refuse"] > 0, outcomes
    assert outcomes["bypass"] > 0, outcomes


def judge(engine: Engine, tier: ModelTier, body: dict[str, Any]) -> str:
    """`equal`, `both refuse`, `bypass`, or `wrong...`."""
    try:
        ids = tier.prepare("tenant", body).ids.tolist()
    except (Unrenderable, InvalidText):
        return "bypass"
    rendered = engine.post("/v1/chat/completions/render", body)
    if rendered.status == 200:
        return "equal" if rendered.json()["token_ids"] == ids else "wrong: other IDs"
    with_ids = body | {"max_tokens": 1, "kv_transfer_params": {"prompt_token_ids": ids}}
    status = engine.post("/v1/chat/completions", with_ids).status
    return "both refuse" if status == rendered.status else f"wrong: {rendered.status} as text, {status} with IDs"
