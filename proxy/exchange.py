"""One request on its way through TokTier: what the handlers in `proxy.api` share.

An exchange keeps the `Generation` (settings, tenants, models) that it began with, whatever is reloaded meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from aiohttp import ClientError, web
from multidict import CIMultiDict

from proxy import body, changes, errors, jsonspan
from proxy.audit import Flag, RequestRecord
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.ingest import Ingest
from proxy.lanes import Lanes
from proxy.registry import ModelRuntime, Registry
from proxy.relay import End, Relayed, relay
from proxy.routes import Route
from proxy.shadow import Shadow
from proxy.tenants import Tenant, Tenants
from proxy.upstream import Again, Attempts, Body, Reply, Sending, Upstream
from toktier.errors import TakesLong
from toktier.json_pieces import JsonLimits, TooDeep, TooManyValues
from toktier.known import Source
from toktier.sessions import SessionStore

_log = structlog.get_logger("toktier.proxy")

INLINE_BYTES = 64 << 10
"""Larger bodies are parsed, checked and written in a thread."""
INLINE_S = 0.002
"""And so are those that take longer than this, in seconds: some bytes are parsed twenty times as slowly as others."""
BESIDE_BYTES = 16 << 20
"""A body up to this size is compared with an earlier one at once: a tenth of a millisecond for a million bytes."""

Member = tuple[str, Sequence[bytes]]
_T = TypeVar("_T")


@dataclass
class Generation:
    """One configuration in force, and how many requests still use it."""

    settings: Settings
    tenants: Tenants
    registry: Registry
    in_flight: int = 0
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Early:
    """A request that can be sent from within other work, which then goes on while the engine works."""

    def __init__(
        self, upstream: Upstream, sending: Sending, method: str, target: str, headers: CIMultiDict[str]
    ) -> None:
        self._upstream = upstream
        self._sending: Sending | None = sending
        self._method, self.target, self.headers = method, target, headers

    def hand_over(self, body: Body) -> None:
        """Sends it, or does not where that cannot be done now: `Exchange.send` does it then. Never raises for that."""
        sending = self._sending
        assert sending is not None
        try:
            self._upstream.begin(sending, self._method, self.target, self.headers, body)
        except (ValueError, OSError, ClientError):
            sending.close()
            self._sending = None

    def taken(self) -> Sending | None:
        """The request, if it has begun; from now on its connection is the caller's."""
        sending, self._sending = self._sending, None
        if sending is not None and sending.begun_ns is None:
            sending.give_back()
            return None
        return sending

    def drop(self) -> None:
        """Nobody waits for a reply; what was sent is taken back as far as possible. Does nothing after `taken`."""
        sending, self._sending = self._sending, None
        if sending is not None:
            sending.give_back()


@dataclass
class Exchange:
    """A request, the reply under way, and the record of both."""

    request: web.BaseRequest
    route: Route
    generation: Generation
    tenant: Tenant
    record: RequestRecord
    lanes: Lanes
    share: body.Share
    shadow: Shadow
    store: SessionStore
    quick: bool = False
    """Whether the body proved to be small work."""
    relayed: Relayed = field(default_factory=Relayed)
    named: object = None
    """``model`` of the body, as the client wrote it."""

    async def read(self) -> bytes:
        """The whole body, decoded and within the limit."""
        server, limits = self.generation.settings.server, self.generation.settings.limits
        pace = body.Pace(server.read_timeout_s, limits.body_bytes_per_s)
        with self.record.stage("read"):
            raw = await body.read(
                self.request, server.max_body_bytes, pace, self.share, self.in_thread, server.prepare_timeout_s
            )
        self.record.bytes_in = len(raw)
        return raw

    async def read_json(self) -> jsonspan.Parsed:
        """The body as a JSON object without a client's own ID fields. Raises `ApiError` 400 for anything else."""
        return (await self.read_known(None))[0]

    async def read_known(self, hint: str | None, *, keep: bool = False) -> tuple[jsonspan.Parsed, Source | None]:
        """As `read_json`; with ``keep``, read beside an earlier body of the tenant where there is one that is alike.

        ``hint``: what the request's head says of its session. The source is what a session keeps of the body.
        """
        raw = await self.read()
        limits = self.generation.settings.limits
        with self.record.stage("parse"):
            within = JsonLimits(limits.json_depth, limits.json_values)
            try:
                raw = await self._in_utf8(raw)
                ingest = Ingest(raw, within, self.store if keep else None, self.tenant.id_hash, hint)
                parsed = await self._parse(ingest)
            except TooDeep:
                raise errors.json_too_deep(limits.json_depth) from None
            except TooManyValues:
                raise errors.json_too_many_values(limits.json_values) from None
            except jsonspan.NotAnObject:
                raise ApiError(400, "The body must be a JSON object.", code="invalid_json") from None
            except UnicodeDecodeError as error:
                encoding = error.encoding.upper()
                raise ApiError(400, f"The body is not {encoding} at byte {error.start}.", code="invalid_json") from None
            except (ValueError, RecursionError) as error:
                place = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
                raise ApiError(400, f"The body is not valid JSON{place}.", code="invalid_json") from None
        messages = parsed.outline.get("messages")
        if isinstance(messages, list) and len(messages) > limits.messages:
            raise errors.too_many_messages(limits.messages)
        return parsed, ingest.source(parsed)

    async def _in_utf8(self, raw: bytes) -> bytes:
        if jsonspan.is_utf8(raw):
            return raw
        told = await self.in_thread(len(raw), lambda: jsonspan.in_utf8(raw))
        limit = self.generation.settings.server.max_body_bytes
        if len(told) > limit:
            raise errors.too_large(limit)
        self.share.hold(len(told))
        return told

    async def _parse(self, ingest: Ingest) -> jsonspan.Parsed:
        size = len(ingest.raw)
        if size <= (BESIDE_BYTES if ingest.is_likely else INLINE_BYTES) and await self.turn():
            with suppress(TakesLong), self.lanes.turn.work():
                parsed = ingest.beside(INLINE_S)
                if parsed is None and size <= INLINE_BYTES:
                    parsed = ingest.whole(INLINE_S)
                if parsed is not None:
                    self.quick = True
                    return parsed
        return await self.in_thread(size, lambda: ingest.beside() or ingest.whole())

    async def turn(self, *, begun: bool = False) -> bool:
        """Waits for a turn of the event loop, as `Turn.mine` does."""
        return await self.lanes.turn.mine(self.generation.settings.limits.waiting, begun=begun)

    async def work(self, size: int, what: Callable[[], _T]) -> _T:
        """``what()``, which takes time by the ``size`` of a body in bytes: in a thread unless that is small."""
        if self.quick and size <= INLINE_BYTES:
            with self.lanes.turn.work():
                return what()
        return await self.in_thread(size, what)

    async def in_thread(self, size: int, what: Callable[[], _T], timeout_s: float | None = None) -> _T:
        """``what()`` in a worker thread, of the lane for a body of ``size`` bytes. Raises as `Lanes.run`."""
        return await self.lanes.run(size, what, self.generation.settings.limits.waiting, timeout_s)

    def model(self, parsed: jsonspan.Parsed) -> ModelRuntime | None:
        """The model that the body names; None where it names none. Raises `ApiError` 404 for an unknown one."""
        self.named = name = parsed.outline.get("model")
        if name is None:
            return None
        model = self.generation.registry.find(name)
        if model is None:
            raise errors.unknown_model()
        self.record.model = model.name
        return model

    def default_upstream(self) -> Upstream:
        """Where requests go that name no model. Raises `ApiError` 400 when there is no such upstream."""
        upstream = self.generation.registry.default
        if upstream is None:
            raise ApiError(400, "The request names no model.", param="model", code="model_required")
        return upstream

    def salt(self, parsed: jsonspan.Parsed) -> tuple[Collection[str], list[Member]]:
        """Members to leave out and to add for this tenant's ``cache_salt``."""
        if not self.route.salted or self.generation.settings.auth.salt == "off":
            return (), []
        salt = changes.salt_for(self.generation.tenants, self.tenant, parsed.outline)
        return {"cache_salt"}, [("cache_salt", [b'"' + salt.encode() + b'"'])]

    async def early(self, upstream: Upstream) -> Early | None:
        """A way to send the request at once, from within other work; None where no connection is free for that."""
        sending = await upstream.idle()
        return None if sending is None else Early(upstream, sending, self.request.method, *self._head(upstream))

    def _head(self, upstream: Upstream, path: str | None = None) -> tuple[str, CIMultiDict[str]]:
        """What is asked for, and with which headers."""
        request = self.request
        passthrough = self.generation.settings.auth.mode == "passthrough"
        headers = changes.request_headers(
            request.headers,
            passthrough=passthrough,
            credential=self.tenant.credential if passthrough else upstream.credential,
            request_id=self.record.request_id,
        )
        query = request.rel_url.raw_query_string
        return (path or request.rel_url.raw_path) + (f"?{query}" if query else ""), headers

    async def send(
        self,
        upstream: Upstream,
        raw: Body | None,
        path: str | None = None,
        again: Again | None = None,
        early: Early | None = None,
    ) -> Reply:
        """Send ``raw`` to ``path`` (else the request's own) with the client's query. The caller closes the reply.

        ``again``: as for `Upstream.send`. ``early``: where ``raw`` may have been handed over already.
        """
        record = self.record
        record.upstream = upstream.name
        target, headers = self._head(upstream, path) if early is None else (early.target, early.headers)
        begun = None if early is None else early.taken()
        attempts = Attempts()
        start = time.perf_counter_ns() if begun is None or begun.begun_ns is None else begun.begun_ns
        try:
            reply = await upstream.send(self.request.method, target, headers, raw, attempts, again, begun)
        except ApiError as error:
            if error.status >= 500:
                record.flags.add(Flag.UPSTREAM_TIMEOUT if error.status == 504 else Flag.UPSTREAM_UNREACHABLE)
                if record.stream:
                    record.flags.add(Flag.INCOMPLETE_STREAM)
            raise
        finally:
            record.attempts += attempts.count
            if attempts.count > 1:
                record.flags.add(Flag.CONNECTION_RETRY)
            record.add_stage("connect", attempts.connect_us * 1000)
        record.add_stage("ttfb", time.perf_counter_ns() - start)
        record.upstream_status = reply.status
        return reply

    async def relay(self, upstream: Upstream, reply: Reply, *, done: bool, read: bytes = b"") -> web.StreamResponse:
        """Relay the reply and note what became of it. Closes it."""
        relayed, record = self.relayed, self.record
        try:
            return await relay(
                self.request,
                reply,
                relayed,
                write_timeout_s=self.generation.settings.server.write_timeout_s,
                ends_with_done=done,
                read=read,
            )
        finally:
            reply.close()
            record.bytes_out = relayed.body_bytes
            if relayed.end is End.CLIENT_GONE:
                record.flags.add(Flag.CLIENT_GONE)
            elif relayed.end is End.CLIENT_STALLED:
                record.flags.add(Flag.CLIENT_STALLED)
            elif relayed.end is End.INCOMPLETE:
                record.flags.add(Flag.INCOMPLETE_STREAM)
            if relayed.error and reply.status == 200:
                record.flags.add(Flag.ERROR_UNDER_200)
            if relayed.upstream_broke and not relayed.upstream_silent:
                upstream.on_failure()
            if relayed.prompt_tokens is not None:
                record.usage(relayed.prompt_tokens)
