"""From a model's settings to its tier: tokenizer, template, profile. Blocking work of seconds; run it in a thread."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from proxy.config import EMBEDDED_TOKENIZER, Model, Server
from proxy.registry import CannotLoad, Loaded
from toktier.errors import TokTierError
from toktier.profiles import base
from toktier.profiles.sglang import SglangProfile
from toktier.profiles.vllm import VllmProfile
from toktier.reasons import Bypass
from toktier.sessions import SessionStore
from toktier.template import ChatTemplate
from toktier.tier import ModelTier
from toktier.tokenizer import FrozenTokenizer, embedded

PADDING = 4096
"""Engines pad embeddings, so IDs a little over the tokenizer's own are valid there. Where no ``config.json`` says how
many, the bound is the next multiple of this (known paddings: 0 to 1,069)."""


def load_tier(name: str, model: Model, server: Server, store: SessionStore) -> Loaded:
    """The tier of a model with a tokenizer. Raises `CannotLoad`."""
    assert model.tokenizer is not None
    try:
        if model.tokenizer == EMBEDDED_TOKENIZER:
            tokenizer = embedded(cache_dir=server.cache_dir)
        else:
            tokenizer = FrozenTokenizer.load(model.tokenizer, revision=model.revision, cache_dir=server.cache_dir)
    except (TokTierError, OSError) as error:
        raise CannotLoad(Bypass.TOKENIZER_UNAVAILABLE, str(error), final=False) from error
    return assemble(name, model, tokenizer, store)


def assemble(name: str, model: Model, tokenizer: FrozenTokenizer, store: SessionStore) -> Loaded:
    """The tier of a model whose tokenizer is loaded. Raises `CannotLoad`."""
    profile: base.EngineProfile = SglangProfile() if model.profile == "sglang" else VllmProfile()
    renderer = profile.renderer_of(tokenizer.files, tokenizer.config)
    if renderer != "jinja":
        raise CannotLoad(Bypass.RENDERER_NOT_JINJA, f"the engine renders it with {renderer}", final=True)
    try:
        template = ChatTemplate.load(tokenizer, override=model.chat_template)
    except (TokTierError, OSError) as error:
        raise CannotLoad(Bypass.NO_TEMPLATE, str(error), final=False) from error
    if template is None:
        raise CannotLoad(Bypass.NO_TEMPLATE, "set chat_template to the file the engine was started with", final=True)
    settings = base.ProfileSettings(
        default_template_kwargs=model.default_chat_template_kwargs,
        content_format=model.content_format,
        exclude_tools_when_tool_choice_none=model.exclude_tools_when_tool_choice_none,
    )
    size = model.vocab_size or _vocab_size(tokenizer.files, tokenizer.vocab_size)
    versions = {engine.name: engine.version for engine in (tokenizer.reference, tokenizer.window)}
    return Loaded(ModelTier(name, tokenizer, template, profile, settings, store, size), size, versions)


def _vocab_size(files: Mapping[str, bytes], tokenizer: int) -> int:
    """The engine's: from ``config.json`` where it is there, else the tokenizer's with room for padding."""
    try:
        config: Any = json.loads(files["config.json"])
        size = config.get("vocab_size") or config.get("text_config", {}).get("vocab_size")
        if isinstance(size, int) and size >= tokenizer:
            return size
    except (KeyError, ValueError, AttributeError):
        pass
    return -(-tokenizer // PADDING) * PADDING
