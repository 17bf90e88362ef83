"""The vLLM profile rule by rule. That the rules are vLLM's own is shown by tests/engine/test_vllm_rules.py."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.conftest import data_path
from tests.support.templates import CHATML, EVERY_KEY, template_of
from toktier.errors import TemplateFailure, Unrenderable
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile, renderer_of
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest

PROFILE = VllmProfile()
KEYS = ChatTemplate({"default": EVERY_KEY})
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
Message = dict[str, Any]


def normalise(body: dict[str, Any], template: ChatTemplate = KEYS, **settings: Any) -> RenderRequest:
    """The result, after checking that the client's body was left alone."""
    before = copy.deepcopy(body)
    made = PROFILE.normalise(body, template, ProfileSettings(**settings))
    assert body == before
    return made


def one(message: Message, **kwargs: Any) -> Message:
    (made,) = normalise({"messages": [message]}, **kwargs).messages
    return made


def refused(body: dict[str, Any], template: ChatTemplate = KEYS, **settings: Any) -> Bypass:
    with pytest.raises(Unrenderable) as raised:
        normalise(body, template, **settings)
    return raised.value.bypass


def text(value: str, **extra: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **extra}


def call(arguments: Any = "{}", **extra: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}, **extra}


def assistant(*calls: dict[str, Any], **extra: Any) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": list(calls), **extra}


def cases(name: str) -> list[dict[str, Any]]:
    lines = data_path("cases", "cases.jsonl").read_text(encoding="utf-8").splitlines()
    case = next(case for case in map(json.loads, lines) if case["id"] == name)
    return case["input"].get("bodies") or [case["input"]["body"]]


# --- rules 2 to 4: keys ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_reaches_the_template_under_both_names(key: str) -> None:
    made = one({"role": "assistant", "content": "x", key: "why"})
    assert made == {"role": "assistant", "content": "x", "reasoning": "why", "reasoning_content": "why"}


def test_reasoning_wins_over_reasoning_content_unless_it_is_null() -> None:
    both = {"role": "assistant", "content": "", "reasoning": "a", "reasoning_content": "b"}
    assert one(both)["reasoning_content"] == "a"
    assert one({**both, "reasoning": None})["reasoning"] == "b"
    assert one({**both, "reasoning": ""})["reasoning"] == ""


def test_other_roles_have_no_reasoning() -> None:
    assert one({"role": "user", "content": "x", "reasoning": "r"}) == {"role": "user", "content": "x"}


def test_unknown_keys_go_and_name_and_task_stay() -> None:
    made = one({"role": "user", "task": "t", "foo": 1, "content": "x", "name": "n", "refusal": None})
    assert list(made.items()) == [("role", "user"), ("content", "x"), ("name", "n"), ("task", "t")]


def test_a_tool_message_keeps_its_call_id() -> None:
    made = one({"role": "tool", "tool_call_id": "c", "content": "x", "name": "n", "is_error": True})
    assert made == {"role": "tool", "content": "x", "tool_call_id": "c", "name": "n"}


def test_known_keys_of_a_tool_call_come_first_and_unknown_ones_stay() -> None:
    wire = {"index": 0, "type": "function", "function": {"z": 1, "name": "f", "arguments": "{}"}, "id": "c"}
    (made,) = one(assistant(wire))["tool_calls"]
    assert list(made) == ["id", "function", "type", "index"]
    assert list(made["function"]) == ["arguments", "name", "z"]


# --- rules 5 to 8: content ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": ""}, {"content": []}])
def test_null_missing_and_empty_content_are_one(message: Message) -> None:
    assert one({"role": "assistant", **message})["content"] == ""
    assert one({"role": "assistant", "content": None, "reasoning": "r"})["reasoning"] == "r"


def test_in_format_openai_no_parts_and_an_empty_text_differ() -> None:
    assert one({"role": "assistant", "content": None}, content_format="openai")["content"] == []
    assert one({"role": "assistant", "content": ""}, content_format="openai")["content"] == [text("")]


def test_null_content_is_for_assistants_and_functions() -> None:
    assert refused({"messages": [{"role": "user", "content": None}]}) is Bypass.UNSUPPORTED_MESSAGE
    assert one({"role": "function", "name": "f", "content": None})["content"] == ""


def test_texts_are_joined_by_newlines_without_the_empty_ones() -> None:
    parts = [text("a"), text(""), text("b", cache_control={"type": "ephemeral"})]
    assert one({"role": "user", "content": parts})["content"] == "a\nb"


def test_in_format_openai_parts_keep_their_unknown_keys() -> None:
    parts = [{"x": 1, "text": "a", "type": "text", "name": "dropped"}, text("b")]
    made = one({"role": "user", "content": parts}, content_format="openai")["content"]
    assert made == [text("a", x=1), text("b")]
    assert list(made[0]) == ["type", "text", "x"]


def test_in_format_openai_a_tool_message_becomes_a_string() -> None:
    parts = [text("a"), text(""), text("b")]
    assert one({"role": "tool", "content": parts}, content_format="openai")["content"] == "a\n\nb"
    assert one({"role": "tool", "content": "a"}, content_format="openai")["content"] == "a"


def test_tool_references_keep_a_tool_message_structured() -> None:
    parts = [text("a"), {"type": "tool_reference", "name": "f"}]
    message = {"role": "tool", "tool_call_id": "c", "content": parts}
    assert one(message)["content"] == "a\nf"
    assert one(message, content_format="openai")["content"] == parts


def test_refusal_and_thinking_are_text() -> None:
    parts = [{"type": "refusal", "refusal": "no"}, {"type": "thinking", "thinking": "hm", "closed": True}]
    assert one({"role": "assistant", "content": parts})["content"] == "no\nhm"
    assert one({"role": "assistant", "content": parts}, content_format="openai")["content"] == [text("no"), text("hm")]


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ("x-anthropic-billing-header: v=1; cch=0;", ""),
        ("x-anthropic-billing-header: v=1\nrest\nmore", "rest\nmore"),
        ([text("x-anthropic-billing-header: v=1"), text("rest")], "rest"),
        ("say x-anthropic-billing-header", "say x-anthropic-billing-header"),
    ],
)
def test_a_billing_header_leaves_the_system_message(wire: Any, expected: str) -> None:
    assert one({"role": "system", "content": wire})["content"] == expected
    joined = wire if isinstance(wire, str) else "\n".join(part["text"] for part in wire)
    assert one({"role": "user", "content": wire})["content"] == joined


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:,"}},
        {"type": "input_audio", "input_audio": {}},
        {"type": "text", "text": "x", "image_url": None},
        {"type": "video_url"},
    ],
)
def test_media_are_multimodal(part: dict[str, Any]) -> None:
    assert refused({"messages": [{"role": "user", "content": [text("a"), part]}]}) is Bypass.MULTIMODAL


@pytest.mark.parametrize(
    "part",
    [
        "plain",
        None,
        5,
        {},
        {"type": "input_text", "text": "x"},
        text("x", uuid="u"),
        {"type": "text", "text": None},
        {"type": "file", "file": {}},
        {"type": []},
    ],
)
def test_other_parts_are_not_proven(part: Any) -> None:
    assert refused({"messages": [{"role": "user", "content": [part]}]}) is Bypass.UNSUPPORTED_MESSAGE


# --- rule 9: tool calls ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        ('{ "b" : 1,  "a": [1.0, 1e3, null] }', {"b": 1, "a": [1.0, 1000.0, None]}),
        ("", {}),
        ("null", {}),
        ("[1]", {}),
        ("42", {}),
        ('{"a": 1', {}),
        ('{"a": 1} x', {}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"n": 12345678901234567890123}', {"n": 12345678901234567890123}),
    ],
)
def test_arguments_become_an_object(wire: str, expected: dict[str, Any]) -> None:
    (made,) = one(assistant(call(wire)))["tool_calls"]
    assert made["function"]["arguments"] == expected
    assert list(made["function"]["arguments"]) == list(expected)


@pytest.mark.parametrize("arguments", ['{"a":' * 200 + "1" + "}" * 200, "[" * 100_000, '{"n": 1' + "0" * 5000 + "}"])
def test_arguments_near_the_interpreters_limits_are_not_proven(arguments: str) -> None:
    assert refused({"messages": [assistant(call(arguments))]}) is Bypass.UNSUPPORTED_MESSAGE


def test_wide_arguments_are_fine() -> None:
    wide = json.dumps({"rows": [{"a": [i]} for i in range(500)]})
    assert len(one(assistant(call(wide)))["tool_calls"][0]["function"]["arguments"]["rows"]) == 500


@pytest.mark.parametrize("calls", [None, []])
def test_no_tool_calls_are_dropped(calls: Any) -> None:
    assert "tool_calls" not in one({"role": "assistant", "content": "x", "tool_calls": calls})


@pytest.mark.parametrize(
    "wire",
    [
        call({}),
        call(None),
        call(5),
        {**call(), "id": None},
        {**call(), "type": "custom"},
        {"id": "c", "function": {"name": "f", "arguments": "{}"}},
        {**call(), "function": None},
        {**call(), "function": {"arguments": "{}"}},
        None,
    ],
)
def test_odd_tool_calls_are_not_proven(wire: Any) -> None:
    assert refused({"messages": [assistant(wire)]}) is Bypass.UNSUPPORTED_MESSAGE


# --- rule 10: developer ------------------------------------------------------------------------------------------


def roles(made: RenderRequest) -> list[str]:
    return [message["role"] for message in made.messages]


def test_a_lone_leading_developer_becomes_system() -> None:
    made = normalise(
        {"messages": [{"role": "developer", "content": "d", "name": "n"}, {"role": "user", "content": "q"}]}
    )
    assert made.messages[0] == {"role": "system", "content": "d", "name": "n"}
    assert made.wire_index is None


def test_more_system_messages_are_merged_at_the_front() -> None:
    wire = [
        {"role": "user", "content": "q"},
        {"role": "developer", "content": [text("a"), text("b")], "name": "lost"},
        {"role": "system", "content": ""},
        {"role": "assistant", "content": "x"},
        {"role": "system", "content": "c"},
    ]
    made = normalise({"messages": wire})
    assert made.messages[0] == {"role": "system", "content": "a\nb\n\nc"}
    assert roles(made) == ["system", "user", "assistant"]
    assert made.wire_index == [1, 0, 3]
    assert normalise({"messages": wire}, content_format="openai").messages[0]["content"] == "a\nb\n\nc"


def test_without_a_developer_nothing_is_merged() -> None:
    wire = [{"role": "system", "content": "a"}, {"role": "user", "content": "q"}, {"role": "system", "content": "b"}]
    assert roles(normalise({"messages": wire})) == ["system", "user", "system"]


def test_a_template_that_knows_developers_keeps_them() -> None:
    template = ChatTemplate({"default": CHATML + "{# 'developer' #}"})
    made = normalise({"messages": [{"role": "user", "content": "q"}, {"role": "developer", "content": "d"}]}, template)
    assert roles(made) == ["user", "developer"]


def test_developer_tools_are_not_proven() -> None:
    with_tools = {"messages": [{"role": "developer", "content": "d", "tools": [TOOL]}]}
    assert refused(with_tools) is Bypass.UNSUPPORTED_MESSAGE
    reads = ChatTemplate({"default": "{% for m in messages %}{{ 'developer' }}{{ m.tools }}{% endfor %}"})
    assert refused({"messages": [{"role": "developer", "content": "d"}]}, reads) is Bypass.UNSUPPORTED_MESSAGE


# --- rule 11: tools ----------------------------------------------------------------------------------------------

USER = [{"role": "user", "content": "q"}]


@pytest.mark.parametrize(
    ("wire", "expected"),
    [
        (TOOL, TOOL),
        (
            {"function": {"parameters": None, "x": 1, "name": "f"}, "cache_control": {}},
            {"type": "function", "function": {"name": "f", "description": None, "parameters": None}},
        ),
        (
            {"function": {"strict": False, "name": "f"}, "defer_loading": True},
            {
                "type": "function",
                "function": {
                    "name": "f",
                    "description": None,
                    "parameters": None,
                    "strict": False,
                    "defer_loading": True,
                },
                "defer_loading": True,
            },
        ),
        (
            {"function": {"name": "f", "defer_loading": False}, "defer_loading": None},
            {
                "type": "function",
                "function": {"name": "f", "description": None, "parameters": None, "defer_loading": False},
            },
        ),
    ],
)
def test_tools_are_dumped_in_the_engines_order(wire: dict[str, Any], expected: dict[str, Any]) -> None:
    made = normalise({"messages": USER, "tools": [wire]}).tools
    assert json.dumps(made) == json.dumps([expected])


def test_schemas_keep_their_key_order_and_are_shared() -> None:
    schema = {"z": 1, "a": {"y": [], "b": None}}
    made = normalise({"messages": USER, "tools": [{"function": {"name": "f", "parameters": schema}}]}).tools
    assert made is not None
    assert made[0]["function"]["parameters"] is schema


def test_tool_choice_none_drops_the_tools_only_where_the_server_says_so() -> None:
    body = {"messages": USER, "tools": [TOOL], "tool_choice": "none"}
    assert normalise(body).tools == [TOOL]
    assert normalise(body, exclude_tools_when_tool_choice_none=True).tools is None
    for choice in ("auto", "required", None):
        assert normalise({**body, "tool_choice": choice}, exclude_tools_when_tool_choice_none=True).tools == [TOOL]


@pytest.mark.parametrize(
    "tools",
    [
        [],
        {},
        "x",
        [None],
        [{}],
        [{"type": "custom", "function": {"name": "f"}}],
        [{"function": {"name": 5}}],
        [{"function": {"name": "f", "description": 5}}],
        [{"function": {"name": "f", "parameters": []}}],
        [{"function": {"name": "f", "strict": "true"}}],
    ],
)
def test_odd_tools_are_not_proven(tools: Any) -> None:
    assert refused({"messages": USER, "tools": tools}) is Bypass.UNSUPPORTED_TOOLS


# --- rules 12 and 13: arguments ----------------------------------------------------------------------------------


def kwargs(body: dict[str, Any], **settings: Any) -> dict[str, Any]:
    made = normalise({"messages": USER, **body}, **settings).kwargs
    assert made.pop("add_generation_prompt") is True
    return made


def test_only_the_templates_variables_pass() -> None:
    given = {"foo": [1], "bar": 1, "enable_thinking": False, "namespace": 1, "add_generation_prompt": False}
    assert kwargs({"chat_template_kwargs": given}) == {"foo": [1], "enable_thinking": False}


def test_defaults_are_overridden_but_not_by_null_or_auto() -> None:
    defaults = {"foo": "d", "enable_thinking": False}
    assert kwargs({}, default_template_kwargs=defaults) == defaults
    given = {"foo": None, "enable_thinking": "auto"}
    assert kwargs({"chat_template_kwargs": given}, default_template_kwargs=defaults) == defaults
    assert kwargs({"chat_template_kwargs": {"foo": 0}}, default_template_kwargs=defaults)["foo"] == 0


@pytest.mark.parametrize(("effort", "thinks"), [("none", False), ("low", True), ("max", True)])
def test_an_effort_turns_thinking_on_or_off(effort: str, thinks: bool) -> None:
    assert kwargs({"reasoning_effort": effort}) == {"reasoning_effort": effort, "enable_thinking": thinks}
    given = {"chat_template_kwargs": {"enable_thinking": None, "reasoning_effort": "high"}, "reasoning_effort": effort}
    assert kwargs(given) == {"reasoning_effort": effort}


@pytest.mark.parametrize("name", ["tools", "messages", "documents", "padding", "tokenize", "conversation"])
def test_arguments_that_are_no_plain_variable_are_not_proven(name: str) -> None:
    for value in (None, 1):
        assert refused({"messages": USER, "chat_template_kwargs": {name: value}}) is Bypass.UNSUPPORTED_KWARGS


@pytest.mark.parametrize("body", [{"chat_template_kwargs": []}, {"reasoning_effort": "x"}, {"reasoning_effort": 0.5}])
def test_odd_arguments_are_not_proven(body: dict[str, Any]) -> None:
    assert refused({"messages": USER, **body}) is Bypass.UNSUPPORTED_KWARGS


def test_a_template_among_the_arguments_is_a_request_template() -> None:
    assert refused({"messages": USER, "chat_template_kwargs": {"chat_template": "x"}}) is Bypass.REQUEST_TEMPLATE


# --- messages that are not proven --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "x",
        [None],
        [{"content": "x"}],
        [{"role": None, "content": "x"}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": {"type": "text"}}],
        [{"role": "user", "content": "x", "name": None}],
        [{"role": "tool", "content": "x", "tool_call_id": None}],
        [{"role": "assistant", "content": "x", "reasoning": {}}],
        [{"role": "assistant", "content": "x", "tool_calls": {}}],
        [{"role": "user", "content": "x", "author": {"role": "user"}}],
    ],
)
def test_odd_messages_are_not_proven(messages: Any) -> None:
    assert refused({"messages": messages}) is Bypass.UNSUPPORTED_MESSAGE


@pytest.mark.parametrize("source", ["{% for m in messages %}{{ m.thinking }}{% endfor %}", "{{ messages | tojson }}"])
def test_reasoning_is_not_proven_where_transformers_versions_would_show(source: str) -> None:
    body = {"messages": [{"role": "assistant", "content": "x", "reasoning": "r"}]}
    assert refused(body, ChatTemplate({"default": source})) is Bypass.UNSUPPORTED_MESSAGE
    assert normalise({"messages": USER}, ChatTemplate({"default": source})).messages == USER


def test_a_detail_never_holds_text_of_the_request() -> None:
    body = {"messages": [{"role": "user", "content": ["SECRET"]}]}
    with pytest.raises(Unrenderable) as raised:
        normalise(body)
    assert str(raised.value) == "unsupported_message: messages[0].content[0]"


# --- which models --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "renderer"),
    [
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, "jinja"),
        ({"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"}, "harmony"),
        ({"architectures": ["DeepseekV3ForCausalLM"]}, "jinja"),
        ({"architectures": ["DeepseekV32ForCausalLM"]}, "deepseek_v32"),
        ({"architectures": ["KimiK3ForConditionalGeneration"]}, "kimi_k3"),
        ({}, "jinja"),
        ([], "unknown"),
    ],
)
def test_models_that_the_engine_renders_with_code(model: Any, renderer: str) -> None:
    assert renderer_of({"config.json": json.dumps(model).encode()}, {}) == renderer


def test_mistral_is_told_by_its_tokenizer_file() -> None:
    assert renderer_of({"tekken.json": b"{}"}, {}) == "mistral"
    assert renderer_of({"tokenizer.model.v3": b""}, {}) == "mistral"
    assert renderer_of({"config.json": b"not json"}, {}) == "unknown"


# --- given cases ---------------------------------------------------------------------------------------------------


def rendered(template: ChatTemplate, body: dict[str, Any]) -> str:
    return template.render(normalise(body, template))


def test_case_j02_null_empty_and_absent_content() -> None:
    texts = {rendered(template_of("qwen3"), body) for body in cases("J02")}
    (only,) = texts
    assert "None" not in only
    assert only.count("<|im_start|>") == 5  # system (tools), user, assistant, tool, generation prompt


def test_case_j04_content_parts() -> None:
    template = template_of("qwen3")
    parts, tool = (rendered(template, body) for body in cases("J04"))
    assert "one\ntwo" in parts
    assert "10525\nx" in tool
    assert "[{" not in parts + tool
    string = {"messages": [{"role": "user", "content": "one\ntwo"}]}
    assert rendered(template, string) == parts


def test_case_j06_a_template_that_refuses_is_a_bypass() -> None:
    (body,) = cases("J06")
    refuses = "{% if not loop.first and m.role == 'system' %}{{ raise_exception('must be first') }}{% endif %}"
    template = ChatTemplate({"default": "{% for m in messages %}" + refuses + "{% endfor %}"})
    with pytest.raises(TemplateFailure) as raised:
        rendered(template, body)
    assert raised.value.bypass is Bypass.TEMPLATE_ERROR


def test_case_j07_an_appended_message_is_not_appended_text() -> None:
    template = template_of("qwen3")
    first, second, _ = (
        rendered(template, {**body, "chat_template_kwargs": {"enable_thinking": False}}) for body in cases("J07")
    )
    assert not second.startswith(first)  # the generation prompt's empty think block is no part of the history
    assert "because" not in second
    answered = cases("J07")[1]["messages"][:2]
    assert "because" in rendered(template, {"messages": answered})


def test_case_j08_what_reaches_the_template_tells_requests_apart() -> None:
    made = [normalise(body, template_of("qwen3")) for body in cases("J08")]
    keys = [json.dumps(one.kwargs, sort_keys=True) for one in made]
    assert made[2].kwargs["enable_thinking"] is True
    assert len({keys[0], keys[1], keys[3]}) == 3


def test_case_j11_tools_keep_their_order() -> None:
    template = template_of("qwen3")
    texts = [rendered(template, body) for body in cases("J11")]
    assert len(set(texts)) == 4
    assert texts[0].index('"name": "a"') < texts[0].index('"name": "b"')
    assert texts[1].index('"name": "b"') < texts[1].index('"name": "a"')


# --- cost ----------------------------------------------------------------------------------------------------------


def test_plain_messages_share_their_strings() -> None:
    long: Callable[[int], str] = lambda i: f"{i}" * 1000  # noqa: E731
    wire = [{"role": "user", "content": long(i)} for i in range(10)]
    made = normalise({"messages": wire}).messages
    assert all(new["content"] is old["content"] and new is not old for new, old in zip(made, wire, strict=True))
