"""The embedded engine's replies in vLLM's shape: one list of pieces, told whole or as server-sent events.

Shapes from vLLM 0.32, `entrypoints/openai/chat_completion/{protocol,serving}.py`. A piece stands for one generated
token; the simulator has no model, so it counts pieces as completion tokens.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from proxy.embedded_script import DEFAULT, Turn

ARGUMENT_PIECE = 12
"""Characters of a tool call's arguments that one streamed event carries."""


def encode(value: Any) -> bytes:
    """Compact JSON with raw UTF-8, as the engine writes it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def error_body(message: str, kind: str, code: int, param: str | None = None) -> dict[str, Any]:
    """vLLM's error object."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def pieces(turn: Turn, body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The turn as the deltas that a stream sends, one a piece.

    Without tools in the request (or with ``tool_choice`` "none") a model cannot call one: the text alone is told.
    """
    can_call = bool(body.get("tools")) and body.get("tool_choice") != "none"
    calls = turn.tool_calls if can_call else []
    text = turn.text if turn.text is not None or calls else DEFAULT.text
    deltas: list[dict[str, Any]] = []
    if turn.reasoning and body.get("include_reasoning", True):
        deltas += [{"reasoning": piece} for piece in words(turn.reasoning)]
    if text:
        deltas += [{"content": piece} for piece in words(text)]
    for index, call in enumerate(calls):
        seed = f"{len(body['messages'])}\0{index}\0{call.name}\0{call.arguments}".encode()
        call_id = call.id or f"chatcmpl-tool-{hashlib.blake2b(seed, digest_size=8).hexdigest()}"
        head = {"id": call_id, "type": "function", "index": index, "function": {"name": call.name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        for start in range(0, len(call.arguments), ARGUMENT_PIECE):
            part = call.arguments[start : start + ARGUMENT_PIECE]
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
    return deltas


def words(text: str) -> list[str]:
    """Split so that the pieces join to the text again: a word with the white space before it."""
    return re.findall(r"\s*\S+|\s+$", text)


@dataclass(frozen=True)
class Reply:
    """One answer: what to say to which request. ``prompt_ids`` is set where the client asked for them."""

    request_id: str
    created: int
    model: str
    choices: int
    deltas: list[dict[str, Any]]
    finish_reason: str
    prompt_tokens: int
    prompt_ids: list[int] | None
    include_usage: bool
    continuous_usage: bool

    def usage(self, told: int) -> dict[str, Any]:
        """Usage after ``told`` pieces of every choice."""
        completion = told * self.choices
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + completion,
            "completion_tokens": completion,
        }

    def whole(self) -> dict[str, Any]:
        """The body of a ``chat.completion``."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": "".join(d["content"] for d in self.deltas if "content" in d) or None,
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
        }
        if calls := self._calls():
            message["tool_calls"] = calls
        message["reasoning"] = "".join(d["reasoning"] for d in self.deltas if "reasoning" in d) or None
        choice = {
            "message": message,
            "logprobs": None,
            "finish_reason": self.finish_reason,
            "stop_reason": None,
            "token_ids": None,
        }
        return {
            "id": self.request_id,
            "object": "chat.completion",
            "created": self.created,
            "model": self.model,
            "choices": [{"index": index, **choice} for index in range(self.choices)],
            "service_tier": None,
            "system_fingerprint": None,
            "usage": {**self.usage(len(self.deltas)), "prompt_tokens_details": None},
            "prompt_logprobs": None,
            "prompt_token_ids": self.prompt_ids,
            "kv_transfer_params": None,
        }

    def _calls(self) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []
        for delta in self.deltas:
            for part in delta.get("tool_calls", ()):
                if "id" in part:
                    function = {"name": part["function"]["name"], "arguments": ""}
                    calls.append({"id": part["id"], "type": "function", "function": function})
                else:
                    calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        return calls

    def events(self) -> Iterator[bytes]:
        """The server-sent events of the stream, ``[DONE]`` included."""
        first = {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        yield from self._chunks(first, 0, {"prompt_token_ids": self.prompt_ids})
        for told, delta in enumerate(self.deltas, 1):
            choice = {"delta": delta, "logprobs": None, "finish_reason": None, "token_ids": None}
            yield from self._chunks(choice, told)
        last: dict[str, Any] = {"delta": {}, "logprobs": None, "finish_reason": self.finish_reason, "stop_reason": None}
        yield from self._chunks({**last, "token_ids": None}, len(self.deltas))
        if self.include_usage:
            yield self._event({"choices": [], "usage": self.usage(len(self.deltas))})
        yield b"data: [DONE]\n\n"

    def _chunks(self, choice: dict[str, Any], told: int, extra: Mapping[str, Any] | None = None) -> Iterator[bytes]:
        usage = {"usage": self.usage(told)} if self.continuous_usage else {}
        for index in range(self.choices):
            yield self._event({"choices": [{"index": index, **choice}], **(extra or {}), **usage})

    def _event(self, rest: Mapping[str, Any]) -> bytes:
        head = {"id": self.request_id, "object": "chat.completion.chunk", "created": self.created, "model": self.model}
        return b"data: " + encode({**head, **rest}) + b"\n\n"
