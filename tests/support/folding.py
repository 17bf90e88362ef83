"""Sequences of requests rendered incrementally and in full, side by side."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toktier.folding import Fallback, Folded, FoldState, Unfoldable
from toktier.template import ChatTemplate, RenderRequest
from tools.folding.differential import outcome

Messages = list[Any]


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def assistant(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **more}


def tool(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


def calls(*identities: str) -> list[dict[str, Any]]:
    return [{"id": one, "type": "function", "function": {"name": f"f_{one}", "arguments": {}}} for one in identities]


TALK = [user("a"), assistant("b"), user("c"), assistant("d"), user("e"), assistant("f"), user("g")]


def prefixes(*sizes: int) -> list[Messages]:
    """Of `TALK`."""
    return [TALK[:size] for size in sizes]


@dataclass
class Seen:
    """What came of a sequence: for each request, the iterations that ran, or why it was rendered in full."""

    iterations: list[int] = field(default_factory=list)
    fallbacks: list[Fallback | None] = field(default_factory=list)
    mismatches: list[tuple[str, str]] = field(default_factory=list)
    """(incremental, full)"""
    changed: list[int] = field(default_factory=list)


def folded(source: str) -> Folded:
    made = Folded.of(ChatTemplate({"default": source}))
    assert isinstance(made, Folded), made
    return made


def unfoldable(source: str) -> Unfoldable:
    made = Folded.of(ChatTemplate({"default": source}))
    assert isinstance(made, Unfoldable)
    return made


def run(source: str, requests: Iterable[Messages | tuple[Messages, dict[str, Any]]]) -> Seen:
    """One session. Each request is made of objects of its own, as a parser makes them. A template that is not folded
    has no session: nothing is compared."""
    template = ChatTemplate({"default": source})
    made = Folded.of(template)
    seen = Seen()
    if isinstance(made, Unfoldable):
        return seen
    state = FoldState(made)
    for one in requests:
        messages, kwargs = one if isinstance(one, tuple) else (one, {})
        request, again = (_request(messages, kwargs) for _ in range(2))

        def incremental(request: RenderRequest = request) -> str:
            rendered = state.render(request)
            seen.iterations.append(rendered.iterations)
            seen.fallbacks.append(rendered.fell_back)
            seen.changed.append(rendered.first_changed_chunk)
            return rendered.chunks.text()

        got, wanted = outcome(incremental), outcome(lambda again=again: template.render(again))
        if got != wanted:
            seen.mismatches.append((got[1], wanted[1]))
    return seen


def _request(messages: Sequence[Any], kwargs: dict[str, Any]) -> RenderRequest:
    copied = json.loads(json.dumps([messages, kwargs]))
    tools = copied[1].pop("tools", None)
    return RenderRequest(copied[0], tools, copied[1])
