"""Which chat requests can carry IDs at all: the fields that rule it out, whatever the messages hold.

One table per engine, first match wins. A value that is absent never rules anything out; null does where the engine's
field is a plain bool: vLLM refuses such a request, and another engine may take null for false. Engines coerce
(``"true"``, ``1``, ``"yes"`` are all true to pydantic), so only the exact harmless values are listed and anything
else is a bypass; nothing is guessed about an odd value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from toktier.errors import Unrenderable
from toktier.reasons import Bypass


class FieldRule(NamedTuple):
    """``field`` may be absent or one of ``harmless``, null too where it is ``nullable``; else the request is bypassed
    as ``bypass``."""

    field: str
    bypass: Bypass
    harmless: tuple[object, ...] = ()
    nullable: bool = True


def plain(field: str, bypass: Bypass, *harmless: bool) -> FieldRule:
    """For a bool that may not be null (vLLM 0.27.1 to 0.32, ``chat_completion/protocol.py``)."""
    return FieldRule(field, bypass, harmless, nullable=False)


COMMON: Final[tuple[FieldRule, ...]] = (
    FieldRule("kv_transfer_params", Bypass.CLIENT_KV_TRANSFER_PARAMS),
    FieldRule("nvext", Bypass.CLIENT_NVEXT),
    plain("echo", Bypass.ECHO, False),
    FieldRule("chat_template", Bypass.REQUEST_TEMPLATE),
    FieldRule("documents", Bypass.DOCUMENTS),
    plain("continue_final_message", Bypass.CONTINUE_FINAL_MESSAGE, False),
    plain("add_generation_prompt", Bypass.NO_GENERATION_PROMPT, True),
    plain("add_special_tokens", Bypass.ADD_SPECIAL_TOKENS, False, True),
    FieldRule("truncate_prompt_tokens", Bypass.TRUNCATE_PROMPT_TOKENS),
    plain("use_beam_search", Bypass.BEAM_SEARCH, False),
    FieldRule("return_prompt_text", Bypass.PROMPT_TEXT_ASKED, (False,)),
    FieldRule("mm_processor_kwargs", Bypass.MULTIMODAL),
    FieldRule("media_io_kwargs", Bypass.MULTIMODAL),
)


def check_fields(body: Mapping[str, Any], rules: tuple[FieldRule, ...] = COMMON) -> None:
    """Raises `Unrenderable` for the first field of ``rules`` whose value is neither absent nor harmless."""
    for name, bypass, harmless, nullable in rules:
        value = body.get(name)
        if value is None and (nullable or name not in body):
            continue
        if not any(value is one for one in harmless):
            raise Unrenderable(bypass, name)
