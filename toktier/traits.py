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
    """``string``, ``none``, types of parts, ``calls``, ``reasoning`` and ``reasoning_content``."""


_known: dict[tuple[str, ...], Traits] = {}
"""One object for all messages of a kind, of which there are few."""


def traits_of(message: Mapping[str, Any]) -> Traits:
    """Those of one well-formed message, the same object for every message of its kind. About a microsecond."""
    role = message["role"]
    found = [role if role in _ROLES else "other"]
    content = message.get("content")
    if isinstance(content, str):
        found.append("string")
    elif isinstance(content, list):
        kinds = [part.get("type") for part in content if isinstance(part, Mapping)]
        found += sorted({kind if isinstance(kind, str) and kind in _PARTS else "other" for kind in kinds})
    else:
        found.append("none")
    if message.get("tool_calls"):
        found.append("calls")
    found += [name for name in ("reasoning", "reasoning_content") if name in message]
    key = tuple(found)
    traits = _known.get(key)
    if traits is None:
        traits = _known.setdefault(key, Traits(frozenset(key[:1]), frozenset(key[1:])))
    return traits


def together(kinds: Iterable[Traits]) -> Traits:
    """Those of messages of these kinds. A few nanoseconds for each that is an object seen before."""
    different = {id(one): one for one in kinds}.values()
    return Traits(
        frozenset().union(*(one.roles for one in different)), frozenset().union(*(one.contents for one in different))
    )
