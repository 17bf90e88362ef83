"""aiohttp's server with TokTier's own answers where no handler is reached: malformed HTTP, or a crash in aiohttp.

Invariant: such an answer is JSON in OpenAI's shape and quotes nothing of the request; the log gets the error's type.
"""

from __future__ import annotations

from typing import Any

import structlog
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from proxy import errors

_log = structlog.get_logger("toktier.server")


class _Protocol(RequestHandler):
    __slots__ = ()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        _log.warning("bad_http" if status < 500 else "server_error", status=status, error=type(exc).__name__)
        if request.writer.output_size > 0:
            raise ConnectionError("the reply had begun")
        response = errors.from_status(status).response()
        response.force_close()
        return response


class _Server(web.Server):
    def __call__(self) -> RequestHandler:
        return _Protocol(self, loop=self._loop, **self._kwargs)


class Runner(web.AppRunner):
    """`web.AppRunner` for an application of `proxy.app.create_app`."""

    def __init__(self, app: web.Application, **options: Any) -> None:
        super().__init__(app, access_log=None, **options)

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        return _Server(
            made.request_handler,
            request_factory=made.request_factory,
            handler_cancellation=made.handler_cancellation,
            loop=made._loop,
            **made._kwargs,
        )
