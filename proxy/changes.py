"""The whole list of what TokTier changes in a request or a reply. Nothing else may change one (docs/changes.md).

Requests
1. Hop-by-hop headers (RFC 9110, 7.6.1), ``Host``, ``Expect``, ``Content-Length`` and ``Content-Encoding`` are
   replaced by those of the upstream connection: `request_headers`. A header that is not UTF-8 is left out, here and
   in replies.
2. Credentials: the client's go upstream only with ``auth.mode = "passthrough"``; else the upstream's own are set.
3. ``X-Request-Id`` is added where the client sent none.
4. A body with a content coding is decoded (`proxy.body`).
5. ID fields that a client set itself are refused with 400: `client_ids`.
6. ``cache_salt`` is set per tenant, repaired or not: `salt_for`.
7. The ID field is added: `id_member`.
Replies
8. Hop-by-hop headers are replaced by those of the client connection: `reply_headers`.
9. Fields that TokTier itself asked for are removed again. It asks for none, so a reply's body is never parsed on its
   way.
10. One SSE ``error`` event follows what was sent when an upstream dies in the middle of a stream: `error_event`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from multidict import CIMultiDict, CIMultiDictProxy

from proxy.errors import UPSTREAM_ERROR, ApiError
from proxy.jsonspan import Parsed
from proxy.tenants import Tenant, Tenants

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_FORWARDED = HOP_BY_HOP | {"host", "expect", "content-length", "content-encoding", "http2-settings"}
CREDENTIALS = frozenset({"authorization", "x-api-key", "api-key", "cookie"})

ID_PATHS: dict[str, tuple[str, ...]] = {
    "vllm": ("kv_transfer_params", "prompt_token_ids"),
    "sglang": ("input_ids",),
    "trtllm": ("prompt_token_ids",),
    "dynamo": ("nvext", "token_data"),
}
"""Where each engine takes the IDs of a chat prompt (facts: vLLM 0.27, SGLang 0.5.23, TensorRT-LLM 1.2, Dynamo 1.6)."""

CLIENT_ID_PATHS: tuple[tuple[str, ...], ...] = (*ID_PATHS.values(), ("prompt_token_ids_b64",))
"""ID fields that no client may set, on any route and for any engine: IDs can name control tokens."""


MAX_SALT = 1024
"""Characters of a client's own ``cache_salt``, as vLLM has it (from 0.29 on; from 0.31 most routes take only 128)."""

_LOOK = 4 << 10
"""Bytes of a member that are parsed a second time."""

_NOT_UTF8 = re.compile("[\udc80-\udcff]")
"""How aiohttp decodes bytes of a header that are not UTF-8. Its writer would lose them silently."""


def _connection_options(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    """Header names that ``Connection`` declares hop-by-hop."""
    lines = headers.getall("Connection", ())
    return frozenset(option.strip().lower() for line in lines for option in line.split(","))


def request_headers(
    headers: CIMultiDictProxy[str], *, passthrough: bool, credential: str | None, request_id: str
) -> CIMultiDict[str]:
    """What goes upstream: changes 1 to 3. ``credential``: value of Authorization, or None to set none.

    With ``passthrough`` the client's other credentials go as they are.
    """
    options = _connection_options(headers)
    sent: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        lower = name.lower()
        if lower in _NOT_FORWARDED or lower in options or (lower in CREDENTIALS and not passthrough):
            continue
        if _NOT_UTF8.search(value):
            continue
        sent.add(name, value)
    if credential is not None and not _NOT_UTF8.search(credential):
        sent["Authorization"] = credential
    sent.setdefault("X-Request-Id", request_id)
    return sent


def reply_headers(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """What goes to the client: change 8. ``Content-Length`` stays, since the body does."""
    dropped = HOP_BY_HOP | _connection_options(headers)
    return CIMultiDict(
        (name, value) for name, value in headers.items() if name.lower() not in dropped and not _NOT_UTF8.search(value)
    )


def client_ids(parsed: Parsed) -> str | None:
    """Change 5: the path of an ID field that the client set, or None. Null is as good as absent.

    Every occurrence of a repeated name is looked at: engines differ in which one counts.
    """
    names = {member.name for member in parsed.members}
    for path in CLIENT_ID_PATHS:
        if path[0] not in names:
            continue
        values: Iterable[Any] = parsed.values_of(path[0]) if parsed.repeats else [parsed.outline[path[0]]]
        if len(path) == 1:
            found = any(value is not None for value in values)
        else:
            holders = [value for value in values if isinstance(value, dict) and path[1] in value]
            found = any(value[path[1]] is not None for value in holders)
            found = found or (bool(holders) and _says_twice(parsed, *path))
        if found:
            return ".".join(path)
    return None


def _says_twice(parsed: Parsed, name: str, key: str) -> bool:
    """Whether a member ``name`` has ``key`` more than once, so that one null may hide another's value. True also where
    the member is too long for a look."""
    for member in parsed.members:
        if member.name != name:
            continue
        if member.end - member.start > _LOOK:
            return True
        ((_, pairs),) = json.loads(b"{" + parsed.raw[member.start : member.end] + b"}", object_pairs_hook=list)
        if isinstance(pairs, list) and sum(isinstance(one, tuple) and one[0] == key for one in pairs) > 1:
            return True
    return False


def refuse_client_ids(parsed: Parsed) -> None:
    """400 where `client_ids` finds one."""
    path = client_ids(parsed)
    if path is not None:
        raise ApiError(
            400, f"{path} is set by TokTier and must not be sent by clients.", param=path, code="forbidden_field"
        )


def salt_for(tenants: Tenants, tenant: Tenant, body: Mapping[str, Any]) -> str:
    """Change 6: the tenant's salt, or, where the client brought one of its own, a salt made from both.

    A client can so divide its own cache but never share one with another tenant. Raises 400 for a salt that the engine
    would refuse.
    """
    own = body.get("cache_salt")
    if own is None:
        return tenant.salt
    if not isinstance(own, str) or not 0 < len(own) <= MAX_SALT:
        what = f"cache_salt must be a string of 1 to {MAX_SALT} characters."
        raise ApiError(400, what, param="cache_salt", code="invalid_cache_salt")
    return tenants.mixed_salt(tenant, own)


def id_member(token_field: str, ids: Sequence[bytes]) -> tuple[str, Sequence[bytes]]:
    """Change 7: the member that carries ``ids`` (a JSON array in pieces) to an engine with this ``token_field``."""
    name, *inner = ID_PATHS[token_field]
    return (name, [b'{"' + inner[0].encode() + b'":', *ids, b"}"]) if inner else (name, ids)


def error_event(boundary: bool) -> bytes:
    """Change 10. ``boundary``: what was sent ends with a whole event; else that event is ended first.

    Its shape is read as an error by OpenAI's and Anthropic's SDKs alike. There is never a made-up ``[DONE]``.
    """
    error = {
        "message": "The upstream engine closed the stream before it was complete.",
        "type": UPSTREAM_ERROR,
        "param": None,
        "code": "upstream_closed",
    }
    event = "event: error\ndata: " + json.dumps({"type": "error", "error": error}, separators=(",", ":")) + "\n\n"
    return (b"" if boundary else b"\n\n") + event.encode()
