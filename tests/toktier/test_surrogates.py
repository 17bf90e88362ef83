"""Lone surrogates are found where they stand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from toktier.surrogates import find_surrogate


def body(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text)
    return parsed


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (r'{"messages": [{"content": "ok \ud83d\ude00"}, {"content": "bad \ud83d end"}]}', ("messages[1].content", 4)),
        (r'{"messages": [{"content": [{"type": "text", "text": "\udfff"}]}]}', ("messages[0].content[0].text", 0)),
        (r'{"messages": [{"role": "user", "name": "n\udc00"}]}', ("messages[0].name", 1)),
        (r'{"tools": [{"function": {"parameters": {"a\ud800": {}}}}]}', ("tools[0].function.parameters{key}", 1)),
        (r'{"tools": [{"function": {"parameters": {"a b": "\ud800"}}}]}', ("tools[0].function.parameters.{0}", 0)),
        (r'{"\ud800": 1}', ("{key}", 0)),
        (
            r'{"messages": [{"tool_calls": [{"function": {"arguments": "{\"a\": \"x\\ud800\"}"}}]}]}',
            ("messages[0].tool_calls[0].function.arguments.a", 1),
        ),
    ],
)
def test_each_place(text: str, place: tuple[str, int]) -> None:
    assert find_surrogate(body(text)) == place


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        r'{"messages": [{"content": "\ud83d\ude00 한국어 \uffff \u0000"}]}',
        r'{"messages": [{"content": "the text \\ud800 is no surrogate"}]}',
        r'{"messages": [{"tool_calls": [{"function": {"arguments": "{\"a\": \"\\ud83d\\ude00\"}"}}]}]}',
        r'{"messages": [{"tool_calls": [{"function": {"arguments": "no json \\ud800"}}]}]}',
        r'{"messages": [{"tool_calls": [{"function": {"arguments": "\"\\ud800\""}}]}]}',
        r'{"tools": [{"function": {"parameters": {"arguments": "\"\\ud800\""}}}]}',
        '{"n": [123456789012345678901234567890, 1e308, NaN, true, null, -0.0, 60653, 41197]}',
    ],
)
def test_nothing_to_find(text: str) -> None:
    assert find_surrogate(body(text)) is None


@pytest.mark.parametrize("depth", [1500, 5000])
def test_a_body_that_nests_deeper_than_calls_can(depth: int) -> None:
    deep: dict[str, Any] = {"last": "\udfff"}
    for _ in range(depth):
        deep = {"a": deep}
    assert find_surrogate({"deep": deep}) == (f"deep.{'a.' * depth}last", 0)
    assert find_surrogate({"deep": deep["a"], "user": "x\ud800"}) == (f"deep.{'a.' * (depth - 1)}last", 0)
    assert find_surrogate({"user": "x\ud800", "deep": deep}) == ("user", 1)
