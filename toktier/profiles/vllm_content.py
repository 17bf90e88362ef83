"""Rules 5 to 7 of the vLLM profile: a message's content to what the template sees."""

from __future__ import annotations

from typing import Any, Final

from toktier.errors import Unrenderable
from toktier.reasons import Bypass

JOINER: Final = "\n"

MEDIA_KEYS: Final = frozenset(
    {
        "audio_embeds",
        "audio_url",
        "image_embeds",
        "image_pil",
        "image_url",
        "input_audio",
        "input_image",
        "prompt_embeds",
        "video_embeds",
        "video_url",
    }
)
"""Keys that make a part multimodal whatever its type (``renderers/chat_utils.py::_MEDIA_CONTENT_PART_KEYS``)."""

TEXT_KEY: Final = {"text": "text", "refusal": "refusal", "thinking": "thinking", "tool_reference": "name"}
"""Where a part of each supported type holds its text."""

KNOWN_PART_KEYS: Final = MEDIA_KEYS | frozenset(
    {"type", "text", "refusal", "thinking", "closed", "name", "uuid", "data", "file", "prompt_cache_breakpoint"}
)
"""Keys of any part type of vLLM's (``_KNOWN_CONTENT_PART_FIELDS``); the others are passed on in format ``openai``."""

_UNPROVEN_PART_KEYS: Final = frozenset({"uuid", "prompt_cache_breakpoint", "file", "data"})

_NULLABLE_ROLES: Final = frozenset({"assistant", "function"})

_BILLING_HEADER: Final = "x-anthropic-billing-header"

_PLAIN_MESSAGE_KEYS: Final = frozenset({"role", "content", "name", "tool_call_id"})


def content_of(
    message: dict[str, Any], role: str, index: int, as_list: bool, current: bool
) -> str | list[dict[str, Any]]:
    """The content as the template gets it: a string, or a list of parts when ``as_list``.

    ``as_list`` is format ``openai``; ``current`` says that the engine is known to follow rule 6. Raises `Unrenderable`;
    the detail names ``messages[index].content``.
    """
    content = message.get("content")
    if type(content) is str:
        parts: list[Any] = [{"type": "text", "text": content}]
    elif content is None:
        if "content" in message and role not in _NULLABLE_ROLES:
            raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].content is null")
        parts = []
    elif type(content) is list:
        parts = content
    else:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].content")

    out: list[dict[str, Any]] = []
    texts: list[str] = []
    references = False
    for position, part in enumerate(parts):
        kind, text = _read(part, message, index, position)
        if role == "system" and kind == "text" and text.startswith(_BILLING_HEADER):
            if not current:
                raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].content[{position}]")
            text = text.partition("\n")[2]
            if not text:
                continue
        texts.append(text)
        if as_list:
            if kind == "tool_reference":
                references = True
                out.append({"type": kind, "name": text})
            else:
                made = {"type": "text", "text": text}
                if len(part) > 2:
                    made.update((key, value) for key, value in part.items() if key not in KNOWN_PART_KEYS)
                out.append(made)
    if not as_list:
        return JOINER.join(text for text in texts if text)
    if role == "tool" and not references:
        return JOINER.join(texts)
    return out


def _read(part: Any, message: dict[str, Any], index: int, position: int) -> tuple[str, str]:
    """A part's type and text."""
    if type(part) is not dict:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].content[{position}]")
    if not MEDIA_KEYS.isdisjoint(part):
        raise Unrenderable(Bypass.MULTIMODAL, f"messages[{index}].content[{position}]")
    kind = part.get("type")
    key = TEXT_KEY.get(kind) if type(kind) is str else None
    if key is None:
        known_media = type(kind) is str and kind in MEDIA_KEYS
        bypass = Bypass.MULTIMODAL if known_media else Bypass.UNSUPPORTED_MESSAGE
        raise Unrenderable(bypass, f"messages[{index}].content[{position}]")
    text = part.get(key)
    # Which of pydantic's candidates a message is read as matters only for parts that openai's own types lack; they
    # are proven for messages without other keys.
    if (
        type(text) is not str
        or not _UNPROVEN_PART_KEYS.isdisjoint(part)
        or (kind != "text" and not message.keys() <= _PLAIN_MESSAGE_KEYS)
    ):
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE, f"messages[{index}].content[{position}]")
    return str(kind), text
