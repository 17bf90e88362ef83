"""`toktier serve`: the process around the application. Socket, TLS, signals, draining, reload.

A SIGTERM or SIGINT starts the drain: requests that run may finish, and the end of their replies may leave the process,
within `Server.shutdown_grace_s`; new ones are answered 503 (so that a balancer which has not noticed yet sends them
elsewhere); then the process ends. A second signal ends it at once. A SIGHUP reads the configuration again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import inspect
import os
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import TYPE_CHECKING

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from proxy import audit, logs, reload, routes
from proxy.audit import RequestRecord
from proxy.config import ConfigError, Settings
from proxy.config_checks import warnings
from proxy.errors import draining
from proxy.routes import Kind
from proxy.server import DOOR, Runner, allow_open_files
from proxy.site import Site
from proxy.tenants import KeyFileError
from proxy.watchdog import watched
from proxy.workers import Workers

if TYPE_CHECKING:
    from proxy.app import LoadTier

log = structlog.get_logger("toktier.serve")

READ_AGAIN_S = 60.0
"""Longest wait for the configuration's files at a reload."""
_ALWAYS_ANSWERED = ("/health", "/metrics")


class Drain:
    """Counts running requests, and refuses new ones once `start` was called. Use its middleware as the outermost."""

    def __init__(self, refused: Callable[[RequestRecord], None]) -> None:
        """``refused`` is told of every request that was refused, once its line is written."""
        self._refused = refused
        self._running = 0
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Requests that are being served."""
        return self._running

    def start(self) -> None:
        """From now on, new requests get 503."""
        self._draining = True

    async def idle(self) -> None:
        """Waits until no request runs."""
        await self._idle.wait()

    @property
    def middleware(self) -> Middleware:
        @web.middleware
        async def drain(request: web.Request, handler: Handler) -> web.StreamResponse:
            if self._draining and request.path not in _ALWAYS_ANSWERED:
                return self._refuse(request)
            self._running += 1
            self._idle.clear()
            try:
                return await handler(request)
            finally:
                self._running -= 1
                if not self._running:
                    self._idle.set()

        return drain

    def _refuse(self, request: web.Request) -> web.Response:
        found = routes.match(request.rel_url.raw_path)
        error = draining()
        if found is None or found[0].kind is not Kind.READY:  # a balancer asks that every second
            record = RequestRecord(
                request_id=audit.request_id(request.headers.get("X-Request-Id")),
                route=found[0].pattern if found else "none",
                error=error.code,
            )
            record.emit(error.status)
            self._refused(record)
        return error.response()


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """The server's TLS context, or None for plain HTTP. Raises OSError or ssl.SSLError."""
    if settings.server.tls_cert is None or settings.server.tls_key is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(settings.server.tls_cert, settings.server.tls_key)
    return context


def run(settings: Settings, read_again: Callable[[], Settings], load: LoadTier | None = None) -> int:
    """Serves until a signal ends it, and returns the exit code.

    ``read_again`` loads the settings for a reload, ``load`` makes a model's tier (as for `proxy.app.create_app`).
    """
    written = logs.configure(settings.log)
    allow_open_files()
    # The cyclic collector would run at every 700th container, and a hostile body makes millions: 80 % of its parsing.
    # While it looks, nothing else runs: at some 20,000 containers together, a few milliseconds (50,000 took 8 to 43).
    # What lives on is looked at as rarely as before, and what loading leaves not at all (`proxy.loading`).
    gc.set_threshold(4_000, 4, 600)
    # A thread that renders keeps the interpreter this long before the event loop gets it (default 5 ms; docs/log.md).
    sys.setswitchinterval(0.001)
    factory = None
    with contextlib.suppress(ImportError):
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(Server(settings, read_again, written, load).run())
    finally:
        written.close()


class Server:
    """One run of the process."""

    def __init__(
        self,
        settings: Settings,
        read_again: Callable[[], Settings],
        written: logs.Logs,
        load: LoadTier | None = None,
    ) -> None:
        self._settings = settings
        self._read_again = read_again
        self._logs = written
        self._load = load
        self._reloading = asyncio.Lock()
        # asyncio's own threads would be waited for at the end, a file that hangs too.
        self._reader = Workers(1, "toktier-reader")
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Starts, serves, drains. 0 after a clean end, 1 when the address cannot be had or replies were cut off."""
        from proxy.app import CORE, create_app

        settings = self._settings
        ended = asyncio.Event()
        try:
            self._app = app = create_app(settings, self._load)
        except (OSError, KeyFileError) as error:
            reason = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
            log.error("cannot_start", place="auth.state_dir", reason=reason)
            _tell(f"auth.state_dir: {settings.auth.state_dir} cannot be used ({reason}). It must be writable.")
            return 1
        drain = Drain(app[CORE].metrics.observe)
        app.middlewares.insert(0, drain.middleware)
        runner = Runner(
            app,
            handle_signals=False,
            keepalive_timeout=settings.server.keepalive_s,
            shutdown_timeout=0.5,  # what is left after the grace
        )
        await runner.setup()
        try:
            self._tls = tls_context(settings)
            site = Site(runner, settings.server.host, settings.server.port, self._tls)
            try:
                await site.start()
            except OSError as error:
                self._cannot_listen(error)
                return 1
            self._listen_to_signals(ended)
            self._announce(runner)
            with watched(settings.server.stall_exit_s):
                await ended.wait()
                return await self._drain(drain)
        finally:
            await runner.cleanup()
            log.info("stopped")

    def _cannot_listen(self, error: OSError) -> None:
        server = self._settings.server
        log.error("cannot_listen", host=server.host, port=server.port, reason=os.strerror(error.errno or 0))
        where = f"server.host, server.port: cannot listen on {server.host}:{server.port}"
        reason = "the address is in use or not allowed" if error.errno is None else os.strerror(error.errno)
        _tell(f"{where} ({reason.lower()}). Choose another address, or stop what listens there.")

    def _announce(self, runner: web.AppRunner) -> None:
        settings = self._settings
        scheme = "http" if self._tls is None else "https"
        urls = [f"{scheme}://{_address(address)}" for address in runner.addresses]
        log.info(
            "listening",
            urls=urls,
            port=runner.addresses[0][1],
            pid=os.getpid(),
            version=version("toktier-proxy"),
            auth_mode=settings.auth.mode,
            models=sorted(settings.models)[:32],
        )
        for problem in warnings(settings):
            log.warning("configuration", place=problem.place, problem=problem.problem, remedy=problem.remedy)
        _tell(f"toktier listens on {', '.join(urls)}")

    def _listen_to_signals(self, ended: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()

        def end(number: signal.Signals) -> None:
            if ended.is_set():
                log.warning("killed", signal=number.name)
                self._logs.close(1.0)
                os._exit(1)
            log.info("draining", signal=number.name, grace_s=self._settings.server.shutdown_grace_s)
            ended.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, end, number)
        loop.add_signal_handler(signal.SIGHUP, self._start_reload)

    async def _drain(self, drain: Drain) -> int:
        from proxy.app import CORE

        grace = self._settings.server.shutdown_grace_s
        self._app[CORE].end_by = time.monotonic() + grace
        drain.start()
        door = self._app[DOOR]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await drain.idle()
                await door.sent()
        left = drain.running + door.unsent()
        if left:
            log.warning("drain_timeout", requests=left)
        return 1 if left else 0

    def _start_reload(self) -> None:
        task = asyncio.get_running_loop().create_task(self._reload())
        self._tasks.add(task)  # or it may be collected while it runs
        task.add_done_callback(self._tasks.discard)

    async def _reload(self) -> None:
        """Applies what can be applied. Whatever is wrong, the present configuration stays in force."""
        from proxy.app import RELOAD

        async with self._reloading:
            try:
                new = await self._reader.run(self._read_again, READ_AGAIN_S)
            except ConfigError as error:
                for problem in error.problems:
                    log.error("reload_refused", place=problem.place, problem=problem.problem, remedy=problem.remedy)
                return
            except Exception:
                log.exception("reload_failed")
                return
            result = reload.diff(self._settings, new)
            try:
                if self._tls is not None:
                    server = result.settings.server
                    self._tls.load_cert_chain(str(server.tls_cert), str(server.tls_key))
                outcome = self._app[RELOAD](result.settings)
                notes = await outcome if inspect.isawaitable(outcome) else outcome
            except Exception:
                log.exception("reload_failed")
                return
            self._settings = result.settings
            self._logs.apply(result.settings.log)
            log.info("reloaded", applied=result.applied, needs_restart=result.needs_restart, notes=list(notes or []))


def _address(address: tuple[str, int] | tuple[str, int, int, int]) -> str:
    host, port = address[:2]
    with contextlib.suppress(OSError):
        socket.inet_pton(socket.AF_INET6, host)
        host = f"[{host}]"
    return f"{host}:{port}"


def _tell(line: str) -> None:
    """For the person who started it: on standard error, since the log may be standard output."""
    import sys

    with contextlib.suppress(OSError, ValueError):
        print(line, file=sys.stderr, flush=True)
