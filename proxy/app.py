"""The application: which handler serves a request, and the life of what they share.

Invariants
1. Every reply that TokTier itself writes is JSON in OpenAI's shape, metrics apart.
2. Every request to a served API path gets one log line and one count, whatever becomes of it.
3. The application starts before its tokenizers are loaded and its upstreams answer, and serves as text until they do.
4. A reload makes a new `Generation`; requests under way end in the one that they began with. What it leaves unchanged
   (an upstream, a model in state OK) is in both, and goes on as it was.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from proxy import audit, body, config, errors, routes
from proxy.api import health
from proxy.api.chat import chat
from proxy.api.forward import forward
from proxy.audit import Flag, RequestRecord
from proxy.body import expects_continue, transfer_coding_is_known
from proxy.config import Settings
from proxy.errors import ApiError
from proxy.exchange import Exchange, Generation
from proxy.gpu import GpuCollector, Gpus
from proxy.lanes import Lanes
from proxy.lookout import Lookout
from proxy.metrics import Metrics
from proxy.probe import LAST_RETRY_S, No, Probe, keep_probed, keep_watched
from proxy.registry import CannotLoad, Loaded, ModelRuntime, Registry, State
from proxy.routes import Kind, Route
from proxy.scrapes import Scrapes
from proxy.server import DOOR, MAX_HEADER_BYTES, MAX_HEADERS, VERSIONS, Door, is_stalled, plain_head
from proxy.shadow import Shadow
from proxy.tenants import AuthError, Tenants
from proxy.workers import Workers
from toktier.errors import is_failure
from toktier.quarantine import Quarantine
from toktier.reasons import Bypass
from toktier.sessions import SessionStore

_log = structlog.get_logger("toktier.app")

SWEEP_S = 5.0
"""How often sessions beyond their time are looked for."""

LAST_CHECKS_S = 5.0
"""How long the end of the process waits for checks at least, where requests have used the whole grace."""

LoadTier = Callable[[str, config.Model, config.Server, SessionStore, Quarantine], Loaded]


class Core:
    """What lives as long as the process: the session store, the worker threads, the metrics, the present generation."""

    def __init__(self, settings: Settings, load: LoadTier, gpus: Gpus) -> None:
        self._load = load
        self._gpus = gpus
        self._first = settings
        self._tenants = Tenants(settings.auth)
        self.metrics = Metrics()
        self.scrapes = Scrapes(self.metrics)
        sessions = settings.sessions
        self.store = SessionStore(sessions.budget_bytes, settings.tenant_share, sessions.ttl_s)
        self.lanes = Lanes(settings.server.threads)
        self.held = body.Held()
        self.in_flight = 0
        self.door = Door(
            lambda: self.generation.settings.limits,
            lambda: self.generation.settings.server.write_timeout_s,
            self.metrics.refusal,
        )
        self.shadow = Shadow(settings, self.store, self.lanes.short, self.metrics)
        self.end_by: float | None = None
        """`time.monotonic` at which the process wants to have ended; None where nobody waits for that."""
        # Loading is slow; it must not take the workers of requests.
        self._loader = Workers(1, "toktier-loader")
        self._tasks: dict[ModelRuntime | Lookout, asyncio.Task[None]] = {}
        """What looks after each model and watches each upstream, of all generations."""
        self._living: list[Generation] = []
        self._closing: set[asyncio.Task[None]] = set()
        self.generation: Generation

    async def run(self, _app: web.Application) -> AsyncIterator[None]:
        """For ``cleanup_ctx``: starts everything, and ends it after the last request."""
        self.generation = self._begin(self._first, self._tenants)
        self._gpus.spare()
        self.metrics.registry.register(GpuCollector(self._gpus))
        self.metrics.watch(
            sessions=lambda: (len(self.store), self.store.nbytes),
            upstreams=lambda: self.generation.registry.states(),
            upstream_states=[state.value for state in State],
            quarantined=lambda: len(self.shadow.quarantine),
            shadow_waiting=lambda: self.shadow.waiting,
        )
        self.metrics.load(
            connections=lambda: self.door.connections, waiting=lambda: self.lanes.waiting, held=lambda: self.held.size
        )
        beside = [
            asyncio.create_task(task) for task in (self.metrics.sample_loop_lag(), self._sweep(), self.shadow.run())
        ]
        try:
            yield
        finally:
            for one in beside:
                one.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            for task in self._closing:
                task.cancel()
            await asyncio.gather(*self._closing, *map(self._end, [*self._living]), return_exceptions=True)
            left = 0.0 if self.end_by is None else self.end_by - time.monotonic()
            await self.shadow.close(max(LAST_CHECKS_S, left))
            self.lanes.shutdown()
            self.scrapes.close()
            self._loader.shutdown(wait=False, cancel_futures=True)
            await asyncio.get_running_loop().run_in_executor(None, self._gpus.close)

    async def _sweep(self) -> None:
        """Drops old sessions also where no request does. Ends only by cancellation."""
        while True:
            await asyncio.sleep(SWEEP_S)
            await asyncio.get_running_loop().run_in_executor(self.lanes.short, self.store.expire)

    async def reload(self, settings: Settings) -> list[str]:
        """Serve new requests by ``settings``. Raises, and changes nothing, when they cannot be used."""
        old = self.generation
        tenants = old.tenants.reloaded(settings.auth)
        sessions = settings.sessions
        self.store.configure(sessions.budget_bytes, settings.tenant_share, sessions.ttl_s)
        self.shadow.configure(settings)
        self.generation = self._begin(settings, tenants, old)
        task = asyncio.create_task(self._retire(old))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        notes = []
        for name, runtime in sorted(self.generation.registry.models.items()):
            if runtime is old.registry.models.get(name):
                notes.append(f"{name}: state kept")
            elif runtime.loaded is not None:
                notes.append(f"{name}: tokenizer kept")
        return notes

    def _begin(self, settings: Settings, tenants: Tenants, before: Generation | None = None) -> Generation:
        """A new generation, with what ``before`` has and the settings do not change (invariant 4)."""
        generation = Generation(settings, tenants, Registry(settings, None if before is None else before.registry))
        self._living.append(generation)
        self.metrics.begin(settings.models)
        old = before.registry.models if before is not None else {}
        for one in _looked_after(generation):
            if one in self._tasks:
                continue
            if isinstance(one, Lookout):
                self._tasks[one] = asyncio.create_task(one.keep())
                continue
            known = old.get(one.name)
            if known is not None and known.loaded is not None and one.settings.loads_as(known.settings):
                one.take(known.loaded)
            self._tasks[one] = asyncio.create_task(self._look_after(one, settings.server))
        return generation

    async def _look_after(self, runtime: ModelRuntime, server: config.Server) -> None:
        """Loads a model and keeps it probed, for its life."""
        probe = Probe(runtime, self.lanes.short)
        if runtime.wants_ids and (runtime.tier is not None or await self._loaded(runtime, server, probe)):
            await keep_probed(runtime, probe, partial(self._look_again, runtime))
        else:
            await keep_watched(runtime, probe)

    async def _look_again(self, runtime: ModelRuntime, *, check: bool) -> None:
        """At the model's files, which may have changed with the engine, or at its certificate. Raises `No`."""
        loaded = runtime.loaded
        look = None if loaded is None else loaded.checked if check else loaded.again
        if look is None:
            return
        try:
            new = await asyncio.get_running_loop().run_in_executor(self._loader, look)
        except CannotLoad as error:
            raise No(error.reason, error.detail) from None
        if new is not None:
            self._take(runtime, new)

    def _take(self, runtime: ModelRuntime, loaded: Loaded) -> None:
        runtime.take(loaded)
        self._begin_engines()

    def _begin_engines(self) -> None:
        """Have the event loop's thread begin with the window engines (`Loaded.begun`) while nobody waits for it. Until
        then requests of such a model are prepared in threads."""
        for runtime in self.generation.registry.models.values() if not self.in_flight else ():
            if runtime.loaded is not None and runtime.loaded.window is not None and not runtime.loaded.begun:
                runtime.loaded.window.begin()

    async def _loaded(self, runtime: ModelRuntime, server: config.Server, probe: Probe) -> bool:
        """Loads the tier, again and again where that may help. False when only another configuration can."""
        loop = asyncio.get_running_loop()
        watching = asyncio.create_task(keep_watched(runtime, probe))
        wait = 1.0
        try:
            while True:
                try:
                    loaded = await loop.run_in_executor(
                        self._loader,
                        self._load,
                        runtime.name,
                        runtime.settings,
                        server,
                        self.store,
                        self.shadow.quarantine,
                    )
                    self._take(runtime, loaded)
                    return True
                except CannotLoad as error:
                    runtime.set_text(error.reason, error.detail)
                    if error.final:
                        return False
                except BaseException as error:
                    if not is_failure(error):
                        raise
                    _log.exception("load_failed", model=runtime.name)
                    runtime.set_text(Bypass.TOKENIZER_UNAVAILABLE, type(error).__name__)
                await asyncio.sleep(wait)
                wait = min(LAST_RETRY_S, wait * 2)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _retire(self, generation: Generation) -> None:
        while generation.in_flight:
            generation.idle.clear()
            await generation.idle.wait()
        await self._end(generation)

    async def _end(self, generation: Generation) -> None:
        """Ends what no other generation has."""
        self._living.remove(generation)
        wanted = {one for other in self._living for one in _looked_after(other)}
        tasks = [self._tasks.pop(one) for one in [*self._tasks] if one not in wanted]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await generation.registry.close([other.registry for other in self._living])

    async def dispatch(self, request: web.Request) -> web.StreamResponse:
        """The one handler: finds the route, then answers."""
        found = routes.match(request.rel_url.raw_path) if request.version in VERSIONS else None
        if found is not None and request.method in found[0].methods:
            route = found[0]
            if route.kind is Kind.HEALTH:
                return health.health()
            if route.kind is Kind.READY:
                return health.ready(self.generation, self.shadow.quarantine, self._gpus)
            if route.kind is Kind.METRICS:
                return await health.metrics(self.scrapes, request.headers.get("Accept"))
        generation = self.generation
        generation.in_flight += 1
        self.in_flight += 1
        self.metrics.in_flight.inc()
        try:
            return await self._serve(request, found, generation)
        finally:
            self.metrics.in_flight.dec()
            self.in_flight -= 1
            generation.in_flight -= 1
            if not generation.in_flight:
                generation.idle.set()
            self.store.tidy()
            self._begin_engines()

    async def _serve(
        self, request: web.Request, found: tuple[Route, str | None] | None, generation: Generation
    ) -> web.StreamResponse:
        """Answer one request, and note it."""
        request_id = audit.request_id(request.headers.get("X-Request-Id"))
        record = RequestRecord(request_id=request_id, route=found[0].pattern if found else "none")
        exchange: Exchange | None = None
        status: int | None = None
        limits = generation.settings.limits
        share = body.Share(self.held, limits.body_bytes)
        try:
            try:
                if self.in_flight > limits.requests:
                    raise errors.too_many_requests(limits.requests)
                if request.version not in VERSIONS:
                    raise errors.wrong_version()
                if found is None:
                    raise errors.unknown_route()
                route, named = found
                if request.method not in route.methods:
                    raise errors.wrong_method(route.methods)
                transfer_coding_is_known(request)
                expects_continue(request)
                tenant = generation.tenants.identify(request.headers)
                record.tenant = tenant.id_hash
                exchange = Exchange(
                    request, route, generation, tenant, record, self.lanes, share, self.shadow, self.store
                )
                if route.kind is Kind.CHAT:
                    response = await chat(exchange)
                else:
                    response = await forward(exchange, named)
                status = response.status
                return response
            except AuthError as error:
                raise errors.unauthorized(str(error)) from None
        except ApiError as error:
            record.error, status = error.code, error.status
            return await _answer(request, error)
        except asyncio.CancelledError:
            record.flags.add(Flag.CLIENT_STALLED if is_stalled(request) else Flag.CLIENT_GONE)
            status = None if exchange is None else exchange.relayed.status
            raise
        except Exception:
            _log.exception("request_failed", request_id=request_id)
            record.error = "internal_error"
            if exchange is not None and exchange.relayed.status is not None:
                # The head is sent; only a broken connection tells the client.
                status = exchange.relayed.status
                if request.transport is not None:
                    request.transport.abort()
                raise
            status = 500
            return await _answer(request, errors.internal())
        finally:
            share.release()
            record.emit(status)
            self.metrics.observe(record)


def _looked_after(generation: Generation) -> list[ModelRuntime | Lookout]:
    """The models, and what watches those upstreams to which IDs may go."""
    models = generation.registry.models.values()
    return [*{model.upstream.lookout for model in models if model.wants_ids}, *models]


async def _answer(request: web.Request, error: ApiError) -> web.StreamResponse:
    response = error.response()
    if request.headers.get("Expect") and not request.content.is_eof():
        # The client keeps its body back and now never sends it. aiohttp would wait for it before it closed.
        response.force_close()
        await response.prepare(request)
        await response.write_eof()
        request.protocol.force_close()
    return response


async def _defer_expectation(_request: web.Request) -> None:
    """aiohttp would send "100 Continue" before the request is looked at; `proxy.body.read` sends it after."""


async def _plain_head(request: web.BaseRequest, response: web.StreamResponse) -> None:
    plain_head(request, response)


@web.middleware
async def _json_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """What aiohttp decides by itself (``OPTIONS *``, a target without a path), in OpenAI's shape and with a line."""
    try:
        return await handler(request)
    except web.HTTPException as decided:
        error = errors.from_status(decided.status)
        record = RequestRecord(audit.request_id(request.headers.get("X-Request-Id")), route="none", error=error.code)
        record.emit(error.status)
        request.app[CORE].metrics.observe(record)
        return error.response()


def _closing(close: Callable[[], None]) -> Callable[[web.Application], Awaitable[None]]:
    async def closed(_app: web.Application) -> None:
        close()

    return closed


RELOAD: web.AppKey[Callable[[Settings], Awaitable[list[str]]]] = web.AppKey("reload", Callable)  # type: ignore[arg-type]
CORE: web.AppKey[Core] = web.AppKey("core", Core)


def create_app(settings: Settings, load: LoadTier | None = None) -> web.Application:
    """The application. ``load`` makes a model's tier. Raises OSError or `proxy.tenants.KeyFileError`."""
    loader = None
    gpus = Gpus(settings.gpu if load is None else config.Gpu(mode="off"))  # other tiers have their own engines
    if load is None:
        from proxy.loading import Loader

        loader = Loader(gpus)
        load = loader.load
    core = Core(settings, load, gpus)
    app = web.Application(
        handler_args={
            "auto_decompress": False,
            "handler_cancellation": True,
            "max_line_size": MAX_HEADER_BYTES,
            "max_field_size": MAX_HEADER_BYTES,
            "max_headers": MAX_HEADERS,
        }
    )
    app[CORE] = core
    app[DOOR] = core.door
    app[RELOAD] = core.reload
    app.cleanup_ctx.append(core.run)
    if loader is not None:
        app.on_shutdown.append(_closing(loader.close))
    app.on_response_prepare.append(_plain_head)
    app.router.add_route("*", "/{path:.*}", core.dispatch, expect_handler=_defer_expectation)
    app.middlewares.append(_json_errors)
    return app
