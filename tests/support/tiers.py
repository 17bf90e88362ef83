"""A tier over the shipped tokenizer, and short ways to ask it; every answer is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.support.models import qwen3
from toktier.chunks import GpuPath
from toktier.postprocessor import SpecialTokens
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.quarantine import Quarantine
from toktier.sessions import SessionStore
from toktier.template import ChatTemplate
from toktier.tier import ModelTier, Prepared

Body = dict[str, Any]
LONG = "the quick brown fox, 1234 times; " * 200


def maker() -> Callable[..., ModelTier]:
    """Makes tiers; arguments that are left out are as the model has them."""
    tokenizer = qwen3()
    own = ChatTemplate.load(tokenizer)
    assert own is not None

    def tier(
        template: str | None = None,
        vocab_size: int | None = None,
        store: SessionStore | None = None,
        special: SpecialTokens | None = None,
        quarantine: Quarantine | None = None,
        gpu: GpuPath | None = None,
    ) -> ModelTier:
        used = own if template is None else ChatTemplate({"default": template})
        sessions = SessionStore(10**9) if store is None else store
        rules, settings = VllmProfile(), ProfileSettings()
        return ModelTier("m", tokenizer, used, rules, settings, sessions, vocab_size, special, quarantine, gpu)

    return tier


def ask(tier: ModelTier, body: Body, **arguments: Any) -> Prepared:
    """Prepare, and check the IDs against the reference on a render of its own."""
    prepared = tier.prepare(arguments.pop("tenant", "t"), body, **arguments)
    request = tier.profile.normalise(body, tier.template, tier.settings)
    text = tier.template.render(request)
    assert np.array_equal(prepared.ids, tier.tokenizer.reference.encode(text))
    assert prepared.text == text
    assert json.loads(b"".join(prepared.json())) == prepared.ids.tolist()
    assert prepared.chars == len(text)
    assert prepared.messages == len(body["messages"])
    assert prepared.stages.keys() == {"normalise", "match", "render", "splice", "serialise"}
    assert not prepared.ids.flags.writeable
    return prepared


def say(role: str, content: str, **more: Any) -> Body:
    return {"role": role, "content": content, **more}


def tool(name: str, description: str = "d") -> Body:
    function = {"name": name, "description": description, "parameters": {"type": "object"}}
    return {"type": "function", "function": function}


def body(*messages: Body, **more: Any) -> Body:
    return {"model": "m", "messages": list(messages), **more}
