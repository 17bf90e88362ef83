"""The demo's agent: a session with the real `openai` client, in the order in which agents meet these things."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import openai

from tools.demo import script
from tools.trace_text import Text

Message = dict[str, Any]

PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)


@dataclass
class Turn:
    """One request that was sent. ``eligible``: there was a kept session and new text, so append or edit is expected."""

    what: str
    request_id: str
    eligible: bool = True
    bypass: bool = False
    attempt: int = 0
    log: dict[str, Any] = field(default_factory=dict)
    verdict: dict[str, Any] = field(default_factory=dict)

    @property
    def exact(self) -> bool | None:
        """Whether the engine found the IDs equal to its own; None where it got text, as it should."""
        return None if self.bypass and self.verdict.get("form") == "text" else self.verdict.get("exact") is True


class Agent:
    """Keeps the message list as agent CLIs do: arguments written anew, reasoning sent back as ``reasoning_content``."""

    def __init__(self, client: openai.AsyncOpenAI, model: str, seed: int) -> None:
        self._client, self._model = client, model
        self._rng = Random(f"session/{seed}")
        self._text = Text(self._rng, non_ascii=True, literals=True)
        self.tools = list(script.TOOLS)
        self.messages: list[Message] = [{"role": "system", "content": self._system()}]

    def _system(self) -> str:
        rules = "\n".join(f"{n}. {self._text.prose()}" for n in range(1, 40))
        return f"You are a coding agent. Work until the task is done.\n\n# Rules\n{rules}\n"

    def user(self, text: str) -> None:
        """The person says something."""
        self.messages.append({"role": "user", "content": text})

    async def ask(self, what: str, *, stream: bool = False, result_chars: int = 6000, retries: int = 0) -> list[Turn]:
        """Send the conversation; take the reply in and run its tools, each with about ``result_chars`` of output."""
        turn = Turn(what, _request_id())
        reply = await self._send(self.messages, self.tools, turn, stream=stream, retries=retries)
        self._take(reply)
        for call in reply.get("tool_calls", ()):
            size = self._rng.randint(result_chars // 2, result_chars)
            result = self._text.document(size)
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        if not retries:
            return [turn]
        again = Turn(f"{what} again", turn.request_id, eligible=False, attempt=1)
        return [turn, again]

    async def aside(self, what: str, messages: list[Message], *, tools: bool, bypass: bool = False) -> tuple[Turn, str]:
        """Another request under the same session that leaves the conversation alone; its text comes back too."""
        turn = Turn(what, _request_id(), eligible=False, bypass=bypass)
        reply = await self._send(messages, self.tools if tools else None, turn)
        return turn, str(reply["content"])

    def prune(self, keep: int) -> None:
        """Clear the output of all but the last ``keep`` tool calls, as agents do when the context grows long."""
        results = [m for m in self.messages if m["role"] == "tool"]
        for message in results[: -keep or None]:
            self.messages[self.messages.index(message)] = {**message, "content": "[old tool output cleared]"}

    def compact(self) -> None:
        """Fold the conversation into a summary."""
        summary = self._text.document(5000)
        told = f"This session continues an earlier one. Its summary:\n\n{summary}\n\nGo on with the task."
        self.messages = [self.messages[0], {"role": "user", "content": told}]

    def _take(self, reply: Message) -> None:
        for call in reply.get("tool_calls", ()):
            function = call["function"]
            function["arguments"] = json.dumps(
                json.loads(function["arguments"]), separators=(",", ":"), ensure_ascii=False
            )
        self.messages.append(reply)

    async def _send(
        self,
        messages: list[Message],
        tools: list[dict[str, Any]] | None,
        turn: Turn,
        *,
        stream: bool = False,
        retries: int = 0,
    ) -> Message:
        create: Any = self._client.with_options(max_retries=retries).chat.completions.create
        asked: Any = {
            "model": self._model,
            "messages": messages,
            "tools": tools or openai.omit,
            "extra_headers": {"X-Request-Id": turn.request_id},
        }
        if stream:
            options = {"include_usage": True}
            return await _gather(await create(**asked, stream=True, stream_options=options))
        message = (await create(**asked)).choices[0].message.model_dump(exclude_none=True)
        return _assistant(message.get("content"), message.get("reasoning"), message.get("tool_calls", []))


async def _gather(stream: Any) -> Message:
    """A streamed reply as one message."""
    content, reasoning = "", ""
    calls: dict[int, dict[str, str]] = {}
    async for chunk in stream:
        for choice in chunk.choices:
            delta = choice.delta.model_dump(exclude_none=True)
            content += delta.get("content", "")
            reasoning += delta.get("reasoning", "")
            for part in delta.get("tool_calls", ()):
                call = calls.setdefault(part["index"], {"id": part.get("id", ""), "name": "", "arguments": ""})
                call["name"] += part["function"].get("name", "")
                call["arguments"] += part["function"].get("arguments", "")
    whole = [
        {"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}}
        for c in calls.values()
    ]
    return _assistant(content, reasoning, whole)


def _assistant(content: str | None, reasoning: str | None, calls: list[dict[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": content or None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _request_id() -> str:
    return f"demo-{uuid.uuid4().hex}"


async def play(agent: Agent) -> AsyncIterator[Turn]:
    """The whole session, turn by turn. The comments say what each part does to the rendered prompt."""

    async def several(count: int, what: str, **options: Any) -> AsyncIterator[Turn]:
        for _ in range(count):
            for turn in await agent.ask(what, **options):
                yield turn

    agent.user("The session store keeps growing. Find out why, repair it, and run the tests. 请用中文写提交信息。")
    (first,) = await agent.ask("first request")
    first.eligible = False  # there is nothing to continue
    yield first
    title = [{"role": "system", "content": script.TITLE_MARK}, agent.messages[1]]
    turn, _ = await agent.aside("fork: title generator", title, tools=False)
    yield turn

    # A tool loop: each request ends with new tool results.
    async for turn in several(6, "tool result"):
        yield turn
    async for turn in several(1, "tool result, streamed", stream=True, result_chars=120_000):
        yield turn
    async for turn in several(1, "long tool result"):
        yield turn
    async for turn in several(2, "tool result"):
        yield turn

    # A new user turn: the template drops the reasoning of the turns before it, so the middle changes too.
    agent.user("Good. Now make the same change in the second store, and keep the log short.")
    async for turn in several(1, "new user turn"):
        yield turn
    async for turn in several(3, "tool result", result_chars=9000):
        yield turn
    async for turn in several(1, "engine busy (503)", retries=2):
        yield turn
    async for turn in several(2, "tool result", stream=True, result_chars=9000):
        yield turn

    # An image has no place among IDs: the request passes untouched. The agent keeps only a description of it.
    seen = [
        {"type": "text", "text": f"{script.IMAGE_MARK} of the dashboard."},
        {"type": "image_url", "image_url": {"url": PIXEL}},
    ]
    turn, answer = await agent.aside(
        "image", [*agent.messages, {"role": "user", "content": seen}], tools=True, bypass=True
    )
    yield turn
    agent.user(f"[screenshot] {answer} Go on.")
    async for turn in several(2, "after the image"):
        yield turn

    # Mid-context edit: old tool output is cleared, everything after it moves.
    agent.prune(keep=4)
    async for turn in several(1, "old output pruned"):
        yield turn
    async for turn in several(2, "tool result"):
        yield turn

    # The tool list stands at the very start of the prompt.
    agent.tools.insert(2, script.LATE_TOOL)
    async for turn in several(1, "tools changed"):
        yield turn
    async for turn in several(2, "tool result"):
        yield turn

    # A memory agent reads the whole conversation under another system prompt; then the main one goes on.
    memory = [{"role": "system", "content": script.MEMORY_MARK}, *agent.messages[1:]]
    turn, _ = await agent.aside("fork: memory agent", memory, tools=True)
    yield turn
    async for turn in several(2, "tool result"):
        yield turn

    agent.compact()
    (folded,) = await agent.ask("compaction")
    folded.eligible = False  # nearly all of the text is new
    yield folded
    async for turn in several(6, "tool result", result_chars=4000):
        yield turn
