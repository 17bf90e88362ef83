"""An engine with every route that TokTier forwards, for runs in which the proxy's way is of interest, not the model's.

A reply has vLLM's form: JSON, events where the body asks for them, sound for speech. Of a request nothing is looked at
but whether its body is an object, and `stream` in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from proxy import routes
from proxy.routes import Kind
from tools.traffic.engine import PROBE_AGENT, Engine

_MODEL = "m"
_USAGE = {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}
_COMPLETION = {"id": "cmpl-0", "object": "text_completion", "created": 0, "model": _MODEL}
_LISTED = {"id": "list-0", "object": "list", "created": 0, "model": _MODEL, "usage": _USAGE}
_RESPONSE = {"id": "resp_0", "object": "response", "created_at": 0, "model": _MODEL, "status": "completed"}
_ANSWERED = {**_RESPONSE, "output": [], "usage": {"input_tokens": 3, "output_tokens": 1, "total_tokens": 4}}
_SPOKEN = {"id": "msg_0", "type": "message", "role": "assistant", "model": _MODEL}
_WROTE = {"usage": {"input_tokens": 3, "output_tokens": 1}, "stop_reason": "end_turn"}
_SCORES = {**_LISTED, "data": [{"index": 0, "object": "score", "score": 0.5}]}
_RANKS = {"id": "rank-0", "model": _MODEL, "results": [{"index": 0, "relevance_score": 0.5}], "usage": _USAGE}
_PIECES = {"count": 3, "max_model_len": 32768, "tokens": [1, 2, 3]}
_TEXT = {"prompt": "word"}

PLAIN: Mapping[str, Any] = {
    "/v1/chat/completions/batch": {**_LISTED, "object": "chat.completion", "choices": []},
    "/v1/chat/completions/render": [{"prompt_token_ids": [1, 2, 3]}],
    "/v1/completions/render": [{"prompt_token_ids": [1, 2, 3]}],
    "/v1/models": {"object": "list", "data": [{"id": _MODEL, "object": "model"}]},
    "/v1/models/{model}": {"id": _MODEL, "object": "model"},
    "/v1/completions": {**_COMPLETION, "choices": [{"index": 0, "text": "word", "finish_reason": "stop"}]},
    "/v1/responses": _ANSWERED,
    "/v1/responses/input_tokens": {"object": "response.input_tokens", "input_tokens": 3},
    "/v1/responses/{id}": _ANSWERED,
    "/v1/responses/{id}/cancel": {**_RESPONSE, "status": "cancelled"},
    "/v1/responses/{id}/input_items": {"object": "list", "data": [], "has_more": False},
    "/v1/messages": {**_SPOKEN, **_WROTE, "content": [{"type": "text", "text": "word"}]},
    "/v1/messages/count_tokens": {"input_tokens": 3},
    "/v1/embeddings": {**_LISTED, "data": [{"index": 0, "object": "embedding", "embedding": [0.5, -0.5]}]},
    "/v1/moderations": {"id": "modr-0", "model": _MODEL, "results": [{"flagged": False}]},
    "/v1/audio/transcriptions": {"text": "word"},
    "/v1/audio/translations": {"text": "word"},
    "/pooling": {**_LISTED, "data": [{"index": 0, "object": "pooling", "data": [[0.5]]}]},
    "/classify": {**_LISTED, "data": [{"index": 0, "label": "x", "probs": [1.0], "num_classes": 1}]},
    "/score": _SCORES,
    "/v1/score": _SCORES,
    "/rerank": _RANKS,
    "/v1/rerank": _RANKS,
    "/v2/rerank": _RANKS,
    "/tokenize": _PIECES,
    "/v1/tokenize": _PIECES,
    "/detokenize": _TEXT,
    "/v1/detokenize": _TEXT,
}
"""Replies in JSON, by the pattern of the route."""

STREAMED: Mapping[str, list[tuple[str | None, Any]]] = {
    "/v1/completions": [
        (None, {**_COMPLETION, "choices": [{"index": 0, "text": "wo", "finish_reason": None}]}),
        (None, {**_COMPLETION, "choices": [{"index": 0, "text": "rd", "finish_reason": "stop"}]}),
        (None, {**_COMPLETION, "choices": [], "usage": _USAGE}),
        (None, "[DONE]"),
    ],
    "/v1/responses": [
        ("response.created", {"type": "response.created", "response": {**_RESPONSE, "status": "in_progress"}}),
        ("response.output_text.delta", {"type": "response.output_text.delta", "delta": "word"}),
        ("response.completed", {"type": "response.completed", "response": _ANSWERED}),
    ],
    "/v1/messages": [
        ("message_start", {"type": "message_start", "message": {**_SPOKEN, "content": []}}),
        ("content_block_delta", {"type": "content_block_delta", "index": 0, "delta": {"text": "word"}}),
        ("message_delta", {"type": "message_delta", "delta": {}, **_WROTE}),
        ("message_stop", {"type": "message_stop"}),
    ],
}
"""Events, each with its name where its route has names."""

SOUND: Mapping[str, tuple[str, bytes]] = {"/v1/audio/speech": ("audio/mpeg", bytes(range(256)))}

_OWN = {*PLAIN, *SOUND}
_JSON, _EVENTS = "application/json", "text/event-stream"


class EveryRoute(Engine):
    """Answers as this module says; probes, and chats, as its parent does."""

    def answer(self, method: str, path: str, headers: Mapping[str, str], raw: bytes) -> tuple[int, str, list[bytes]]:
        found = routes.match(path)
        if found is None or found[0].pattern not in _OWN or headers.get("user-agent") == PROBE_AGENT:
            return super().answer(method, path, headers, raw)
        route = found[0]
        stream = False
        if route.kind is Kind.JSON:
            try:
                stream = orjson.loads(raw)["stream"] is True
            except (KeyError, TypeError):
                pass
            except ValueError:  # Python's JSON has numbers that JSON has not
                return 400, _JSON, [b'{"error":{"message":"no JSON","code":400}}']
        if stream and route.pattern in STREAMED:
            return 200, _EVENTS, [_event(*event) for event in STREAMED[route.pattern]]
        if route.pattern in SOUND:
            kind, sound = SOUND[route.pattern]
            return 200, kind, [sound]
        return 200, _JSON, [orjson.dumps(PLAIN[route.pattern])]


def _event(name: str | None, data: Any) -> bytes:
    head = b"" if name is None else f"event: {name}\n".encode()
    return head + b"data: " + (data.encode() if isinstance(data, str) else orjson.dumps(data)) + b"\n\n"
