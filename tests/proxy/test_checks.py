"""What a chat request must be whatever becomes of it."""

from __future__ import annotations

import json

import pytest

from proxy.api.checks import refuse_surrogates
from proxy.errors import ApiError
from proxy.jsonspan import parse


def body(arguments: str) -> bytes:
    """``arguments`` as they stand between quotes in the request."""
    before, after = json.dumps(
        {
            "messages": [
                {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "?"}}]}
            ]
        }
    ).split("?")
    return (before + arguments + after).encode()


@pytest.mark.parametrize(
    "escape",
    [
        "\\\\ud800",
        "\\u005cud800",
        "\\u005CuDFFF",
        "\\\\\\u0075d800",
        "\\\\u\\u0064800",
        "\\\\u\\u0044800",
        "\\\\ud\\u0038\\u0030\\u0030",
        "\\\\u\\u0064\\u0062ff",
    ],
)
def test_a_surrogate_in_arguments_is_found_however_it_is_written(escape: str) -> None:
    raw = body('{\\"a\\":\\"' + escape + '\\"}')
    (call,) = json.loads(raw)["messages"][0]["tool_calls"]
    inner = json.loads(call["function"]["arguments"])["a"]
    assert len(inner) == 1
    assert "\ud800" <= inner <= "\udfff"
    with pytest.raises(ApiError) as caught:
        refuse_surrogates(parse(raw))
    assert caught.value.code == "invalid_unicode"


@pytest.mark.parametrize("escape", ["\\\\ud83d\\\\ude00", "\\u005cu0041", "\\u003cb\\u003e", "u0064800"])
def test_whole_characters_pass(escape: str) -> None:
    refuse_surrogates(parse(body('{\\"a\\":\\"' + escape + '\\"}')))
