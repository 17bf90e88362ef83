"""The vLLM profile's rules for tools, arguments and models, and the given cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import data_path
from tests.support.templates import template_of
from tests.support.vllm_profile import TOOL, USER, normalise, refused
from toktier.errors import TemplateFailure
from toktier.profiles.vllm import VllmProfile
from toktier.reasons import Bypass
from toktier.template import ChatTemplate


def cases(name: str) -> list[dict[str, Any]]:
    lines = data_path("cases", "cases.jsonl").read_text(encoding="utf-8").splitlines()
    case = next(case for case in map(json.loads, lines) if case["id"] == name)
    return case["input"].get("bodies") or [case["input"]["body"]]


# --- rule 11: tools ----------------------------------------------------------------------------------------------


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
    assert VllmProfile().renderer_of({"config.json": json.dumps(model).encode()}, {}) == renderer


def test_mistral_is_told_by_its_tokenizer_file() -> None:
    assert VllmProfile().renderer_of({"tekken.json": b"{}"}, {}) == "mistral"
    assert VllmProfile().renderer_of({"tokenizer.model.v3": b""}, {}) == "mistral"
    assert VllmProfile().renderer_of({"config.json": b"not json"}, {}) == "unknown"


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
