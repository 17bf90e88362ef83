"""What the embedded engine says: a script of turns, and which turn answers which conversation.

A script is JSON:

    {"turns": [
       {"text": "...", "reasoning": "...", "tool_calls": [{"name": "read", "arguments": "{\\"path\\": \\"a\\"}"}]},
       {"when": "write a title", "text": "A title"},
       {"text": "late", "delay_s": 0.2, "piece_delay_s": 0.01, "failures": [{"status": 503}, {"cut_after": 2}]}
    ]}

The choice looks at the conversation only, so retries, forks and an engine's probes disturb nothing: the first turn
whose marker ``when`` stands in a message's text, otherwise the n-th turn without a marker, where n is the number of
assistant messages so far, otherwise the default reply. A turn's ``failures`` are used up first, one a request.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class Call(BaseModel):
    """One tool call; ``arguments`` is the exact string that goes over the wire."""

    model_config = ConfigDict(extra="forbid")
    name: str
    arguments: str = "{}"
    id: str | None = None


class Failure(BaseModel):
    """One failed attempt: an HTTP status instead of an answer, or a connection that is cut after so many events."""

    model_config = ConfigDict(extra="forbid")
    status: int = 500
    message: str = "scripted failure"
    headers: dict[str, str] = {}
    cut_after: int | None = None


class Turn(BaseModel):
    """One reply."""

    model_config = ConfigDict(extra="forbid")
    when: str | None = None
    text: str | None = None
    reasoning: str | None = None
    tool_calls: list[Call] = []
    delay_s: float = 0.0
    piece_delay_s: float = 0.0
    failures: list[Failure] = Field(default_factory=list)


DEFAULT = Turn(text="This is the embedded engine's simulator speaking; it has no model and nothing more to say.")


class Script(BaseModel):
    """The turns, in order, and the reply to a conversation that has outrun them."""

    model_config = ConfigDict(extra="forbid")
    turns: list[Turn] = Field(default_factory=list)
    default: Turn = DEFAULT

    @classmethod
    def load(cls, path: Path) -> Script:
        """Read a script; raises ``ValueError`` that names the place of an unknown or wrong key."""
        return cls.model_validate(json.loads(path.read_text(encoding="utf-8")))

    def choose(self, messages: Sequence[Mapping[str, Any]]) -> Turn:
        """The turn that answers this conversation."""
        texts = list(message_texts(messages))
        for turn in self.turns:
            if turn.when is not None and any(turn.when in text for text in texts):
                return turn
        plain = [turn for turn in self.turns if turn.when is None]
        index = sum(message.get("role") == "assistant" for message in messages)
        return plain[index] if index < len(plain) else self.default


def message_texts(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Every text in the messages' contents."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text
