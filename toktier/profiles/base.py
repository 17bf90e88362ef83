"""What an engine profile is: the written rules by which one engine turns a chat body into a template's arguments.

An engine does not hand a client's messages to the chat template as they came: it validates, renames, joins, parses,
drops. A profile repeats that, so that our prompt equals the engine's own. Two rules hold for every profile:

1. A profile either returns what the engine would pass to the template, or raises `Unrenderable`. Where the engine
   would answer an error *while rendering*, it raises too: with IDs attached the engine would not render, and so
   would answer 200 in place of its error. (An error while it validates the body comes before the IDs matter.)
2. The returned structure is new as far down as the profile changes anything; the client's objects are not changed.
   Unchanged leaves (strings, parsed tool schemas) are shared, never copied.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from toktier.errors import TemplateFailure, Unrenderable
from toktier.known import Known
from toktier.template import ChatTemplate, RenderRequest

__all__ = ["EngineProfile", "ProfileSettings", "RenderRequest", "TemplateFailure", "Unrenderable", "renderer_of"]


@dataclass(frozen=True, slots=True)
class ProfileSettings:
    """The engine's start-up choices that change a prompt. They must be set as the engine's are."""

    default_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """vLLM ``--default-chat-template-kwargs``."""

    content_format: Literal["auto", "string", "openai"] = "auto"
    """vLLM ``--chat-template-content-format``."""

    exclude_tools_when_tool_choice_none: bool = False
    """vLLM ``--exclude-tools-when-tool-choice-none``."""

    engine_version: str | None = None
    """As the engine reports it; None when unknown."""


class EngineProfile(Protocol):
    """The rules of one engine. Stateless and thread-safe."""

    name: str

    def adds_special_tokens(self, body: Mapping[str, Any]) -> bool:
        """Whether the engine encodes the rendered prompt of ``body`` with ``add_special_tokens=True``."""
        ...

    def renderer_of(self, files: Mapping[str, bytes], config: Mapping[str, Any]) -> str:
        """``jinja``, or the name of the code with which this engine renders the model instead of a template.

        ``files`` are the model's small files by name (``config.json`` among them), ``config`` is the parsed
        ``tokenizer_config.json``.
        """
        ...

    def normalise(
        self,
        body: Mapping[str, Any],
        template: ChatTemplate,
        settings: ProfileSettings,
        known: Known | None = None,
    ) -> RenderRequest:
        """What the engine passes to the template for ``body`` (parsed by ``json.loads``). Raises `Unrenderable`.

        ``known``: messages in its runs are those of another request. They need not be in ``body``: what was made of
        them is taken over; where that was by other rules, it raises `OtherRules`. The tools are taken over where they
        are the very object.
        """
        ...


def renderer_of(files: Mapping[str, bytes], named: Callable[[object], str | None]) -> str:
    """``jinja``, or the code that an engine renders this model with; ``named`` tells it by an architecture's name.

    A Mistral repository is told by its own tokenizer file (``tekken.json``, ``tokenizer.model.v*``); engines ask for
    consolidated weights as well, which are not seen here, so this errs on the side of a bypass.
    """
    if any(name == "tekken.json" or name.startswith("tokenizer.model.v") for name in files):
        return "mistral"
    try:
        model = json.loads(files.get("config.json", b"{}"))
    except ValueError:
        return "unknown"
    if not isinstance(model, dict):
        return "unknown"
    if model.get("model_type") == "gpt_oss":
        return "harmony"
    architectures = model.get("architectures")
    for architecture in architectures if isinstance(architectures, list) else ():
        if (renderer := named(architecture)) is not None:
            return renderer
    return "jinja"
