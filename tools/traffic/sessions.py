"""Endless agent sessions of a given size: they append, repeat, edit, prune, go back, fork, compact and change tools.

The messages are those of `tools.traces`; what is added is an end that never comes, a size, and forks: two branches of
one conversation that go on in turns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from tools.traces import CLIENTS, FEATURES, Body, Message, Step, Writer, texts_of

WEIGHTS: Mapping[str, float] = {
    "append": 70,
    "retry": 4,
    "edit": 5,
    "prune": 4,
    "date": 2,
    "truncate": 4,
    "tools": 3,
    "side": 3,
    "fork": 5,
}
"""How often each kind of step is tried. A compaction comes when the session has its size."""

_OFTEN = 0.4
"""How often a session has each feature of `tools.traces.FEATURES`."""


class Session(Writer):
    """One client's conversation. `step` gives the next request; treat its body as read-only.

    ``chars``: of the messages' text, at which the session compacts itself (its requests are a little longer at most).
    ``turn_chars``: about the length of one message. ``start_chars``: of the first user message; the system prompt has
    half of it. ``weights``: as `WEIGHTS`. ``features``: names from `tools.traces.FEATURES`; None draws them.
    ``lifetime``: requests after which it starts over as a new conversation; None: never.
    """

    def __init__(
        self,
        seed: int | str,
        *,
        model: str = "m",
        chars: int = 20_000,
        turn_chars: int = 300,
        start_chars: int = 1_000,
        weights: Mapping[str, float] = WEIGHTS,
        features: frozenset[str] | None = None,
        stream: bool | None = None,
        lifetime: int | None = None,
    ) -> None:
        rng = Random(f"traffic/{seed}")
        if features is None:
            features = frozenset(name for name in FEATURES if rng.random() < _OFTEN)
        super().__init__(rng, rng.choice(CLIENTS), frozenset(features) - {"long"})
        self.name = str(seed)
        self.model = model
        self.chars = chars
        self.scale = turn_chars
        self._start_chars = start_chars
        self._stream = stream
        self._lifetime = lifetime
        self._age = 0
        self._other: list[Message] | None = None
        self._kinds = list(weights)
        self._weights = list(weights.values())
        self._makers: Mapping[str, Callable[[], None]] = {
            "append": self.append,
            "retry": self.retry,
            "edit": self.edit,
            "prune": self.prune,
            "date": self.date,
            "truncate": self.truncate,
            "tools": self.change_tools,
            "side": self.side,
            "fork": self.fork,
        }

    def step(self) -> Step:
        """The next request: what it is against the one before it, and its body."""
        self.steps.clear()
        self._age += 1
        if not self.messages or (self._lifetime is not None and self._age > self._lifetime):
            self.begin()
        elif self.size > self.chars:
            self.compact()
        while not self.steps:  # a kind that the session has nothing for (no tool result to prune) gives no step
            self._makers[self.rng.choices(self._kinds, self._weights)[0]]()
        return self.steps[0]

    @property
    def size(self) -> int:
        """Characters of the messages' text."""
        return sum(len(text) for message in self.messages for text in texts_of(message))

    def begin(self) -> None:
        """The first request of a conversation."""
        self._age, self._other = 1, None
        system = self.content(self._start_chars // 2, "date: 2026-11-29\n")
        user = self.content(self._start_chars)
        self.messages = [{"role": self.client.first_role, "content": system}, {"role": "user", "content": user}]
        self.send("init")

    def append(self) -> None:
        """One more turn."""
        self.turn()
        self.send("append")

    def compact(self) -> None:
        """The system prompt and a summary are what is left."""
        summary = "Summary of the conversation so far:\n" + self.text.document(self.scale)
        self.messages[1:] = [{"role": "user", "content": summary}]
        self._other = None
        self.send("compaction")

    def fork(self) -> None:
        """From here on two branches; the next fork goes on with the one that was left."""
        here = list(self.messages)
        if self._other is not None:
            self.messages = self._other
        else:
            results = {"tool", "assistant"}
            ends = [at for at, message in enumerate(here) if at > 1 and message["role"] not in results]
            if not ends:
                return
            self.messages = here[: self.rng.choice(ends)]
        self._other = here
        self.user()
        self.send("fork")

    def body(self, messages: list[Message], tools: list[dict[str, Any]]) -> Body:
        body = super().body(messages, tools) | {"model": self.model}
        if self._stream is not None:
            body.pop("stream_options", None)
            body["stream"] = self._stream
            if self._stream:
                body["stream_options"] = {"include_usage": True}
        return body
