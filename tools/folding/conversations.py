"""Seeded conversations and what clients do to them: short, odd, and mostly of an order of roles that templates accept.

Everything is plain JSON; `steps` yields requests of one session, each made of objects of its own or, as ingest makes
them, of the last request's objects where nothing changed.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from toktier.template import RenderRequest

Message = dict[str, Any]

_WORDS = (
    *(
        "hello",
        "world",
        "<tool_response>",
        "</tool_response>",
        "<think>x</think>y",
        "</think>",
        "<think>\nr\n</think>\n\nz",
    ),
    *("", "\n", " a b ", "{}", "1", "é✓", "[TOOL]", "Reasoning effort", "{'a': 1}", "\\n", "%s", "{0.a}"),
)
_SCALARS = (0, 1, True, False, 1.0, 0.0, -0.0, None, 1e22, 10**30)
_KWARGS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"enable_thinking": False},
    {"enable_thinking": True},
    {"thinking": True},
    {"thinking": False},
    {"clear_thinking": False},
    {"preserve_thinking": True},
    {"reasoning_effort": "high"},
    {"think_render_option": "all"},
    {"documents": []},
    {"add_vision_id": True},
    {"keep_cots": True},
    {"truncate_history_thinking": False},
    {"regen_tool_call_ids": False},
    {"content": "c", "index": 3, "message": {"role": "user", "content": "m"}, "loop": 1, "ns": 1},
)
_LONG = "Say what you do. " * 600
"""What an agent's system prompt, or its tools, have beside what differs: 10,200 characters."""
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


@dataclass
class Session:
    """``strict``: only what the pickiest templates take. ``long``: system prompts and tools of an agent's length,
    which some templates hand on from one message to the next."""

    random: random.Random
    strict: bool
    long: bool = False
    messages: list[Message] = field(default_factory=list)
    tools: list[dict[str, Any]] | None = None
    kwargs: dict[str, Any] = field(default_factory=dict)

    def request(self) -> RenderRequest:
        return RenderRequest(list(self.messages), self.tools, dict(self.kwargs))

    # --- pieces ----------------------------------------------------------------------------------------------------

    def text(self) -> str:
        if self.random.random() < 0.1:
            return f"<tool_response>{self.random.choice(_WORDS)}</tool_response>"
        return self.random.choice(["", " "]).join(self.random.choice(_WORDS) for _ in range(self.random.randint(0, 4)))

    def value(self, depth: int = 0) -> Any:
        chance = self.random.random()
        if chance < 0.25:
            return self.random.choice(_SCALARS)
        if chance < 0.7 or depth > 1:
            return self.text()
        if chance < 0.85:
            return [self.value(depth + 1) for _ in range(self.random.randint(0, 3))]
        return {self.random.choice("abcdef"): self.value(depth + 1) for _ in range(self.random.randint(0, 3))}

    def call(self) -> dict[str, Any]:
        arguments: Any = {
            self.random.choice(["path", "x", "cmd"]): self.value() for _ in range(self.random.randint(0, 3))
        }
        if not self.strict and self.random.random() < 0.3:
            arguments = json.dumps(arguments)
        function = {"name": self.random.choice(["ls", "cat", "grep"]), "arguments": arguments}
        if not self.strict and self.random.random() < 0.15:
            return function
        return {"id": self.identity(), "type": "function", "function": function}

    def identity(self) -> str:
        number = self.random.randint(0, 9)
        return f"functions.ls:{number}" if self.random.random() < 0.5 else f"abcdef12{number}"

    def content(self) -> Any:
        if self.strict or self.random.random() < 0.8:
            return self.text()
        parts = ({"type": "text", "text": self.text()}, {"type": "image"}, {"type": "text", "text": self.text()})
        return [copy.copy(self.random.choice(parts)) for _ in range(self.random.randint(0, 3))]

    def message(self, role: str) -> Message:
        made: Message = {"role": role, "content": self.content()}
        if self.long and role in ("system", "developer") and isinstance(made["content"], str):
            made["content"] += _LONG
        if role == "assistant":
            if self.random.random() < 0.5:
                made[self.random.choice(["reasoning_content", "reasoning_content", "thinking", "reasoning"])] = (
                    self.text()
                )
            if self.random.random() < 0.45:
                made["tool_calls"] = [self.call() for _ in range(1 if self.strict else self.random.randint(1, 3))]
                if self.random.random() < 0.4:
                    made["content"] = None if self.random.random() < 0.6 else ""
        if role == "tool":
            made["tool_call_id"] = self._answered()
            made["name"] = "ls"
        if self.random.random() < 0.1:
            made = dict(reversed(made.items()))
        return made

    def _answered(self) -> str:
        """Mostly the ID of a call that was made."""
        calls = [call for message in self.messages[-6:] for call in message.get("tool_calls") or ()]
        known = [call["id"] for call in calls if "id" in call]
        return self.random.choice(known) if known and self.random.random() < 0.8 else self.identity()

    def next_role(self) -> str:
        if not self.messages:
            return self.random.choice(["system", "user", "user"])
        if not self.strict and self.random.random() < 0.06:
            return self.random.choice(["user", "assistant", "tool", "system", "developer"])
        before = self.messages[-1]
        if before["role"] in ("system", "developer"):
            return "user"
        if before["role"] == "user":
            return "assistant"
        if before["role"] == "assistant":
            return "tool" if before.get("tool_calls") else "user"
        return "assistant" if self.strict else self.random.choice(["assistant", "assistant", "tool"])

    def some_tools(self) -> list[dict[str, Any]] | None:
        if self.random.random() < 0.4:
            return self.random.choice([None, None, []])
        return [self.tool(number) for number in range(self.random.randint(1, 3))]

    def tool(self, number: int) -> dict[str, Any]:
        properties = {"a": {"type": "string", "description": self.text()}, "b": {"type": "integer", "default": 1}}
        parameters = {"type": "object", "properties": properties, "required": ["a"]}
        description = self.text() + _LONG * self.long
        function = {"name": f"f{number}", "description": description, "parameters": parameters}
        return {"type": "function", "function": function}

    # --- what clients do -------------------------------------------------------------------------------------------

    def grow(self, count: int) -> None:
        for _ in range(count):
            self.messages.append(self.message(self.next_role()))

    def step(self) -> str:
        """Changes the session; says what it did."""
        chance = self.random.random()
        messages = self.messages
        if chance < 0.5 or not messages:
            self.grow(self.random.randint(1, 3))
            return "append"
        at = self.random.randrange(len(messages))
        if chance < 0.62:
            role = (
                messages[at]["role"]
                if self.random.random() < 0.8
                else self.random.choice(["user", "assistant", "tool"])
            )
            messages[at] = self.message(role)
            return "edit"
        if chance < 0.68:
            messages[at] = self._barely_edited(messages[at])
            return "barely"
        if chance < 0.74:
            del messages[self.random.randint(0, len(messages)) :]
            return "truncate"
        if chance < 0.79:
            del messages[at]
            return "delete"
        if chance < 0.84:
            messages.insert(at, self.message(self.random.choice(["user", "assistant", "tool", "system"])))
            return "insert"
        if chance < 0.88:
            self.tools = self.some_tools()
            return "tools"
        if chance < 0.92:
            self.settings()
            return "kwargs"
        if chance < 0.95:
            self.kwargs["add_generation_prompt"] = not self.kwargs.get("add_generation_prompt")
            return "prompt"
        return "same"

    def settings(self) -> None:
        self.kwargs = {**_SPECIAL, "add_generation_prompt": self.random.random() < 0.7}
        self.kwargs |= copy.deepcopy(self.random.choice(_KWARGS))

    def _barely_edited(self, message: Message) -> Message:
        """Equal to Python, different to a template: types, signs, the order of keys."""
        edited = copy.deepcopy(message)
        for call in edited.get("tool_calls") or ():
            function = call.get("function", call)
            if isinstance(function.get("arguments"), dict):
                for key, value in function["arguments"].items():
                    if type(value) in (int, bool, float):
                        function["arguments"][key] = self.random.choice([x for x in _SCALARS if x == value] or [1.0])
                function["arguments"] = dict(reversed(function["arguments"].items()))
        return dict(reversed(edited.items())) if self.random.random() < 0.5 else edited


def steps(seed: int, count: int) -> Iterator[tuple[str, Session]]:
    """``count`` states of a session and what led to each; the caller may put messages back that no template takes."""
    chance = random.Random(seed)
    # By a chance of its own, so that all else of a seed stays as it is.
    session = Session(chance, strict=chance.random() < 0.5, long=random.Random(f"long {seed}").random() < 0.15)
    session.tools = session.some_tools()
    session.settings()
    session.grow(chance.randint(1, 12))
    yield "start", session
    for _ in range(count - 1):
        done = session.step()
        if not session.messages and chance.random() < 0.8:
            session.grow(3)
        if len(session.messages) > 60:
            del session.messages[: chance.randint(20, 59)]
        yield done, session
