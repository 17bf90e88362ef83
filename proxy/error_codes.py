"""Every code that TokTier's own errors have: status, meaning, and which routes may answer with it.

`IN_STREAM` has those that come after a reply has begun, as an event of its stream: the status has been sent by then.

`docs/openapi.json` and the table in `docs/operations.md` are made from it; a test compares it with what is raised.
Errors of the engine are relayed as they are and have codes of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Where(Enum):
    """Which requests may be answered so."""

    ANY = "any"  # every request, also one that no route takes
    ROUTE = "route"  # every route that is served for a tenant
    BODY = "body"  # those whose body is read
    JSON = "json"  # those whose body must be JSON
    SALTED = "salted"  # those that set cache_salt
    MODEL = "model"  # those that name a model
    CHAT = "chat"
    NOWHERE = "nowhere"  # paths, methods and bytes that belong to no route


@dataclass(frozen=True, slots=True)
class Code:
    """``status`` is the only one that the code comes with."""

    status: int
    help: str
    where: Where


CODES: Mapping[str, Code] = {
    "invalid_json": Code(400, "The body is no JSON object in UTF-8, UTF-16 or UTF-32", Where.JSON),
    "json_too_deep": Code(400, "The body nests deeper than `limits.json_depth`", Where.JSON),
    "json_too_many_values": Code(400, "The body has more values than `limits.json_values`", Where.JSON),
    "too_many_messages": Code(400, "There are more messages than `limits.messages`", Where.JSON),
    "forbidden_field": Code(400, "The body has a field of token IDs (not null), which only TokTier sets", Where.JSON),
    "invalid_cache_salt": Code(400, "`cache_salt` is no string of 1 to 1,024 characters", Where.SALTED),
    "model_required": Code(400, "The request names no model, and there is no default for it", Where.JSON),
    "invalid_unicode": Code(400, "A lone surrogate in the body; `param` says where", Where.CHAT),
    "token_id_out_of_range": Code(400, "The body names a token ID that the model does not have", Where.CHAT),
    "control_token_in_content": Code(
        400, 'The text holds the literal of a control token, and the model has `control_tokens = "reject"`', Where.CHAT
    ),
    "invalid_content_encoding": Code(400, "The body is not what its Content-Encoding says", Where.BODY),
    "invalid_transfer_coding": Code(400, "The body's chunks are broken", Where.BODY),
    "bad_request": Code(
        400,
        "What was sent is no HTTP request, has a first line or a header longer than 32 KiB, or more than 128 headers",
        Where.NOWHERE,
    ),
    "invalid_api_key": Code(401, 'No key, or an unknown one (`auth.mode = "keys"`)', Where.ROUTE),
    "not_found": Code(404, "No such path is served", Where.NOWHERE),
    "model_not_found": Code(404, "The configuration has no model of that name", Where.MODEL),
    "method_not_allowed": Code(405, "The path takes other methods", Where.NOWHERE),
    "request_timeout": Code(
        408,
        "The body stopped arriving (`server.read_timeout_s`), or came too slowly (`limits.body_bytes_per_s`), or took "
        "longer than `server.prepare_timeout_s` to decode",
        Where.BODY,
    ),
    "header_timeout": Code(408, "The headers did not arrive within `limits.header_timeout_s`", Where.NOWHERE),
    "request_too_large": Code(413, "The body is larger than `server.max_body_bytes`, decoded or not", Where.BODY),
    "unsupported_content_encoding": Code(415, "The Content-Encoding is none of gzip, deflate, zstd, br", Where.BODY),
    "expectation_failed": Code(417, "An Expect header other than 100-continue", Where.ROUTE),
    "too_many_requests": Code(429, "As many requests are being served as may be (`limits.requests`)", Where.ROUTE),
    "workers_busy": Code(429, "As many requests wait for a thread as may (`limits.waiting`)", Where.BODY),
    "bodies_full": Code(429, "The bodies of requests in progress fill `limits.body_bytes`", Where.BODY),
    "upstream_full": Code(
        429,
        "All `max_connections` of the upstream are in use, and none became free within `connect_timeout_s`",
        Where.ROUTE,
    ),
    "internal_error": Code(500, "An error in TokTier; the log says which", Where.ANY),
    "unsupported_transfer_coding": Code(501, "A Transfer-Encoding other than chunked", Where.ROUTE),
    "upstream_unreachable": Code(502, "No connection to the engine, or it closed before its reply", Where.ROUTE),
    "model_not_loaded": Code(
        503, 'The tokenizer is not loaded yet, and the model has `control_tokens = "reject"`', Where.CHAT
    ),
    "too_many_connections": Code(
        503, "As many connections are open as may be (`limits.connections`); this one is closed", Where.NOWHERE
    ),
    "shutting_down": Code(503, "TokTier finishes its last replies", Where.ANY),
    "upstream_timeout": Code(504, "The engine said nothing for `read_timeout_s`", Where.ROUTE),
}

IN_STREAM: Mapping[str, str] = {
    "upstream_closed": "The engine died in the middle of a stream, or ended a chat stream before it was complete",
}
"""Codes of the event ``error`` that ends a stream, with their meaning (`proxy.changes`, change 10)."""
