"""The policy ``control_tokens = "reject"``: no client text may hold the literal of a special token.

Invariants
1. It is asked before anything is rendered, and of bypassed requests too: whoever renders the text would make a control
   token of the literal.
2. While the literals are not known (no tokenizer is loaded yet), nothing passes.
3. What a body shares with one that the very same pattern found nothing in is not searched again: it is the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from proxy.errors import ApiError
from proxy.jsonspan import Parsed
from toktier.known import Source

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


class Search:
    """For what ``control`` finds, in a body that was read as ``parsed``; ``source``: what its session is to keep."""

    def __init__(self, parsed: Parsed, source: Source | None, control: re.Pattern[bytes] | None) -> None:
        self._parsed, self._source, self._control = parsed, source, control
        before = None if source is None else source.before
        self._known = before is not None and control is not None and before.free_of is control
        self._values: Mapping[str, Any] = before.body.outline if self._known and before is not None else {}

    @property
    def nbytes(self) -> int:
        """About the bytes that are looked at."""
        if self._control is None:
            return 0
        return self._parsed.read if self._known else len(self._parsed.raw)

    def refuse(self) -> None:
        """Raises as `refuse_control_tokens`; else the source tells the next body's search what not to look at."""
        if self._control is None:
            return
        parsed = self._parsed
        refuse_control_tokens(parsed.outline if self._known else parsed.value, self._control, self._values)
        if self._source is not None:
            self._source.free_of = self._control


def refuse_control_tokens(
    body: Mapping[str, Any], control: re.Pattern[bytes] | None, free: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """400 for the first message, tool or template argument that holds what ``control`` finds.

    The very objects of ``free`` are known to hold none.
    """
    if control is None:
        return
    for name in _LISTS:
        items = body.get(name)
        if items is free.get(name):
            continue
        for number, item in enumerate(items if isinstance(items, list) else ()):
            _refuse(item, f"{name}[{number}]", control)
    for name in _MEMBERS:
        if body.get(name) is not free.get(name):
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
