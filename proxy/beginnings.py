"""How the model's replies began: whether a template writes down again what the model wrote.

An engine's prefix cache holds the IDs of its reply as the model made them. The client sends the reply back as a
message, and the template writes that message its own way (without the thinking, with other line ends, with its own
form of a tool call). Where the two differ the cache ends at the last prompt. The log then says `template_vs_model`, so
that nobody looks for an edit of the client's.

Diagnostic only. Where a reply does not show what the model wrote (a parser took tool calls or the thinking out of it),
nothing is said.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from toktier.prepared import CONTINUED

_SESSIONS = 4096
_ANOTHER_FORM = ("tool_calls", "reasoning_content", "reasoning", "refusal", "audio", "function_call")


class Beginning:
    """The first characters of one reply's text, as far as the reply tells. ``text`` is None where it does not."""

    __slots__ = ("open", "text")

    def __init__(self) -> None:
        self.text: str | None = None
        self.open = True
        """Whether it may still come."""

    def take(self, reply: Mapping[str, Any]) -> None:
        """A whole reply, or an event of a streamed one, in the order in which they come."""
        choices = reply.get("choices")
        first = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(first, dict) or first.get("index", 0) != 0:
            return
        part = first.get("message") or first.get("delta")
        if not isinstance(part, dict):
            return
        content = part.get("content")
        if any(part.get(name) for name in _ANOTHER_FORM):
            self.open = False
        elif isinstance(content, str) and content:
            self.text, self.open = content[:CONTINUED], False


class Beginnings:
    """Those of the last replies of some thousand sessions. For the event loop's thread only."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, str] = OrderedDict()

    def note(self, session: str, text: str | None) -> None:
        """The session's last reply began with ``text``; None: it cannot be said."""
        self._texts.pop(session, None)
        if text is not None:
            self._texts[session] = text
            if len(self._texts) > _SESSIONS:
                self._texts.popitem(last=False)

    def differs(self, session: str, continued: str) -> bool:
        """Whether the text goes on otherwise (`Prepared.continued`) than the session's last reply."""
        text = self._texts.get(session)
        return text is not None and bool(continued) and not continued.startswith(text)
