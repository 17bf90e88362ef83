"""What TokTier itself answers when it cannot serve a request: OpenAI's error shape, always JSON.

Invariant: no text of an error that a client or a log sees repeats anything the client sent (a prompt, a key, a model
name). Errors name fields, offsets, limits and settings. One exception, in the answer alone: the place of a lone
surrogate has the names of members that are plain identifiers (`toktier.surrogates`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from http import HTTPStatus

from aiohttp import web

INVALID_REQUEST = "invalid_request_error"
OVERLOADED = "rate_limit_error"
_SOON = {"Retry-After": "1"}
UPSTREAM_ERROR = "upstream_error"


class ApiError(Exception):
    """A request that ends here, with this status. Raised anywhere below `proxy.app`, answered there.

    ``close``: the connection is closed after the answer, since the rest of the request is not wanted.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})
        self.close = close

    def body(self) -> bytes:
        """The JSON answer, as OpenAI writes it."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()

    def response(self) -> web.Response:
        """The answer, ready to be sent."""
        headers = {"Content-Type": "application/json", **self.headers}
        response = web.Response(status=self.status, body=self.body(), headers=headers)
        if self.close:
            response.force_close()
        return response


def from_status(status: int, headers: Mapping[str, str] | None = None) -> ApiError:
    """An `ApiError` for an HTTP status that aiohttp decided on. Its own text is dropped: it may quote the request."""
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else "Error"
    kind = INVALID_REQUEST if status < 500 else "internal_error"
    return ApiError(status, phrase, kind=kind, code=phrase.lower().replace(" ", "_"), headers=headers)


def unknown_route() -> ApiError:
    """404 for a path that is not on the allow-list."""
    return ApiError(404, "This path is not served. docs/routes.md lists those that are.", code="not_found")


def wrong_version() -> ApiError:
    """400 for another HTTP than 1.0 and 1.1: one that has no version counts as 0.9."""
    return ApiError(400, "TokTier speaks HTTP/1.1 and HTTP/1.0.", code="bad_request", close=True)


def wrong_method(allowed: tuple[str, ...]) -> ApiError:
    """405 for a served path; ``allowed`` are its methods."""
    methods = ", ".join(allowed)
    return ApiError(405, f"This path takes {methods}.", code="method_not_allowed", headers={"Allow": methods})


def unauthorized(message: str) -> ApiError:
    """401. ``message`` names no credential."""
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def unknown_model() -> ApiError:
    """404 for a model that the configuration does not name. The name itself is not repeated."""
    return ApiError(
        404,
        "The model does not exist. GET /v1/models lists those that do.",
        param="model",
        code="model_not_found",
    )


def too_large(limit: int, *, close: bool = False) -> ApiError:
    """413; ``limit`` in bytes, after decompression."""
    return ApiError(413, f"The request body is over the limit of {limit} bytes.", code="request_too_large", close=close)


def too_many_requests(limit: int) -> ApiError:
    """429; ``limit`` requests are being served."""
    what = f"TokTier is busy: {limit} requests are being served."
    return ApiError(429, what, kind=OVERLOADED, code="too_many_requests", headers=_SOON)


def workers_busy() -> ApiError:
    """429: as many requests wait for a worker thread as may."""
    what = "TokTier is busy: too many requests wait for a worker."
    return ApiError(429, what, kind=OVERLOADED, code="workers_busy", headers=_SOON)


def bodies_full(limit: int) -> ApiError:
    """429: the bodies of the requests in progress fill their memory, ``limit`` bytes."""
    what = f"TokTier is busy: the bodies of requests in progress fill {limit} bytes."
    return ApiError(429, what, kind=OVERLOADED, code="bodies_full", headers=_SOON)


def upstream_full(limit: int) -> ApiError:
    """429: ``limit`` connections to the engine are in use, and none has become free within `connect_timeout_s`."""
    what = f"TokTier is busy: {limit} connections to the engine are in use."
    return ApiError(429, what, kind=OVERLOADED, code="upstream_full", headers=_SOON)


def too_many_connections(limit: int) -> ApiError:
    """503, without a look at any request: ``limit`` connections are open."""
    return ApiError(
        503,
        f"TokTier has {limit} connections open.",
        kind="server_error",
        code="too_many_connections",
        headers=_SOON,
        close=True,
    )


def head_timeout() -> ApiError:
    """408: the request line and headers did not arrive in time."""
    return ApiError(408, "The request's headers did not arrive in time.", code="header_timeout", close=True)


def too_many_messages(limit: int) -> ApiError:
    """400; ``limit`` messages are allowed."""
    return ApiError(400, f"There are more than {limit} messages.", param="messages", code="too_many_messages")


def json_too_deep(limit: int) -> ApiError:
    """400; ``limit`` levels of arrays and objects are allowed."""
    return ApiError(400, f"The body's JSON nests deeper than {limit} levels.", code="json_too_deep")


def json_too_many_values(limit: int) -> ApiError:
    """400; ``limit`` values are allowed."""
    return ApiError(400, f"The body's JSON has more than {limit} values.", code="json_too_many_values")


def draining() -> ApiError:
    """503 while the process finishes its last replies."""
    return ApiError(
        503,
        "TokTier is shutting down.",
        kind="server_error",
        code="shutting_down",
        headers={"Retry-After": "1"},
        close=True,
    )


def internal() -> ApiError:
    """500 for an error in TokTier. What it was is in the log, by type and place."""
    return ApiError(500, "Internal error.", kind="internal_error", code="internal_error")


def upstream_unreachable() -> ApiError:
    """502: no connection, or it closed before any byte of a reply."""
    return ApiError(502, "The upstream engine could not be reached.", kind=UPSTREAM_ERROR, code="upstream_unreachable")


def upstream_timeout() -> ApiError:
    """504: connected, but no reply within `Upstream.read_timeout_s`."""
    return ApiError(504, "The upstream engine did not answer in time.", kind=UPSTREAM_ERROR, code="upstream_timeout")
