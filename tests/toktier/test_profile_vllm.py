"""The vLLM profile's rules for messages. That they are vLLM's own is shown by tests/engine/test_vllm_rules.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.templates import CHATML
from tests.support.vllm_profile import TOOL, USER, Message, assistant, call, normalise, one, refused, text
from toktier.errors import Unrenderable
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest

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


@pytest.mark.parametrize("version", [None, "0.31.0", "nightly"])
def test_shapes_that_older_versions_treat_otherwise_need_a_known_version(version: str | None) -> None:
    def refuses(message: Message) -> bool:
        try:
            normalise({"messages": [message]}, engine_version=version)
        except Unrenderable:
            return True
        return False

    assert refuses(assistant(call("{bad")))
    assert refuses(assistant(call("[]")))
    assert refuses({"role": "system", "content": "x-anthropic-billing-header: v\nrest"})
    assert not refuses(assistant(call("null")))
    assert not refuses(assistant(call("")))
    newer = one({"role": "system", "content": "x-anthropic-billing-header: v\nrest"}, engine_version="0.33.1.dev3+g1")
    assert newer["content"] == "rest"


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
    assert made.systems == (0,)
    assert [made.wire_place(at) for at in range(2)] == [0, 1]


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
    assert [made.wire_place(at) for at in range(3)] == [1, 0, 3]
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


# --- cost ----------------------------------------------------------------------------------------------------------


def test_plain_messages_share_their_strings() -> None:
    long: Callable[[int], str] = lambda i: f"{i}" * 1000  # noqa: E731
    wire = [{"role": "user", "content": long(i)} for i in range(10)]
    made = normalise({"messages": wire}).messages
    assert all(new["content"] is old["content"] and new is not old for new, old in zip(made, wire, strict=True))


@pytest.mark.parametrize(
    "arguments", ['{"a":"' + "x, \\n漢" * 9_000 + '"}', '{"a":[' + "1," * 40_000 + "1]}", "[" * 40_000]
)
def test_long_arguments_are_read_as_short_ones(monkeypatch: pytest.MonkeyPatch, arguments: str) -> None:
    """In pieces, since they may be megabytes; `json` would hold up every other thread for them."""

    def outcome() -> Any:
        try:
            return one(assistant(call(arguments)))["tool_calls"][0]["function"]["arguments"]
        except Unrenderable as error:
            return error.bypass

    in_pieces = outcome()
    monkeypatch.setattr("toktier.profiles.vllm_tools.LONG", 1 << 30)
    assert in_pieces == outcome()


def test_arguments_with_very_many_values_are_not_proven() -> None:
    assert (
        refused({"messages": [assistant(call('{"a":[' + "1," * 1_100_000 + "1]}")), USER]})
        is Bypass.UNSUPPORTED_MESSAGE
    )
