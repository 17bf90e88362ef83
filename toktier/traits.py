"""What kinds of messages a request has: roles, and kinds of content. No text, and a small, fixed number of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_PARTS = frozenset({"text", "refusal", "thinking", "tool_reference"})


class Traits(NamedTuple):
    """Names that are not known here count as ``other``, so that clients cannot make kinds without end."""

    roles: frozenset[str]
    contents: frozenset[str]
    """``string``, ``none``, types of parts, ``calls`` and ``reasoning``."""

    def with_(self, other: Traits) -> Traits:
        return Traits(self.roles | other.roles, self.contents | other.contents)


def traits_of(messages: Iterable[Mapping[str, Any]]) -> Traits:
    """Those of well-formed messages. Under a microsecond a message."""
    roles: set[str] = set()
    contents: set[str] = set()
    for message in messages:
        role = message["role"]
        roles.add(role if role in _ROLES else "other")
        content = message.get("content")
        if isinstance(content, str):
            contents.add("string")
        elif isinstance(content, list):
            kinds = [part.get("type") for part in content if isinstance(part, Mapping)]
            contents |= {kind if isinstance(kind, str) and kind in _PARTS else "other" for kind in kinds}
        else:
            contents.add("none")
        if message.get("tool_calls"):
            contents.add("calls")
        if "reasoning" in message or "reasoning_content" in message:
            contents.add("reasoning")
    return Traits(frozenset(roles), frozenset(contents))
