"""GET /health (the process), /ready (can it serve?) and /metrics."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web

from proxy.exchange import Generation
from proxy.gpu import Gpus
from proxy.registry import State
from proxy.scrapes import Scrapes
from toktier.quarantine import Quarantine
from toktier.reasons import BYPASS_HELP


def health() -> web.Response:
    """200 as long as the process answers."""
    return _json(200, {"status": "ok"})


def ready(generation: Generation, quarantine: Quarantine, gpus: Gpus) -> web.Response:
    """200 when at least one model can be served; ``degraded`` names models that are served without repair, and why.

    Anything in quarantine is degraded too, and a GPU that is required and does not work. 503 when no upstream of any
    model answers (or none has yet).
    """
    models: dict[str, Any] = {}
    reasons: list[str] = []
    reachable = False
    for name, runtime in generation.registry.models.items():
        reachable = reachable or runtime.reachable is True
        entry: dict[str, Any] = {"state": runtime.state.value, "upstream": runtime.upstream.name}
        if runtime.reason is not None:
            entry |= {"reason": runtime.reason.value, "help": BYPASS_HELP[runtime.reason], "detail": runtime.detail}
        if runtime.reachable is not True:
            reasons.append(f"{name}: upstream {'not asked yet' if runtime.reachable is None else 'unreachable'}")
        elif runtime.wants_ids and runtime.state is not State.OK:
            reasons.append(f"{name}: {runtime.reason.value if runtime.reason else runtime.state.value}")
        models[name] = entry
    entries = quarantine.entries()
    reasons += [
        f"quarantine: {f'stale entry of {e.model}, every model' if e.stale else e.model}, path {e.path.value}, "
        f"level {e.level.value}"
        for e in entries
    ]
    if quarantine.everything is not None:
        reasons.append("quarantine: the file was damaged; nothing is trusted until all is lifted")
    if quarantine.unwritable is not None:
        reasons.append("quarantine: the file cannot be written; what is in quarantine ends with the process")
    if gpus.degraded is not None:
        reasons.append(gpus.degraded)
    body = {
        "status": "unavailable" if models and not reachable else "degraded" if reasons else "ready",
        "degraded": bool(reasons),
        "reasons": reasons,
        "models": models,
        "gpu": gpus.told(),
        "quarantine": [
            {
                "tokenizer_digest": e.tokenizer_digest,
                "path": e.path.value,
                "level": e.level.value,
                "source": e.source.value,
                "model": e.model,
                "since": e.since,
                "count": e.count,
                "versions": e.versions,
                "stale": e.stale,
            }
            for e in entries
        ],
    }
    return _json(200 if reachable or not models else 503, body)


async def metrics(scrapes: Scrapes, accept: str | None) -> web.Response:
    """The Prometheus text."""
    body, content_type = await scrapes.text(accept)
    return web.Response(body=body, headers={"Content-Type": content_type})


def _json(status: int, value: Any) -> web.Response:
    return web.Response(status=status, body=json.dumps(value).encode(), content_type="application/json")
