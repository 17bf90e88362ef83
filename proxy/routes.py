"""The allow-list: which paths are served, with which methods, and how. docs/routes.md repeats it for people.

Invariants
1. A path that is not listed is 404, whatever the upstream has: metrics, sleep, cache resets, LoRA loading, profiling.
2. What goes upstream is a path of this list, with at most one `{id}` of harmless characters in it: no dot segments, no
   percent-encoding, no second slash.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from toktier.reasons import Bypass


class Kind(Enum):
    """How a route is served."""

    CHAT = "chat"  # repaired
    JSON = "json"  # forwarded; the model is read from the JSON body
    BODY = "body"  # forwarded to the default upstream; the body is not read as JSON
    MODEL = "model"  # forwarded to the upstream of the model that the path names
    HEALTH = "health"
    READY = "ready"
    METRICS = "metrics"


@dataclass(frozen=True, slots=True)
class Route:
    """``salted``: the engine may keep the prompt in its prefix cache, so ``cache_salt`` is set."""

    pattern: str
    methods: tuple[str, ...]
    kind: Kind
    salted: bool = False
    bypass: Bypass | None = None


_POST = ("POST",)
ROUTES: tuple[Route, ...] = (
    Route("/health", ("GET", "HEAD"), Kind.HEALTH),
    Route("/ready", ("GET", "HEAD"), Kind.READY),
    Route("/metrics", ("GET",), Kind.METRICS),
    Route("/v1/chat/completions", _POST, Kind.CHAT, salted=True),
    Route("/v1/chat/completions/batch", _POST, Kind.JSON, salted=True, bypass=Bypass.BATCH_ROUTE),
    Route("/v1/chat/completions/render", _POST, Kind.JSON, bypass=Bypass.BATCH_ROUTE),
    Route("/v1/completions/render", _POST, Kind.JSON),
    Route("/v1/models", ("GET", "HEAD"), Kind.BODY),
    Route("/v1/models/{model}", ("GET", "HEAD"), Kind.MODEL),
    Route("/v1/completions", _POST, Kind.JSON, salted=True),
    Route("/v1/responses", _POST, Kind.JSON, salted=True),
    Route("/v1/responses/input_tokens", _POST, Kind.JSON),
    Route("/v1/responses/{id}", ("GET", "DELETE"), Kind.BODY),
    Route("/v1/responses/{id}/cancel", _POST, Kind.BODY),
    Route("/v1/responses/{id}/input_items", ("GET",), Kind.BODY),
    Route("/v1/messages", _POST, Kind.JSON, salted=True),
    Route("/v1/messages/count_tokens", _POST, Kind.JSON),
    Route("/v1/embeddings", _POST, Kind.JSON, salted=True),
    Route("/v1/moderations", _POST, Kind.JSON),
    Route("/v1/audio/transcriptions", _POST, Kind.BODY),
    Route("/v1/audio/translations", _POST, Kind.BODY),
    Route("/v1/audio/speech", _POST, Kind.JSON),
    Route("/pooling", _POST, Kind.JSON, salted=True),
    Route("/classify", _POST, Kind.JSON, salted=True),
    Route("/score", _POST, Kind.JSON, salted=True),
    Route("/v1/score", _POST, Kind.JSON, salted=True),
    Route("/rerank", _POST, Kind.JSON, salted=True),
    Route("/v1/rerank", _POST, Kind.JSON, salted=True),
    Route("/v2/rerank", _POST, Kind.JSON, salted=True),
    Route("/tokenize", _POST, Kind.JSON),
    Route("/v1/tokenize", _POST, Kind.JSON),
    Route("/detokenize", _POST, Kind.JSON),
    Route("/v1/detokenize", _POST, Kind.JSON),
)

_EXACT = {route.pattern: route for route in ROUTES if "{" not in route.pattern}
_MODEL = next(route for route in ROUTES if route.kind is Kind.MODEL)
_WITH_ID = [
    (re.compile(re.escape(route.pattern).replace(r"\{id\}", r"[A-Za-z0-9_-]{1,256}")), route)
    for route in ROUTES
    if "{id}" in route.pattern
]


def match(path: str) -> tuple[Route, str | None] | None:
    """The route of an undecoded path and the model that the path names; None: not served."""
    route = _EXACT.get(path)
    if route is not None:
        return route, None
    prefix = _MODEL.pattern.removesuffix("{model}")
    if path.startswith(prefix):
        name = path[len(prefix) :]
        # Names may have slashes (org/name). What else they may be, the registry decides.
        return None if {"", ".", ".."} & set(name.split("/")) else (_MODEL, name)
    for pattern, with_id in _WITH_ID:
        if pattern.fullmatch(path):
            return with_id, None
    return None
