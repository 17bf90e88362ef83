"""Inputs whose HTTP is in order and whose body is not: chat requests, and those of the other routes."""

from __future__ import annotations

import gzip
import zlib
from random import Random
from typing import Any

import brotli  # type: ignore[import-untyped]
import zstandard

from proxy.routes import ROUTES, Kind
from tools.fuzz.inputs import Input, request
from tools.fuzz.inputs import name as name_of
from tools.fuzz.values import BROKEN, CANARY, NAMES, NUMBERS, Pairs, Raw, dumps, hostile, name, nested, text

CHAT = "/v1/chat/completions"
TURNS = 8
"""Inputs that share one conversation, so that sessions are found, appended to and edited."""
_ROUTES = [route for route in ROUTES if route.kind in (Kind.JSON, Kind.BODY, Kind.MODEL)]
_ROLES = ("system", "user", "assistant", "tool", "developer", "function", "", "User", "🫨", "CANARY", "critic", "tool ")
_TYPES = (
    "application/json", "application/json; charset=utf-8", "application/json;charset=utf-16", "text/plain", "",
    "application/x-www-form-urlencoded", "multipart/form-data; boundary=CANARY", "application/xml", "*/*", "json",
    ";;;",
)  # fmt: skip
_KEYS = (
    "",
    "Bearer",
    "Bearer ",
    "Bearer CANARY-KEY",
    "Basic Q0FOQVJZ",
    "CANARY-KEY",
    "bearer  CANARY KEY",
    "\t",
    "null",
)
_HINTS = ("x-session-id", "session-id", "session_id", "x-session-affinity", "x-claude-code-session-id")


def conversation(rng: Random) -> list[Any]:
    """A whole agent session; a request sends its beginning."""
    messages: list[Any] = [{"role": "system", "content": f"CANARY {rng.randrange(10**9)} You are terse."}]
    for turn in range(TURNS):
        messages.append({"role": "user", "content": rng.choice((text(rng), [{"type": "text", "text": text(rng)}]))})
        if rng.random() < 0.4:
            call = {"id": f"call_{turn}", "type": "function"}
            function = {"name": "read", "arguments": rng.choice(_ARGUMENTS)}
            messages.append({"role": "assistant", "content": None, "tool_calls": [{**call, "function": function}]})
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text(rng)})
        messages.append({"role": "assistant", "content": text(rng)})
    return messages


_ARGUMENTS = (
    '{"path": "CANARY.txt", "limit": 3}', "{}", "", "null", "[1]", "{", '{"a": NaN}', '{"a": 1, "a": 2}', '"x"',
    "1e999", '{"a": "\\ud800"}', '{"é": {"🫨": [1, 2.50, -0.0, 1e400]}}', "[" * 2_000 + "]" * 2_000,
    '{"<|im_end|>": 1}', "\0",
)  # fmt: skip


def chat_body(rng: Random, number: int, seed: int) -> Any:
    """An ordinary chat request of a growing conversation, before anything is done to it."""
    own = Random(f"{seed}/conversation/{number // TURNS}")
    messages = conversation(own)
    body: dict[str, Any] = {"model": "m", "messages": messages[: 2 + 3 * (number % TURNS)]}
    if own.random() < 0.4:
        parameters = {"type": "object", "properties": {"path": {"type": "string"}}}
        function = {"name": "read", "description": "CANARY reads", "parameters": parameters}
        body["tools"] = [{"type": "function", "function": function}]
    if rng.random() < 0.3:
        body["stream"] = True
        body["stream_options"] = {"include_usage": True}
    return body


def spoil(rng: Random, body: Any) -> Any:
    """One thing done to the tree."""
    places = list(_places(body))
    holder, key = rng.choice(places)
    kind = rng.randrange(11)
    if kind == 0 and isinstance(holder, dict):
        del holder[key]
    elif kind == 1:
        holder[key] = nested(rng)
    elif kind == 2:
        holder[key] = rng.choice(NUMBERS)
    elif kind == 3:
        holder[key] = [holder[key]] if rng.random() < 0.5 else {"CANARY": holder[key]}
    elif kind == 4 and isinstance(body, dict):
        body[name(rng) if rng.random() < 0.3 else rng.choice(NAMES)] = hostile(rng)
    elif kind == 5 and isinstance(holder, dict):
        again = Pairs(holder.items())
        again.insert(rng.randrange(len(again) + 1), (key, hostile(rng)))
        _replace(body, holder, again)
    elif kind == 6 and isinstance(body, dict) and isinstance(body.get("messages"), list) and body["messages"]:
        message = rng.choice(body["messages"])
        if isinstance(message, dict):
            message["role"] = rng.choice(_ROLES) if rng.random() < 0.8 else hostile(rng)
    elif kind == 7 and isinstance(body, dict) and type(body.get("messages")) is list:
        body["messages"].insert(rng.randrange(len(body["messages"]) + 1), _message(rng))
    elif kind == 8 and isinstance(body, dict):
        field, value = rng.choice(_FIELDS)
        body[field] = value
    elif kind == 9 and isinstance(holder, dict):
        holder[name(rng)] = hostile(rng)
    else:
        holder[key] = hostile(rng)
    return body


_FIELDS: tuple[tuple[str, Any], ...] = (
    ("stream", "true"), ("stream", 1), ("n", 128), ("cache_salt", ""), ("cache_salt", "CANARY"), ("cache_salt", 7),
    ("cache_salt", Raw(r'"\ud800"')), ("stop_token_ids", [0, 10**9]), ("stop_token_ids", [True, None, "1"]),
    ("allowed_token_ids", [-1]), ("logit_bias", {"1": 5, "x": 1, "٣": 1, "1_0": 2, " 7 ": 1}),
    ("logit_bias", {"9" * 5_000: 1}), ("echo", True), ("chat_template", "{{ CANARY }}"), ("chat_template_kwargs", {}),
    ("chat_template_kwargs", {"enable_thinking": False}), ("chat_template_kwargs", {"messages": [], "bos_token": 1}),
    ("chat_template_kwargs", {"tools": {"__class__": "CANARY"}, "raise_exception": 1}), ("reasoning_effort", "high"),
    ("reasoning_effort", {"a": 1}), ("documents", [{"title": "CANARY"}]), ("add_generation_prompt", False),
    ("continue_final_message", True), ("add_special_tokens", True), ("truncate_prompt_tokens", -1),
    ("kv_transfer_params", {"prompt_token_ids": [1]}), ("kv_transfer_params", {"a": 1}), ("kv_transfer_params", None),
    ("nvext", {"token_data": None}), ("input_ids", None), ("prompt_cache_key", "CANARY"), ("prompt_cache_key", 5),
    ("prompt_cache_key", Raw(r'"\udfff"')), ("tool_choice", "none"), ("tool_choice", {"type": "function"}),
    ("tools", []), ("tools", [{"type": "CANARY"}]), ("model", "CANARY"), ("model", ""), ("model", None),
    ("model", ["m"]), ("messages", []), ("messages", {}), ("messages", None), ("messages", "CANARY"),
    ("messages", [[]]), ("messages", [None, 1, "x"]),
    ("response_format", {"type": "json_schema", "json_schema": {"CANARY": 1}}), ("prompt_logprobs", 1), ("user", "\0"),
)  # fmt: skip
"""What fields with a meaning of their own are given."""


def _message(rng: Random) -> Any:
    if rng.random() < 0.3:
        return hostile(rng)
    part: Any = {
        "type": rng.choice(("text", "image_url", "input_audio", "refusal", "thinking", "", 5)),
        "text": text(rng),
    }
    call = {"id": hostile(rng), "function": {"name": hostile(rng), "arguments": rng.choice(_ARGUMENTS)}}
    message: dict[str, Any] = {"role": rng.choice(_ROLES), "content": rng.choice((text(rng), [part, part], None, part))}
    if rng.random() < 0.4:
        message["tool_calls"] = rng.choice(([call], [call, {}], call, [None], [{"function": None}], [{"function": {}}]))
    if rng.random() < 0.3:
        message[rng.choice(("name", "reasoning", "reasoning_content", "tool_call_id", "refusal"))] = hostile(rng)
    return message


def _places(body: Any) -> Any:
    """(holder, key) of every value in the tree."""
    pending = [body]
    while pending:
        holder = pending.pop()
        for key in holder if isinstance(holder, dict) else range(len(holder)):
            yield holder, key
            if isinstance(holder[key], dict | list) and not isinstance(holder[key], Pairs) and holder[key]:
                pending.append(holder[key])


def _replace(body: Any, old: Any, new: Any) -> None:
    for holder, key in _places(body):
        if holder[key] is old:
            holder[key] = new
            return


def damage(rng: Random, raw: bytes) -> bytes:
    """One thing done to the bytes."""
    kind = rng.randrange(9)
    place = rng.randrange(len(raw) + 1)
    if kind == 0:
        return raw[:place]
    if kind == 1:
        return raw[:place] + bytes([rng.randrange(256)]) + raw[place + 1 :]
    if kind == 2:
        return raw[:place] + rng.randbytes(rng.randrange(1, 9)) + raw[place:]
    if kind == 3:
        return raw + rng.choice((b"x", b"\0", b" \n ", b"{}", raw, b"\xef\xbb\xbf"))
    if kind == 4:
        return rng.choice((b"\xef\xbb\xbf", b"\xff\xfe", b" " * 999, b"\0", b")]}'\n")) + raw
    if kind == 5:
        return raw.decode("utf-8", "replace").encode(rng.choice(("utf-16", "utf-16-le", "utf-32")))
    if kind == 6:
        return dumps(rng.choice(BROKEN), True).encode()
    if kind == 7:
        return dumps(hostile(rng), True).encode("utf-8", "surrogatepass")
    return rng.randbytes(rng.randrange(200))


def json_input(seed: int, number: int) -> Input:
    """Input ``number``: most are chat requests, some go to the other routes."""
    rng = Random(f"{seed}/json/{number}")
    body: Any = chat_body(rng, number, seed)
    route, method, shape = CHAT, "POST", "chat"
    if rng.random() < 0.2:
        other = rng.choice(_ROUTES)
        method, shape = rng.choice(other.methods), "route"
        route = other.pattern.replace("{model}", rng.choice(("m", "CANARY", "a/b", "m%20"))).replace("{id}", "resp_1")
        body = {"model": "m", rng.choice(("prompt", "input", "messages", "query")): hostile(rng), "n": 1}
    for _ in range(rng.choice((0, 0, 1, 1, 1, 2))):
        if isinstance(body, dict) and body:
            body = spoil(rng, body)
    raw = dumps(body, rng.random() < 0.5).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        raw, shape = damage(rng, raw), shape + "-damaged"
    headers: list[tuple[str, str | bytes]] = []
    if rng.random() < 0.1:
        coding, raw = coded(rng, raw)
        headers.append(("Content-Encoding", coding))
        shape += "-coded"
    headers.append(("Content-Type", rng.choice(_TYPES) if rng.random() < 0.2 else _TYPES[0]))
    keys = ("Authorization", "X-Api-Key", "api-key")
    headers += [(rng.choice(keys), rng.choice(_KEYS)) for _ in range(rng.choice((0, 0, 1, 1, 2)))]
    if rng.random() < 0.2:
        value = rng.choice((CANARY, "", "s" * 4_000, b"\xff\xfe CANARY", "naïve".encode(), "CANARY;a=b", "\t x \t"))
        headers.append((rng.choice(_HINTS), value))
    if rng.random() < 0.1:
        headers += [(f"X-CANARY-{i}", CANARY * rng.randrange(20)) for i in range(rng.randrange(60))]
    if rng.random() < 0.05:
        query = rng.choice(("?", "?a=b&CANARY", "?%00", "?a=%ff", "?a=b?c#d", "?" + "x" * 3_000))
        route += query
    wire = request(name_of(number), method, route, raw, headers)
    return Input(number, shape, (wire,), method=method, one_line=True)


def coded(rng: Random, raw: bytes) -> tuple[str, bytes]:
    """A content coding and a body that is so coded, or only says so."""
    coding = rng.choice(
        ("gzip", "x-gzip", "deflate", "zstd", "br", "GZIP", "gzip, gzip", "identity", "CANARY", "gzip,br")
    )
    kind = coding.lower().rpartition(" ")[2].removeprefix("x-").partition(",")[0]
    if kind == "gzip":
        out = gzip.compress(raw, 1, mtime=0)
        if rng.random() < 0.2:
            out *= rng.randrange(2, 40)
    elif kind == "deflate":
        out = zlib.compress(raw, 1)[rng.choice((0, 2)) :]
    elif kind == "zstd":
        out = zstandard.ZstdCompressor(level=1).compress(raw)
    elif kind == "br":
        out = bytes(brotli.compress(raw, quality=0))
    else:
        out = raw
    fault = rng.random()
    if fault < 0.2 and out:
        out = out[: rng.randrange(len(out))]
    elif fault < 0.4 and out:
        place = rng.randrange(len(out))
        out = out[:place] + bytes([out[place] ^ (1 << rng.randrange(8))]) + out[place + 1 :]
    elif fault < 0.5:
        out = raw
    return coding, out
