"""With and without the proxy: the same answer at temperature 0, streamed or not, and the same prompt for the engine."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from tests.support.engine import Client, Engine, Proxy, Reply
from tools.traces import generate

pytestmark = pytest.mark.engine

SEED, N = 41, 24
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
]
# A strict tool's schema becomes the engine's grammar; without it a forced call may have any arguments.
STRICT = {
    "name": "now",
    "strict": True,
    "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich ☀"}}\n</tool_call>'
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Wie ist das Wetter in Zürich? ☀"}],
    "tools": TOOLS,
    "chat_template_kwargs": {"enable_thinking": False},
}
# The random model prefers white space for ever to closing a bracket; "}", "{}", "}\n" and the end of the turn help.
CLOSE = {
    "logit_bias": {"92": 60, "6257": 60, "532": 60, "151645": 100},
    "tools": [TOOLS[0], {"type": "function", "function": STRICT}],
}
FORCED: dict[str, dict[str, Any]] = {
    "auto": {"structured_outputs": {"choice": [CALL]}},
    "auto parallel": {"structured_outputs": {"choice": [f"{CALL}\n{CALL}"]}},
    "named": {"tool_choice": {"type": "function", "function": {"name": "now"}}} | CLOSE,
    "required": CLOSE | {"tool_choice": "required", "tools": [{"type": "function", "function": STRICT}]},
    "json schema": {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}}},
        }
    },
    "text and call": {"structured_outputs": {"choice": [f"I look it up.\n{CALL}"]}},
    "reasoning, then a call": {
        "structured_outputs": {"choice": [CALL]},
        "logit_bias": {"151668": 100},  # </think>
        "chat_template_kwargs": {"enable_thinking": True},
    },
    "reasoning only": {"chat_template_kwargs": {"enable_thinking": True}},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "two choices": {"n": 2, "seed": 5, "temperature": 1.0},
    "stop": {"structured_outputs": {"choice": ["one two three"]}, "stop": [" three"]},
}
ids = (f"answer-{number}" for number in itertools.count())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("case", FORCED)
def test_forced_answers(engine: Engine, proxy: Proxy, case: str, stream: bool):
    body = ASKED | {"temperature": 0, "max_tokens": 128} | FORCED[case]
    past, through = both(engine, proxy, body, stream)
    assert through == past
    called = [call["function"]["name"] for choice in through["choices"] for call in choice["tool_calls"]]
    assert called == {
        "auto": ["get_weather"],
        "auto parallel": ["get_weather"] * 2,
        "named": ["now"],
        "required": ["now"],
        "text and call": ["get_weather"],
        "reasoning, then a call": ["get_weather"],
    }.get(case, [])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_generated_conversations(engine: Engine, proxy: Proxy, stream: bool):
    seen = set()
    for conversation in generate(SEED, N, long=2):
        body = conversation.steps[-1].body | {"temperature": 0, "max_tokens": 16}
        past, through = both(engine, proxy, body, stream)
        assert through == past, conversation.id
        seen.add(str(through["choices"][0]))
    assert len(seen) >= 0.9 * N  # a model that always says the same would hide a wrong prompt


def both(engine: Engine, proxy: Proxy, body: dict[str, Any], stream: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """The answer past the proxy and the one through it, which must have gone out with IDs."""
    asked = body | {"stream": stream}
    asked.pop("stream_options", None)
    if stream:
        asked["stream_options"] = {"include_usage": True}
    past = answer(engine, engine.post("/v1/chat/completions", asked), stream)
    reply, record = proxy.ask(asked, next(ids))
    through = answer(proxy, reply, stream)
    assert record["bypass"] is None
    assert record["tokens"] == past["usage"]["prompt_tokens"]
    assert record["prompt_tokens_equal"] is True
    return past, through


def answer(sender: Client, reply: Reply, stream: bool) -> dict[str, Any]:
    """What a client makes of a reply, without what differs between any two requests (ids, times, cache hits)."""
    assert reply.status == 200, (sender.url, reply.body)
    if stream:
        return folded(reply.events())
    whole = reply.json()
    choices = []
    for choice in whole["choices"]:
        message = choice["message"]
        calls = [{"function": call["function"]} for call in message.get("tool_calls") or []]
        kept = {key: message.get(key) for key in ("role", "content", "reasoning", "refusal")}
        rest = {key: choice.get(key) for key in ("index", "finish_reason", "stop_reason", "logprobs")}
        choices.append(rest | kept | {"tool_calls": calls})
    return {"choices": choices, "usage": counts(whole["usage"])}


def folded(events: list[Any]) -> dict[str, Any]:
    """The stream put together again: texts joined, calls by their index."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    for event in events:
        usage = event.get("usage") or usage
        for part in event["choices"]:
            empty = {"index": part["index"], "content": "", "reasoning": "", "tool_calls": [], "logprobs": []}
            choice = choices.setdefault(part["index"], empty)
            delta = part["delta"]
            choice["content"] += delta.get("content") or ""
            choice["reasoning"] += delta.get("reasoning") or ""
            choice["role"] = delta.get("role") or choice.get("role")
            choice["logprobs"] += (part.get("logprobs") or {}).get("content") or []
            for key in ("finish_reason", "stop_reason"):
                choice[key] = part.get(key) or choice.get(key)
            for call in delta.get("tool_calls") or []:
                calls = choice["tool_calls"]
                calls += [{"function": {"name": "", "arguments": ""}} for _ in range(call["index"] + 1 - len(calls))]
                for key in ("name", "arguments"):
                    calls[call["index"]]["function"][key] += call["function"].get(key) or ""
    assert usage is not None
    return {"choices": [choices[index] for index in sorted(choices)], "usage": counts(usage)}


def counts(usage: dict[str, Any]) -> dict[str, int]:
    return {key: usage[key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")}
