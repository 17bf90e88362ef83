"""TokTier's own surface as an OpenAPI 3.1 document, made from `proxy.routes` and `proxy.error_codes`.

It says what TokTier takes, refuses and answers itself. What a route's body and reply otherwise hold is the engine's, so
bodies are open objects here.
"""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

from proxy.api.chat import HINTS
from proxy.changes import CLIENT_ID_PATHS, MAX_SALT
from proxy.error_codes import CODES, IN_STREAM, Where
from proxy.errors import INVALID_REQUEST, OVERLOADED, UPSTREAM_ERROR
from proxy.routes import ROUTES, Kind, Route

FILE = "docs/openapi.json"
_OWN = (Kind.HEALTH, Kind.READY, Kind.METRICS)
_WHERE: dict[Where, Any] = {
    Where.ANY: lambda route: True,
    Where.ROUTE: lambda route: route.kind not in _OWN,
    Where.BODY: lambda route: "POST" in route.methods and route.kind not in _OWN,
    Where.JSON: lambda route: route.kind in (Kind.CHAT, Kind.JSON),
    Where.SALTED: lambda route: route.salted,
    Where.MODEL: lambda route: route.kind in (Kind.CHAT, Kind.JSON, Kind.MODEL),
    Where.CHAT: lambda route: route.kind is Kind.CHAT,
    Where.NOWHERE: lambda route: False,
}
_SUMMARY = {
    Kind.CHAT: "Chat completion; the prompt's token IDs are added where they are proven",
    Kind.JSON: "Forwarded to the engine of the model that the body names",
    Kind.BODY: "Forwarded to the default engine",
    Kind.MODEL: "Forwarded to the engine of the model that the path names",
    Kind.HEALTH: "Whether the process answers",
    Kind.READY: "Whether requests can be served, and what is degraded",
    Kind.METRICS: "Metrics for Prometheus",
}


def document() -> dict[str, Any]:
    """The whole document, as plain data."""
    paths: dict[str, Any] = {}
    for route in ROUTES:
        shared = _path_parameters(route)
        operations = {method.lower(): _operation(route, method) for method in route.methods}
        paths[route.pattern] = ({"parameters": shared} if shared else {}) | operations
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "TokTier",
            "version": version("toktier-proxy"),
            "summary": "An OpenAI-compatible tokenizing reverse proxy",
            "description": "What TokTier itself takes and answers. All else in a body or a reply is the engine's.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "http://127.0.0.1:8080"}],
        "security": [{"bearer": []}, {"x-api-key": []}, {"api-key": []}, {}],
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {f"Error{status}": _error_response(status) for status in _statuses()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
                "api-key": {"type": "apiKey", "in": "header", "name": "api-key"},
            },
        },
    }


def codes_of(route: Route) -> list[str]:
    """The codes of TokTier's own errors that a served route may answer with."""
    return [name for name, code in CODES.items() if _WHERE[code.where](route)]


def _operation(route: Route, method: str) -> dict[str, Any]:
    own = route.kind in _OWN
    operation: dict[str, Any] = {
        "operationId": method.lower() + re.sub(r"[^a-z0-9]+", "_", route.pattern.lower()).rstrip("_"),
        "summary": _SUMMARY[route.kind],
        "tags": ["TokTier" if own else "repaired" if route.kind is Kind.CHAT else "forwarded"],
    }
    if own:
        operation["security"] = [{}]
    else:
        operation["parameters"] = _headers(route)
    if method == "POST":
        operation["requestBody"] = _body(route)
    responses = _replies(route, method)
    for status in sorted({CODES[name].status for name in codes_of(route)}):
        if not (own and method == "HEAD" and str(status) in responses):
            responses.setdefault(str(status), {"$ref": f"#/components/responses/Error{status}"})
    operation["responses"] = responses
    return operation


def _replies(route: Route, method: str) -> dict[str, Any]:
    if route.kind is Kind.HEALTH:
        return {"200": _reply("It does", "Health", method)}
    if route.kind is Kind.READY:
        ready = {"200": _reply("At least one model can be served", "Ready", method)}
        return ready | {"503": _reply("No engine answers, or TokTier is shutting down", "Ready", method)}
    if route.kind is Kind.METRICS:
        return {"200": {"description": "Prometheus text", "content": {"text/plain": {"schema": {"type": "string"}}}}}
    told = "The engine's reply, byte for byte, with its status"
    if route.kind is Kind.CHAT:
        told += ". A stream that the engine breaks off ends with an event `error`, whose member `error` is as in Error"
        told += "".join(f"; its code is `{name}`: {help}" for name, help in IN_STREAM.items())
    return {"default": {"description": told}}


def _reply(description: str, schema: str, method: str) -> dict[str, Any]:
    if method == "HEAD":
        return {"description": description}
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    return {"description": description, "content": content}


def _path_parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    for name in re.findall(r"\{(\w+)\}", route.pattern):
        schema: dict[str, Any] = {"type": "string"}
        if name == "id":
            schema["pattern"] = "^[A-Za-z0-9_-]{1,256}$"
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _headers(route: Route) -> list[dict[str, Any]]:
    identifier = "Goes to the engine, and into the log if it matches [A-Za-z0-9._:-]{1,128}; made where there is none"
    found = [_header("X-Request-Id", identifier)]
    if route.kind is Kind.CHAT:
        found += [_header(name, "Names the client's session; a hint only, which never decides an ID") for name in HINTS]
    return found


def _header(name: str, description: str) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": {"type": "string"}}


def _body(route: Route) -> dict[str, Any]:
    if route.kind is Kind.BODY:
        return {"required": False, "content": {"*/*": {}}}
    name = "ChatRequest" if route.kind is Kind.CHAT else "SaltedRequest" if route.salted else "Request"
    schema = {"$ref": f"#/components/schemas/{name}"}
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _schemas() -> dict[str, Any]:
    forbidden: dict[str, Any] = {}
    for path in CLIENT_ID_PATHS:
        # An object may be there as long as it has no IDs in it; a field of IDs may only be null.
        null: dict[str, Any] = {"type": "null"}
        some = {"type": "object", "required": [*path[1:]], "properties": {name: {"not": null} for name in path[1:]}}
        forbidden[path[0]] = {"not": some} if len(path) > 1 else null
    model = {"type": ["string", "null"], "description": "A configured name; may be left out where there is a default"}
    salt = {
        "type": ["string", "null"],
        "minLength": 1,
        "maxLength": MAX_SALT,
        "description": "Mixed with the tenant's; never used alone",
    }
    stream = {"type": ["boolean", "null"], "description": "Whether the reply is a stream of events: the engine's own"}
    own = {"model": model, "stream": stream, **forbidden}
    request = {"type": "object", "properties": own, "additionalProperties": True}
    chat = {
        "messages": {"description": "The engine's own rules"},
        "prompt_cache_key": {"description": "A session hint"},
    }
    reason = {"type": "string"}
    kinds = [INVALID_REQUEST, OVERLOADED, UPSTREAM_ERROR, "server_error", "internal_error"]
    entry = {
        "type": "object",
        "required": ["state", "upstream"],
        "properties": {"state": {"enum": ["unprobed", "ok", "text"]}, "upstream": reason, "reason": reason},
    }
    return {
        "Request": request,
        "SaltedRequest": {"allOf": [{"$ref": "#/components/schemas/Request"}], "properties": {"cache_salt": salt}},
        "ChatRequest": {"allOf": [{"$ref": "#/components/schemas/SaltedRequest"}], "properties": chat},
        "Error": {
            "type": "object",
            "required": ["error"],
            "additionalProperties": False,
            "properties": {
                "error": {
                    "type": "object",
                    "required": ["message", "type", "param", "code"],
                    "additionalProperties": False,
                    "properties": {
                        "message": {"type": "string"},
                        "type": {"enum": kinds},
                        "param": {"type": ["string", "null"]},
                        "code": {"enum": [*CODES, *IN_STREAM]},
                    },
                }
            },
        },
        "Health": {"type": "object", "required": ["status"], "properties": {"status": {"const": "ok"}}},
        "Ready": {
            "type": "object",
            "required": ["status", "degraded", "reasons", "models", "gpu", "quarantine"],
            "properties": {
                "status": {"enum": ["ready", "degraded", "unavailable"]},
                "degraded": {"type": "boolean"},
                "reasons": {"type": "array", "items": reason},
                "models": {"type": "object", "additionalProperties": entry},
                "gpu": {"type": "object", "required": ["mode", "devices"]},
                "quarantine": {"type": "array", "items": {"type": "object"}},
            },
        },
    }


def _statuses() -> list[int]:
    return sorted({code.status for code in CODES.values()})


def _error_response(status: int) -> dict[str, Any]:
    lines = [f"`{name}`: {code.help}." for name, code in CODES.items() if code.status == status]
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": "\n".join(lines), "content": content}
