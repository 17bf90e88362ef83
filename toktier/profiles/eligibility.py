"""Which chat requests can carry IDs at all: the fields that rule it out, whatever the messages hold.

One table per engine, first match wins. A value that is absent or null never rules anything out. Engines coerce
(``"true"``, ``1``, ``"yes"`` are all true to pydantic), so only the exact harmless values are listed and anything
else is a bypass; nothing is guessed about an odd value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from toktier.errors import Unrenderable
from toktier.reasons import Bypass


class FieldRule(NamedTuple):
    """``field`` may be absent, null or one of ``harmless``; else the request is bypassed as ``bypass``."""

    field: str
    bypass: Bypass
    harmless: tuple[object, ...] = ()


COMMON: Final[tuple[FieldRule, ...]] = (
    FieldRule("kv_transfer_params", Bypass.CLIENT_KV_TRANSFER_PARAMS),
    FieldRule("nvext", Bypass.CLIENT_NVEXT),
    FieldRule("echo", Bypass.ECHO, (False,)),
    FieldRule("chat_template", Bypass.REQUEST_TEMPLATE),
    FieldRule("documents", Bypass.DOCUMENTS),
    FieldRule("continue_final_message", Bypass.CONTINUE_FINAL_MESSAGE, (False,)),
    FieldRule("add_generation_prompt", Bypass.NO_GENERATION_PROMPT, (True,)),
    FieldRule("add_special_tokens", Bypass.ADD_SPECIAL_TOKENS, (False, True)),
    FieldRule("truncate_prompt_tokens", Bypass.TRUNCATE_PROMPT_TOKENS),
    FieldRule("use_beam_search", Bypass.BEAM_SEARCH, (False,)),
    FieldRule("return_prompt_text", Bypass.PROMPT_TEXT_ASKED, (False,)),
    FieldRule("mm_processor_kwargs", Bypass.MULTIMODAL),
    FieldRule("media_io_kwargs", Bypass.MULTIMODAL),
)


def check_fields(body: Mapping[str, Any], rules: tuple[FieldRule, ...] = COMMON) -> None:
    """Raises `Unrenderable` for the first field of ``rules`` whose value is neither absent, null nor harmless."""
    for name, bypass, harmless in rules:
        value = body.get(name)
        if value is not None and not any(value is one for one in harmless):
            raise Unrenderable(bypass, name)
