"""POST /v1/chat/completions: the client's body plus the IDs, or untouched with a reason.

Invariant: whatever goes wrong in TokTier's own part (rendering, encoding, an unexpected exception), the request still
goes upstream as text. Only what the engine could not serve either is refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from proxy import changes
from proxy.api import controls
from proxy.api.checks import refuse_ids_out_of_range, refuse_surrogates
from proxy.api.refusal import STATUSES, refused
from proxy.audit import Flag
from proxy.errors import ApiError
from proxy.exchange import Early, Exchange, Member
from proxy.jsonspan import Parsed
from proxy.registry import ModelRuntime, State
from proxy.relay import End
from proxy.sent import Sent
from proxy.shadow import Shadow
from proxy.upstream import Body, Reply, Upstream
from toktier.errors import TakesLong, Unrenderable
from toktier.reasons import Bypass, Cause
from toktier.tier import SessionBusy

if TYPE_CHECKING:
    from toktier.known import Source
    from toktier.tier import Prepared

_log = structlog.get_logger("toktier.chat")

HINTS = ("x-session-id", "session-id", "session_id", "x-session-affinity", "x-claude-code-session-id")
"""Headers in which agents name their session; else the body's ``prompt_cache_key`` is asked. A hint only: one value may
carry several conversations."""


async def chat(exchange: Exchange) -> web.StreamResponse:
    """Serve one chat request."""
    model, reply, start, sent = await _sent(exchange)
    exchange.share.release()
    return await _finish(exchange, model, reply, start, sent)


async def _sent(exchange: Exchange) -> tuple[ModelRuntime, Reply, bytes, Sent | None]:
    """The model, its reply, what was read of that, and the IDs that it answers (None: it answers text).

    Whatever is held of the body goes with this call, but for what `proxy.sent` has room for.
    """
    record = exchange.record
    hint = next((exchange.request.headers[name] for name in HINTS if name in exchange.request.headers), None)
    parsed, source = await exchange.read_known(hint, keep=True)
    model = exchange.model(parsed) or _only_model(exchange)
    record.model, record.upstream = model.name, model.upstream.name
    stream = parsed.outline.get("stream")
    record.stream = stream if isinstance(stream, bool) else None
    anew = sum(end - start for start, end in parsed.fresh())
    await exchange.work(anew, lambda: _check(parsed, model.vocab_size))
    if model.settings.control_tokens == "reject":
        await _without_control_tokens(exchange, model, parsed, source)
    remove, add = exchange.salt(parsed)

    async def text_again() -> Body:
        record.bypassed(Bypass.UPSTREAM_UNPROBED, "the connection had to be replaced")
        return parsed.pieces(remove, add)

    repaired = await _repair(exchange, model, parsed, source, hint, remove, add)
    if repaired is not None:
        with_ids, sent, early = repaired
        reply = await exchange.send(model.upstream, with_ids, again=text_again, early=early)
        if record.bypass is not None:
            return model, reply, b"", None
        try:
            refusal = await refused(reply, model.upstream.settings.token_field)
        except BaseException:
            reply.close()
            raise
        if reply.status == 200:
            model.accepted()
        if refusal is None or not refusal.names_ids:
            return model, reply, refusal.start if refusal else b"", sent
        reply.close()
        record.bypassed(Bypass.UPSTREAM_REFUSED_IDS)
        record.flags.add(Flag.IDS_REFUSED_RETRY)
    reply = await exchange.send(model.upstream, parsed.pieces(remove, add))
    if Flag.IDS_REFUSED_RETRY in record.flags and reply.status not in STATUSES:
        # Engines quote a body that is wrong in another way, the IDs in it too: that is no refusal of the IDs.
        model.refused()
    return model, reply, b"", None


def _check(parsed: Parsed, vocab_size: int | None) -> None:
    refuse_surrogates(parsed)
    if vocab_size is not None:
        refuse_ids_out_of_range(parsed.outline, vocab_size)


def _only_model(exchange: Exchange) -> ModelRuntime:
    """The model of a request that names none: engines that serve one model allow that."""
    models = list(exchange.generation.registry.models.values())
    if len(models) != 1:
        raise ApiError(400, "The request names no model.", param="model", code="model_required")
    return models[0]


async def _without_control_tokens(
    exchange: Exchange, model: ModelRuntime, parsed: Parsed, source: Source | None
) -> None:
    if model.loaded is None:
        raise controls.not_loaded()
    search = controls.Search(parsed, source, model.loaded.control)
    try:
        await exchange.work(search.nbytes, search.refuse)
    except ApiError:
        exchange.record.flags.add(Flag.CONTROL_TOKEN_IN_CONTENT)
        raise


async def _repair(
    exchange: Exchange,
    model: ModelRuntime,
    parsed: Parsed,
    source: Source | None,
    hint: str | None,
    remove: Collection[str],
    add: list[Member],
) -> tuple[Body, Sent | None, Early | None] | None:
    """The body with IDs, which may be on its way already; None, with the reason on record, when it must go as text."""
    record = exchange.record
    if parsed.repeats:
        record.bypassed(Bypass.DUPLICATE_KEYS)
        return None
    if model.state is not State.OK or model.tier is None:
        record.bypassed(model.reason or Bypass.TOKENIZER_UNAVAILABLE, model.detail)
        return None
    if hint is None:
        key = parsed.outline.get("prompt_cache_key")
        hint = key if isinstance(key, str) else None
    tenant = exchange.tenant.id_hash
    work = _Work(model, tenant, parsed, source, remove, add, hint, exchange.shadow, record.request_id)
    try:
        prepared = await _prepare(exchange, work, parsed)
    except Unrenderable as reason:
        record.bypassed(reason.bypass, reason.detail or None)
        return None
    except ApiError:
        raise
    except BaseException as error:
        # A panic in a Rust engine is no Exception; it too must not cost the client its request.
        if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, SystemExit, GeneratorExit)):
            raise
        _log.exception("prepare_failed", model=model.name, request_id=record.request_id)
        record.bypassed(Bypass.INTERNAL_ERROR)
        return None
    record.take(prepared)
    if prepared.cause is Cause.NONE and model.beginnings.differs(prepared.session, prepared.continued):
        record.cause = Cause.TEMPLATE_VS_MODEL
    if model.state is not State.OK:  # it was doubted meanwhile
        record.bypassed(model.reason or Bypass.UPSTREAM_UNPROBED, model.detail)
        work.drop()
        return None
    record.versions = dict(model.versions)
    record.add_stage("serialise", work.serialise_ns)
    assert work.body is not None
    return work.body, work.sent, work.early


async def _prepare(exchange: Exchange, work: _Work, parsed: Parsed) -> Prepared:
    """What `_Work.run` gives. Raises what it raises, and `Unrenderable` when it takes too long.

    On the event loop's own thread the request goes out as soon as its IDs are there: what is done then for the session,
    for a check and for the log is done while the engine works.
    """
    server = exchange.generation.settings.server
    size = len(parsed.raw)
    if exchange.lanes.full(size):
        raise Unrenderable(Bypass.PREPARE_TIMEOUT, "too many threads are stuck")
    if exchange.quick and parsed.read < server.inline_below_bytes and work.begun and await exchange.turn(begun=True):
        work.early = await exchange.early(work.upstream)
        try:
            with exchange.lanes.turn.work():
                return work.run(wait=False)
        except (SessionBusy, TakesLong):
            work.drop()  # a thread may wait, the event loop may not
        except BaseException:
            work.drop()
            raise
    try:
        return await exchange.in_thread(size, work.run, server.prepare_timeout_s)
    except TimeoutError:
        record = exchange.record
        _log.error("prepare_stuck", model=record.model, request_id=record.request_id, stuck=exchange.lanes.stuck)
        raise Unrenderable(Bypass.PREPARE_TIMEOUT, f"over {server.prepare_timeout_s:g} s") from None


class _Work:
    """What a worker thread does for one request: render, splice, write the body, queue a check."""

    def __init__(
        self,
        model: ModelRuntime,
        tenant: str,
        parsed: Parsed,
        source: Source | None,
        remove: Collection[str],
        add: list[Member],
        hint: str | None,
        shadow: Shadow,
        request_id: str,
    ) -> None:
        self._model, self._tenant, self._parsed, self._hint = model, tenant, parsed, hint
        self._source = source
        self._remove, self._add = remove, add
        self._shadow, self._request_id = shadow, request_id
        self.body: Body | None = None
        """The body that carries the IDs."""
        self.early: Early | None = None
        """How it is sent before `run` is done."""
        self.sent: Sent | None = None
        self.serialise_ns = 0

    @property
    def begun(self) -> bool:
        """Whether the event loop's thread can do it as quickly as any."""
        return self._model.loaded is not None and self._model.loaded.begun

    @property
    def upstream(self) -> Upstream:
        return self._model.upstream

    def run(self, wait: bool = True) -> Prepared:
        """The tier's answer; `body` is there then. Raises what `ModelTier.prepare` raises."""
        loaded = self._model.loaded
        assert loaded is not None
        prepared = loaded.tier.prepare(
            self._tenant,
            self._parsed.outline,
            self._hint,
            wait=wait,
            source=self._source,
            ready=None if self.early is None else self._send,
        )
        if self.body is None:
            self._write(prepared.json())
        self.sent = self._shadow.prepared(self._model, loaded, self._parsed, prepared, self._request_id)
        return prepared

    def drop(self) -> None:
        """What was sent is not to be answered."""
        self.body = None
        if self.early is not None:
            self.early.drop()
            self.early = None

    def _send(self, ids: list[bytes]) -> None:
        assert self.early is not None
        self.early.hand_over(self._write(ids))

    def _write(self, ids: list[bytes]) -> Body:
        start = time.perf_counter_ns()
        name, value = changes.id_member(self._model.upstream.settings.token_field, ids)
        # A client may send the field as null, which means absent.
        self.body = self._parsed.pieces({*self._remove, name}, [*self._add, (name, value)])
        self.serialise_ns = time.perf_counter_ns() - start
        return self.body


async def _finish(
    exchange: Exchange, model: ModelRuntime, reply: Reply, start: bytes, sent: Sent | None
) -> web.StreamResponse:
    """Relay the reply. ``sent``: the IDs that it answers; None where it answers text."""
    response = await exchange.relay(model.upstream, reply, done=True, read=start)
    record = exchange.record
    known = exchange.named not in (None, model.probe_name) or model.answered(reply.status, exchange.relayed.marks)
    if sent is not None and exchange.relayed.end is End.COMPLETE and reply.status == 200:
        if record.prompt_tokens_equal is not None:
            model.counted(record.prompt_tokens_equal)
        if known:  # another engine's word says nothing about these IDs
            exchange.shadow.answered(model, sent, record.usage_prompt_tokens)
            model.beginnings.note(sent.session, exchange.relayed.began)
    return response
