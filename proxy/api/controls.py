"""The policy ``control_tokens = "reject"``: no client text may hold the literal of a special token.

Invariants
1. It is asked before anything is rendered, and of bypassed requests too: whoever renders the text would make a control
   token of the literal.
2. While the literals are not known (no tokenizer is loaded yet), nothing passes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.errors import ApiError

_LISTS = ("messages", "tools", "documents")
_MEMBERS = ("chat_template_kwargs", "reasoning_effort")


def not_loaded() -> ApiError:
    """503: what is to be refused is not known yet."""
    return ApiError(
        503,
        "This model refuses control tokens in messages, and its tokenizer is not loaded.",
        kind="server_error",
        code="model_not_loaded",
        headers={"Retry-After": "1"},
    )


def refuse_control_tokens(body: Mapping[str, Any], control: re.Pattern[bytes] | None) -> None:
    """400 for the first message, tool or template argument that holds what ``control`` finds."""
    if control is None:
        return
    for name in _LISTS:
        items = body.get(name)
        for number, item in enumerate(items if isinstance(items, list) else ()):
            _refuse(item, f"{name}[{number}]", control)
    for name in _MEMBERS:
        _refuse(body.get(name), name, control)


def _refuse(value: Any, place: str, control: re.Pattern[bytes]) -> None:
    for text in _strings(value):
        if control.search(text.encode("utf-8", "surrogatepass")) is not None:
            raise ApiError(
                400,
                f"{place} holds the literal of a control token, which this model does not take.",
                param=place,
                code="control_token_in_content",
            )


def _strings(value: Any) -> Iterator[str]:
    """All text that can come out of ``value`` when it is rendered.

    Arguments of tool calls are JSON in a string, which engines read before they render it. Text parts may be joined
    without anything between them.
    """
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            pending += item
            yield "".join(part["text"] for part in item if isinstance(part, dict) and isinstance(part.get("text"), str))
        elif isinstance(item, dict):
            pending += item.keys()
            pending += item.values()
            arguments = item.get("arguments")
            if isinstance(arguments, str) and "\\" in arguments:
                try:
                    pending.append(json.loads(arguments))
                except (ValueError, RecursionError):
                    continue  # it stays a string, and has been looked at as one
