"""The SGLang profile rule by rule, as its docstring numbers them. SGLang itself needs a GPU and is not run here."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from tests.conftest import data_path
from tests.support.templates import EVERY_KEY, template_of
from toktier.errors import Unrenderable
from toktier.profiles.base import ProfileSettings
from toktier.profiles.sglang import SglangProfile
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest

PROFILE = SglangProfile()
KEYS = ChatTemplate({"default": EVERY_KEY})
USER = {"role": "user", "content": "q"}


def normalise(body: dict[str, Any], template: ChatTemplate = KEYS, **settings: Any) -> RenderRequest:
    before = copy.deepcopy(body)
    made = PROFILE.normalise(body, template, ProfileSettings(**settings))
    assert body == before
    return made


def one(message: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return normalise({"messages": [message, USER]}, **settings).messages[0]


def refused(body: dict[str, Any], template: ChatTemplate = KEYS) -> Bypass:
    with pytest.raises(Unrenderable) as raised:
        normalise(body, template)
    return raised.value.bypass


def text(value: str, **extra: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **extra}


def calling(arguments: Any, **extra: Any) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function, **extra}]}


@pytest.mark.parametrize(
    "field", ["reasoning", "reasoning_effort", "max_dynamic_patch", "echo", "documents", "continue_final_message"]
)
def test_fields_that_rule_ids_out(field: str) -> None:
    assert isinstance(refused({"messages": [USER], field: "low"}), Bypass)


def test_known_keys_stay_in_order_and_null_ones_go() -> None:
    wire = {"name": "n", "role": "assistant", "reasoning_content": "r", "reasoning": "no", "content": None, "x": 1}
    assert list(one(wire).items()) == [
        ("role", "assistant"),
        ("content", ""),
        ("name", "n"),
        ("reasoning_content", "r"),
    ]
    assert one({"role": "user", "content": "x", "name": "n", "tool_call_id": "c"}) == {"role": "user", "content": "x"}
    assert one({"role": "tool", "content": "x", "tool_call_id": "c"})["tool_call_id"] == "c"


def test_parts_are_joined_by_a_blank() -> None:
    parts = [text("a", cache_control={}), text(""), text("b")]
    assert one({"role": "user", "content": parts}, content_format="string")["content"] == "a  b"
    assert one({"role": "tool", "content": parts}, content_format="openai")["content"] == "a  b"
    openai = one({"role": "user", "content": parts}, content_format="openai")["content"]
    assert openai == [text("a"), text(""), text("b")]


def test_a_string_stays_a_string_in_both_formats() -> None:
    for content_format in ("string", "openai"):
        assert one({"role": "user", "content": "x"}, content_format=content_format)["content"] == "x"


@pytest.mark.parametrize(
    ("source", "as_list"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for p in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for turn in messages %}{% for p in turn.content %}{% endfor %}{% endfor %}", False),
        ("{# vision #}", True),
        ("{% for x in y %}{% for p in message['content'] %}{% endfor %}{% endfor %}", True),
    ],
)
def test_the_content_format_is_sglangs_own(source: str, as_list: bool) -> None:
    body = {"messages": [{"role": "user", "content": [text("a")]}]}
    made = normalise(body, ChatTemplate({"default": source})).messages[0]["content"]
    assert made == ([text("a")] if as_list else "a")


def test_tool_calls_are_dumped_with_their_nulls() -> None:
    (made,) = one(calling('{"b": 1, "a": {}}'))["tool_calls"]
    expected = {"id": "c", "index": None, "type": "function", "function": {"name": "f", "arguments": {"b": 1, "a": {}}}}
    assert json.dumps(made) == json.dumps(expected)
    assert one(calling({"a": 1}, index=0))["tool_calls"][0]["index"] == 0
    assert one({"role": "assistant", "content": "x", "tool_calls": []})["tool_calls"] == []


@pytest.mark.parametrize("arguments", ["", "null", "[]", "{bad", '{"x": NaN}', '{"s": "\\ud800"}', None, 5])
def test_arguments_that_sglang_refuses_are_a_bypass(arguments: Any) -> None:
    assert refused({"messages": [calling(arguments), USER]}) is Bypass.UNSUPPORTED_MESSAGE


@pytest.mark.parametrize(
    "messages",
    [
        [],
        None,
        [{"role": "assistant", "content": "the last one"}],
        [{"role": "custom", "content": "x"}],
        [{"role": "System", "content": "x"}, USER],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "assistant", "content": "x", "prefix": True}, USER],
        [{"role": "system", "content": "x", "tools": []}, USER],
        [{"role": "tool", "content": "x", "tool_call_id": 5}, USER],
    ],
)
def test_odd_messages_are_not_proven(messages: Any) -> None:
    assert refused({"messages": messages}) is Bypass.UNSUPPORTED_MESSAGE


def test_media_are_multimodal() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:,"}}
    assert refused({"messages": [{"role": "user", "content": [part]}]}) is Bypass.MULTIMODAL


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (
            {"type": "function", "function": {"parameters": {}, "x": 1, "name": "f"}},
            {
                "type": "function",
                "function": {"parameters": {}, "name": "f", "description": None},
                "defer_loading": None,
            },
        ),
        (
            {"function": {"name": "f", "strict": True}, "defer_loading": True},
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "strict": True,
                    "description": None,
                    "parameters": None,
                    "defer_loading": True,
                },
                "defer_loading": True,
            },
        ),
    ],
)
def test_tools_keep_the_clients_order(wire: dict[str, Any], expected: dict[str, Any]) -> None:
    """The expected values are what SGLang 0.5.23's own model classes dumped."""
    assert json.dumps(normalise({"messages": [USER], "tools": [wire]}).tools) == json.dumps([expected])


def test_tool_choice_picks_the_tools() -> None:
    def names(choice: Any) -> list[str] | None:
        tools = [{"type": "function", "function": {"name": name}} for name in ("a", "b")]
        made = normalise({"messages": [USER], "tools": tools, "tool_choice": choice}).tools
        return None if made is None else [tool["function"]["name"] for tool in made]

    assert names(None) == names("auto") == names("required") == ["a", "b"]
    assert names("none") is None
    assert names({"type": "function", "function": {"name": "b"}}) == ["b"]
    with pytest.raises(Unrenderable):
        names({"type": "function", "function": {"name": "c"}})


@pytest.mark.parametrize(
    "schema", [{"type": "varchar"}, {"properties": {"a": {"type": "Int"}}}, {"items": [{"type": ["string", "string"]}]}]
)
def test_schemas_that_sglang_would_rewrite_are_not_proven(schema: dict[str, Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert refused({"messages": [USER], "tools": tools}) is Bypass.UNSUPPORTED_TOOLS


def test_all_arguments_pass_null_included() -> None:
    given = {"messages": [USER], "chat_template_kwargs": {"foo": None, "unused": 1}}
    made = normalise(given, default_template_kwargs={"foo": 1, "enable_thinking": False}).kwargs
    assert made == {"foo": None, "unused": 1, "enable_thinking": False, "add_generation_prompt": True}
    for name in ("tools", "reasoning_effort", "padding"):
        assert refused({"messages": [USER], "chat_template_kwargs": {name: 1}}) is Bypass.UNSUPPORTED_KWARGS


def test_one_template_only() -> None:
    named = ChatTemplate({"default": "a", "tool_use": "b"})
    assert refused({"messages": [USER]}, named) is Bypass.NO_TEMPLATE


@pytest.mark.parametrize(
    ("model", "renderer"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "jinja"),
        ({"model_type": "gpt_oss"}, "harmony"),
        ({"architectures": ["DeepseekV4ForCausalLM"]}, "dsv4"),
        ({"architectures": ["GlmMoeDsaForCausalLM"]}, "glm53"),
    ],
)
def test_models_that_sglang_renders_with_code(model: dict[str, Any], renderer: str) -> None:
    assert PROFILE.renderer_of({"config.json": json.dumps(model).encode()}, {}) == renderer


def test_case_j04_joins_tool_parts_by_a_blank() -> None:
    lines = data_path("cases", "cases.jsonl").read_text(encoding="utf-8").splitlines()
    case = next(case for case in map(json.loads, lines) if case["id"] == "J04")
    template = template_of("qwen3")
    tool = template.render(normalise(case["input"]["bodies"][1], template))
    assert f"10525{case['expected']['assert']['joiner']['sglang_tool']}x" in tool
    assert "[{" not in tool


def test_arguments_with_very_many_values_are_not_proven() -> None:
    """orjson would hold up every other thread for them."""
    for values, proven in ((100_000, True), (100_002, False)):
        wire = {"messages": [calling(json.dumps({"a": [1] * values})), USER]}
        if proven:
            assert normalise(wire).messages[0]["tool_calls"][0]["function"]["arguments"] == {"a": [1] * values}
        else:
            assert refused(wire) is Bypass.UNSUPPORTED_MESSAGE
