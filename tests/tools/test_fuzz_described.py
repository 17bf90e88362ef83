"""The run of schemathesis: what counts as a finding. The program is a stand-in that sends a request or two."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.routes import ROUTES, Kind, match
from tests.support.tokenizer_files import small_qwen3
from tools.fuzz import described
from tools.fuzz.every_route import EveryRoute

ASK = """#!{python}
import json, sys, urllib.request
url, seed = (sys.argv[sys.argv.index(name) + 1] for name in ("--url", "--seed"))
assert sys.argv[1] == "run" and seed == "4"
(model,) = json.load(open(sys.argv[2]))["paths"]["/v1/models/{{model}}"]["parameters"][0]["schema"]["enum"]
body = {{"model": model, "stream": True}}
for method, path in {asked}:
    data = json.dumps(body).encode() if method == "POST" else None
    urllib.request.urlopen(urllib.request.Request(url + path.replace("MODEL", model), data, method=method)).read()
"""


async def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """To HEAD the engine sends no body: it would be taken for the start of the next reply."""
    asked = [("HEAD", "/v1/models")] * 3 + [("GET", "/v1/models/MODEL"), ("POST", "/v1/messages")]
    program = tmp_path / "st"
    program.write_text(ASK.format(python=sys.executable, asked=asked))
    program.chmod(0o755)
    assert await described.fuzz(program, examples=1, seed=4, tokenizer=small_qwen3(tmp_path)) == []
    forwarded = sum(route.kind not in (Kind.HEALTH, Kind.READY, Kind.METRICS) for route in ROUTES)
    assert f"answered 200: 3 of {forwarded} routes, not /classify, " in capsys.readouterr().out


def served(said: str = "it listens", ended: int | None = None, **line: Any) -> Any:
    """A `Served` after one request."""
    lines = [{"event": "request", "level": "info", "status": 200, **line}]

    def events(*names: str) -> Iterator[dict[str, Any]]:
        return (line for line in lines if not names or line["event"] in names)

    return SimpleNamespace(process=SimpleNamespace(returncode=ended), events=events, said=lambda: said)


@pytest.mark.parametrize(
    ("code", "after", "found"),
    [
        (0, served(), []),
        (0, served(status=None), []),
        (1, served(), ["schemathesis ended with 1"]),
        (0, served(ended=-9), ["the proxy ended with -9"]),
        (0, served(status=502), ["1 of 1 requests were answered with 500 or above"]),
        (0, served(level="error"), ["errors in the log: request"]),
        (0, served(event="listening"), ["no request arrived"]),
        (0, served("it listens\nTraceback\nX"), ["on standard error: Traceback X"]),
    ],
)
def test_what_counts(code: int, after: Any, found: list[str]) -> None:
    assert list(described.findings(code, after)) == found


FORWARDED = [route for route in ROUTES if route.kind not in (Kind.HEALTH, Kind.READY, Kind.METRICS)]


@pytest.mark.parametrize("stream", [False, True])
def test_the_engine_has_every_route(stream: bool) -> None:
    engine = EveryRoute(lambda body: [1])
    kinds: dict[str, str] = {}
    for route in FORWARDED:
        path = route.pattern.replace("{model}", "m").replace("{id}", "r_1")
        assert match(path) is not None
        raw = json.dumps({"model": "m", "messages": [], "stream": stream}).encode()
        status, kind, pieces = engine.answer("POST" if "POST" in route.methods else "GET", path, {}, raw)
        assert status == 200, path
        kinds[route.pattern] = kind
        if kind == "application/json":
            json.loads(b"".join(pieces))
        elif kind == "text/event-stream":
            assert all(piece.endswith(b"\n\n") for piece in pieces)
            assert (pieces[-1] == b"data: [DONE]\n\n") == path.endswith("completions")
    streams = {path for path, kind in kinds.items() if kind == "text/event-stream"}
    chats = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}
    assert streams == (chats if stream else set())
    assert kinds["/v1/audio/speech"] == "audio/mpeg"
    assert engine.answer("GET", "/metrics", {}, b"")[0] == 404
    assert engine.answer("POST", "/score", {}, b"[NaN")[0] == 400
