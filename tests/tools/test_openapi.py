from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from proxy import wire
from proxy.changes import error_event
from proxy.error_codes import CODES, IN_STREAM, Where
from proxy.routes import ROUTES
from proxy.server import MAX_HEADER_BYTES, MAX_HEADERS
from tests.conftest import ROOT
from tests.support.proxy import Stage, staged
from tools import openapi

METHODS = {"get", "head", "post", "delete"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return openapi.document()


def test_every_route_and_method_is_described_and_no_other(document: dict[str, Any]) -> None:
    described = {(path, method) for path, item in document["paths"].items() for method in METHODS & item.keys()}
    assert described == {(route.pattern, method.lower()) for route in ROUTES for method in route.methods}


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        for method in METHODS & item.keys():
            yield path, method, item[method]


def test_it_keeps_the_rules_of_openapi(document: dict[str, Any]) -> None:
    assert document["openapi"] == "3.1.0"
    names = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(names) == len(set(names))
    for path, item in document["paths"].items():
        declared = {parameter["name"] for parameter in item.get("parameters", [])}
        assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}
    for path, _, operation in operations(document):
        assert operation["responses"], path
        assert all(status == "default" or HTTPStatus(int(status)) for status in operation["responses"])
    schemes = document["components"]["securitySchemes"]
    assert {name for need in document["security"] for name in need} == set(schemes)


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for item in value.values():
            yield from references(item)
    elif isinstance(value, list):
        for item in value:
            yield from references(item)


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found = set(references(document))
    assert len(found) > 10
    for reference in found:
        target: Any = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
    unused = {
        f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in document["components"][kind]
    }
    nowhere = {f"#/components/responses/Error{code.status}" for code in CODES.values() if code.where is Where.NOWHERE}
    assert unused - found <= nowhere


def raised() -> Iterator[tuple[str, int | None, str | None]]:
    """(place, status, code) of every error that TokTier makes; what is no literal is None."""
    for path in sorted((ROOT / "proxy").rglob("*.py")):
        if path.name.startswith("embedded"):
            continue  # the simulated engine's own
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "ApiError":
                code = next((keyword.value for keyword in node.keywords if keyword.arg == "code"), None)
                literals = [getattr(part, "value", None) for part in (node.args[0], code)]
                yield f"{path.name}:{node.lineno}", literals[0], literals[1]


def test_every_code_that_is_raised_is_described_and_no_other() -> None:
    found = list(raised())
    literal = [(place, status, code) for place, status, code in found if status is not None]
    assert len(found) - len(literal) == 1, "only errors.from_status takes what it is given"
    for place, status, code in literal:
        assert code in CODES, f"{place} raises {code}, which proxy/error_codes.py does not have"
        assert CODES[code].status == status, place
    from_aiohttp = {"bad_request"}
    assert {code for _, _, code in literal} | from_aiohttp == set(CODES)


def test_the_codes_of_events_are_described(document: dict[str, Any]) -> None:
    event = json.loads(error_event(True).decode().partition("data: ")[2])
    assert {event["error"]["code"]} == set(IN_STREAM)
    assert not IN_STREAM.keys() & CODES.keys()
    error = document["components"]["schemas"]["Error"]["properties"]["error"]
    assert event["error"].keys() == error["properties"].keys()
    assert event["error"]["code"] in error["properties"]["code"]["enum"]
    assert event["error"]["type"] in error["properties"]["type"]["enum"]
    assert (
        "`upstream_closed`" in document["paths"]["/v1/chat/completions"]["post"]["responses"]["default"]["description"]
    )


def test_how_long_a_head_may_be_is_told_as_it_is() -> None:
    size = f"{MAX_HEADER_BYTES >> 10} KiB"
    assert size in CODES["bad_request"].help
    row = f"| length of the first line, and of each header | {size} |"
    limits = (ROOT / "docs" / "configuration.md").read_text("utf-8")
    assert row in limits
    assert f"more than {MAX_HEADERS} headers" in CODES["bad_request"].help
    assert f"| number of headers | {MAX_HEADERS} |" in limits
    assert MAX_HEADERS == wire.MAX_HEADERS


@pytest.mark.parametrize(("target", "header"), [("/health", "x" * (33 << 10)), ("/" + "x" * (33 << 10), "x")])
async def test_a_head_that_is_too_long_is_refused(tmp_path: Path, target: str, header: str) -> None:
    async with staged(tmp_path) as stage:
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.proxy.port)
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\nX-Long: {header}\r\n\r\n".encode())
        raw = await asyncio.wait_for(reader.read(), 10)  # to the end: the connection is closed
        writer.close()
    assert raw.split()[1] == b"400"
    assert json.loads(raw.partition(b"\r\n\r\n")[2])["error"]["code"] == "bad_request"


async def test_replies_are_as_described(tmp_path: Path, document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    described = schemas["Error"]["properties"]["error"]["properties"]
    async with staged(tmp_path) as stage:
        _, ready = await read(stage, "GET", "/ready")
        assert set(ready) == set(schemas["Ready"]["required"]) == set(schemas["Ready"]["properties"])
        assert ready["status"] in schemas["Ready"]["properties"]["status"]["enum"]
        tried = [("GET", "/nowhere"), ("PUT", "/health"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models/none")]
        for method, path in tried:
            status, body = await read(stage, method, path)
            error = body["error"]
            assert set(error) == set(described)
            assert error["type"] in described["type"]["enum"]
            assert error["code"] in described["code"]["enum"]
            assert CODES[error["code"]].status == status
    sources = [ROOT / "proxy" / "errors.py", *(ROOT / "proxy" / "api").glob("*.py")]
    kinds = re.findall(r'kind="(\w+)"', "".join(path.read_text() for path in sources))
    assert set(kinds) <= set(described["type"]["enum"])


async def read(stage: Stage, method: str, path: str) -> tuple[int, Any]:
    async with stage.client.request(method, stage.proxy.url + path) as reply:
        return reply.status, await reply.json()


def test_a_code_stands_where_it_can_occur(document: dict[str, Any]) -> None:
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert {"400", "401", "404", "408", "413", "415", "417", "500", "502", "503", "504", "default"} <= set(
        chat["responses"]
    )
    assert "401" not in document["paths"]["/health"]["get"]["responses"]
    assert set(document["paths"]["/v1/models"]["get"]["responses"]) >= {"401", "502", "504", "default"}
    assert "415" not in document["paths"]["/v1/models"]["get"]["responses"]
