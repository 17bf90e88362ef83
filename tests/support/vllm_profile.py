"""What the tests of the vLLM profile share: normalising a body, and short ways to write messages."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.templates import EVERY_KEY
from toktier.errors import Unrenderable
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest

PROFILE = VllmProfile()
KEYS = ChatTemplate({"default": EVERY_KEY})
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}
Message = dict[str, Any]


def normalise(body: dict[str, Any], template: ChatTemplate = KEYS, **settings: Any) -> RenderRequest:
    """The result, after checking that the client's body was left alone."""
    before = copy.deepcopy(body)
    made = PROFILE.normalise(body, template, ProfileSettings(**{"engine_version": "0.32.0", **settings}))
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


USER = [{"role": "user", "content": "q"}]
