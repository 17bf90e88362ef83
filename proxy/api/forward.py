"""The other routes of the allow-list: forwarded untouched to the upstream of the model they name, or to the default."""

from __future__ import annotations

from urllib.parse import quote, unquote

from aiohttp import web

from proxy import errors
from proxy.exchange import Exchange
from proxy.routes import Kind
from proxy.upstream import Body, Reply, Upstream

_WITH_DONE = frozenset({"/v1/completions", "/v1/chat/completions/batch"})
"""Routes whose event streams end in ``[DONE]``."""


async def forward(exchange: Exchange, named: str | None) -> web.StreamResponse:
    """Serve one request. ``named``: the model that the path names, still percent-encoded."""
    upstream, reply = await _sent(exchange, named)
    exchange.share.release()
    return await exchange.relay(upstream, reply, done=exchange.route.pattern in _WITH_DONE)


async def _sent(exchange: Exchange, named: str | None) -> tuple[Upstream, Reply]:
    """The upstream and its reply. Whatever is held of the body goes with this call."""
    route = exchange.route
    if route.bypass is not None:
        exchange.record.bypassed(route.bypass)
    path = None
    raw: Body | None
    if route.kind is Kind.JSON:
        parsed = await exchange.read_json()
        model = exchange.model(parsed)
        upstream = exchange.default_upstream() if model is None else model.upstream
        remove, add = exchange.salt(parsed)
        raw = parsed.pieces(remove, add)
    else:
        if named is None:
            upstream = exchange.default_upstream()
        else:
            name = unquote(named)
            model = exchange.generation.registry.find(name)
            if model is None:
                raise errors.unknown_model()
            exchange.record.model = model.name
            upstream = model.upstream
            path = route.pattern.replace("{model}", quote(name, safe="/:@"))
        raw = [await exchange.read()] if exchange.request.body_exists else None
    return upstream, await exchange.send(upstream, raw, path)
