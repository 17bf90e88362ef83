"""Routes, errors, health, authentication and reload of the application."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import routes
from proxy.app import RELOAD
from proxy.config import Settings, load
from proxy.registry import CannotLoad, Loaded, State
from proxy.routes import Kind
from tests.support.fake_tier import FakeTier, ids_of
from tests.support.fake_upstream import FakeUpstream, Seen
from tests.support.models import load_qwen3
from tests.support.proxy import Stage, running, settings_for, staged
from tests.support.raw_http import talk
from toktier.reasons import Bypass
from toktier.tier import Prepared

ROOT = Path(__file__).resolve().parents[2]
BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def get(stage: Stage, path: str, method: str = "GET", **more: Any) -> tuple[int, bytes, Any]:
    url = stage.proxy.url + path
    async with stage.client.request(method, url, **more) as reply:
        return reply.status, await reply.read(), reply.headers


ADMIN = [
    "/", "/v1", "/v1/", "/v1/chat", "/v1/chat/completions/", "/v1//chat/completions", "/V1/chat/completions",
    "/reset_prefix_cache", "/sleep", "/wake_up", "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/pause",
    "/start_profile", "/collective_rpc", "/server_info", "/inference/v1/generate", "/abort_requests", "/generate",
    "/flush_cache", "/update_weights", "/is_sleeping", "/docs", "/openapi.json", "/version", "/ping", "/invocations",
    "/v1/../metrics", "/v1/%2e%2e/sleep", "/v1/models/../../sleep", "/v1/responses/..%2fsleep", "/v1/responses/../x",
    "/v1/chat/completions;x", "/metrics/",
]  # fmt: skip


@pytest.mark.parametrize("path", ADMIN)
async def test_everything_else_is_404(stage: Stage, path: str) -> None:
    before = len(stage.up.seen)
    for method in ("GET", "POST"):
        reader, writer = await asyncio.open_connection("127.0.0.1", stage.proxy.port)
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + b"{}")
        async with asyncio.timeout(20):
            answer, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
        assert answer.startswith(b"HTTP/1.1 404"), answer
        assert json.loads(body)["error"]["type"] == "invalid_request_error"
    assert len(stage.up.seen) == before


async def test_wrong_methods_are_405(stage: Stage) -> None:
    for method, path in (
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/models"),
        ("PUT", "/health"),
        ("GET", "/rerank"),
    ):
        status, body, headers = await get(stage, path, method)
        assert status == 405
        assert json.loads(body)["error"]["code"] == "method_not_allowed"
        assert method not in headers["Allow"].split(", ")


async def test_options_star_is_json(stage: Stage) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", stage.proxy.port)
    writer.write(b"OPTIONS * HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    assert b'{"error"' in answer


@pytest.mark.parametrize(
    "line", ["OPTIONS *", "GET http://a", "CONNECT a:80", "GET /v1/models/m%0d%0aX:%201", "GET /nowhere"]
)
async def test_what_no_handler_gets_has_a_line_too(stage: Stage, line: str) -> None:
    """Found by fuzzing with targets in absolute form: aiohttp's router answered these, and nothing was logged."""
    answer = await talk(stage.proxy.port, f"{line} HTTP/1.1\r\nHost: x\r\nX-Request-Id: r-1\r\n\r\n".encode())
    status = int(answer.split()[1])
    logged = [(event["request_id"], event["route"], event["status"], event["error"]) for event in stage.proxy.log]
    assert logged == [("r-1", "none", status, "not_found")]
    assert status == 404


@pytest.mark.parametrize("version", ["HTTP/0.9", "HTTP/2.0", ""])
async def test_only_http_1_is_spoken(stage: Stage, version: str) -> None:
    """aiohttp answers in the version that it reads, and reads a line without one as 0.9; found by fuzzing."""
    for line in ("GET /health", "POST /v1/chat/completions", "GET /nowhere"):
        answer = await talk(stage.proxy.port, f"{line} {version}".strip().encode() + b"\r\nHost: x\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        assert answer.endswith(b"<closed>")
        assert b'"bad_request"' in answer
    assert [line["status"] for line in stage.proxy.log] == [400] * 3
    assert not stage.up.chats


@pytest.mark.parametrize("route", [r for r in routes.ROUTES if r.kind is Kind.JSON], ids=lambda r: r.pattern)
async def test_json_routes_are_forwarded(stage: Stage, route: routes.Route) -> None:
    raw = b'{"model":"m", "prompt": [1,2,3], "input":"x" }'
    status, body = await stage.post(raw, route.pattern + "?a=%20b", headers={"Content-Type": "application/json"})
    assert (status, json.loads(body)) == (200, {"path": route.pattern})
    seen = stage.up.seen[-1]
    assert seen.target == route.pattern + "?a=%20b"
    assert seen.header("Content-Type") == "application/json"
    if route.salted:
        assert seen.body.startswith(raw[:-2])
        assert len(seen.json["cache_salt"]) >= 32
    else:
        assert seen.body == raw
    assert (await stage.error({"model": "m", "input_ids": [1]}, route.pattern))[0] == 400
    assert (await stage.error({"model": "unknown"}, route.pattern))[0] == 404
    assert (await stage.error(b"[]", route.pattern))[0] == 400
    assert (await stage.post({}, route.pattern))[0] == 200


async def test_smuggled_ids_on_routes_that_take_them_in_vllm(stage: Stage) -> None:
    body = {"model": "m", "input": "x", "kv_transfer_params": {"prompt_token_ids": [1]}}
    for path in ("/v1/responses", "/v1/messages", "/v1/completions"):
        status, error = await stage.error(body, path)
        assert (status, error["param"]) == (400, "kv_transfer_params.prompt_token_ids")


async def test_batch_route_is_a_named_bypass(stage: Stage) -> None:
    await stage.post(BODY, "/v1/chat/completions/batch")
    line = (await stage.proxy.logged(1))[0]
    assert (line["path"], line["bypass"]) == ("bypass", "batch_route")


async def test_bodies_of_other_kinds_are_forwarded_as_they_are(stage: Stage) -> None:
    raw = b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\nm\r\n--b--\r\n\xff\x00"
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    assert (await stage.post(raw, "/v1/audio/transcriptions", headers=headers))[0] == 200
    seen = stage.up.seen[-1]
    assert (seen.body, seen.header("Content-Type")) == (raw, headers["Content-Type"])
    for method, path in (
        ("GET", "/v1/models"),
        ("GET", "/v1/responses/resp_1-A"),
        ("DELETE", "/v1/responses/resp_1"),
        ("POST", "/v1/responses/resp_1/cancel"),
        ("GET", "/v1/responses/resp_1/input_items"),
    ):
        assert (await get(stage, path, method))[0] == 200
        assert (stage.up.seen[-1].method, stage.up.seen[-1].target) == (method, path)


async def test_models_by_name(tmp_path: Path) -> None:
    async with staged(tmp_path, model={"aliases": ["org/name:tag"]}) as stage:
        for path in ("/v1/models/m", "/v1/models/org/name:tag", "/v1/models/org%2Fname%3Atag"):
            status, body, _ = await get(stage, path)
            assert status == 200
            assert json.loads(body)["data"]
        assert stage.up.seen[-1].target == "/v1/models/org/name:tag"
        for path in ("/v1/models/x", "/v1/models/m%2f", "/v1/models/m%00", "/v1/models/"):
            status, body, _ = await get(stage, path)
            code = "not_found" if path.endswith("/") else "model_not_found"
            assert (status, json.loads(body)["error"]["code"]) == (404, code)


async def test_head_has_no_body(stage: Stage) -> None:
    for path in ("/health", "/ready"):
        status, body, _ = await get(stage, path, "HEAD")
        assert (status, body) == (200, b"")


async def test_reply_headers_are_the_engines(stage: Stage) -> None:
    headers = {"X-Engine": "1", "Date": "then", "Server": "uvicorn", "Keep-Alive": "timeout=5", "Connection": "X-Hop"}
    stage.up.scripts.append([{"head": {"headers": {**headers, "X-Hop": "h"}}}, {"send": "{}"}])
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=BODY) as reply:
        names = set(reply.headers)
        assert (reply.headers["X-Engine"], reply.headers["Date"], reply.headers["Server"]) == ("1", "then", "uvicorn")
        assert not names & {"Keep-Alive", "X-Hop", "Connection", "X-Request-Id"}


async def test_request_headers(stage: Stage) -> None:
    headers = {
        "X-Session-ID": "s", "X-Custom": "ü", "Accept-Encoding": "br", "User-Agent": "agent/1", "X-Hop": "1",
        "Connection": "keep-alive, X-Hop", "TE": "trailers", "Upgrade": "h2c", "Proxy-Authorization": "p",
    }  # fmt: skip
    await stage.post(BODY, headers=headers)
    seen = stage.up.chats[0]
    names = [name.lower() for name, _ in seen.headers]
    assert not {"te", "upgrade", "x-hop", "proxy-authorization", "transfer-encoding", "cookie"} & set(names)
    assert seen.header("X-Session-ID") == "s"
    assert seen.header("Accept-Encoding") == "br"
    assert seen.header("User-Agent") == "agent/1"
    assert seen.header("Host") == f"127.0.0.1:{stage.up.port}"
    assert names.count("x-request-id") == 1
    line = (await stage.proxy.logged(1))[0]
    assert seen.header("X-Request-Id") == line["request_id"]
    await stage.post(BODY, headers={"X-Request-Id": "mine-1"})
    assert stage.up.chats[1].header("X-Request-Id") == "mine-1"
    assert (await stage.proxy.logged(2))[1]["request_id"] == "mine-1"


async def test_long_headers_pass(stage: Stage) -> None:
    assert (await stage.post(BODY, headers={"X-Codex-Turn-Metadata": "m" * 20_000}))[0] == 200
    assert stage.up.chats[0].header("X-Codex-Turn-Metadata") == "m" * 20_000


async def test_keys(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("a:secret-key-a\nb:secret-key-b\n")
    async with staged(tmp_path, auth={"mode": "keys", "key_file": keys}) as stage:
        for headers in ({}, {"Authorization": "Bearer wrong-key-x"}):
            async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=BODY, headers=headers) as reply:
                assert reply.status == 401
                assert reply.headers["WWW-Authenticate"] == "Bearer"
                assert (await reply.json())["error"]["code"] == "invalid_api_key"
        for key in ("secret-key-a", "secret-key-b"):
            assert (await stage.post(BODY, headers={"Authorization": f"Bearer {key}"}))[0] == 200
        assert (await stage.post({**BODY, "cache_salt": "A"}, headers={"X-Api-Key": "secret-key-b"}))[0] == 200
        salts = [seen.json["cache_salt"] for seen in stage.up.chats]
        assert len(set(salts)) == 3
        assert all(seen.header("Authorization") is None for seen in stage.up.chats)
        tenants = [tenant for tenant, _ in stage.tier.calls if tenant != "toktier-probe"]
        assert len(set(tenants)) == 2
        assert (await get(stage, "/health"))[0] == (await get(stage, "/ready"))[0] == 200
        assert (await get(stage, "/v1/models"))[0] == 401


async def test_an_engine_that_wants_a_key_is_probed_with_passthrough(tmp_path: Path) -> None:
    """By a configuration that `toktier serve` takes; the key is TokTier's own, and no client's."""

    class Locked(FakeUpstream):
        def engine(self, seen: Seen) -> tuple[int, bytes, str]:
            if seen.header("Authorization") not in ("Bearer sk-probe", "Bearer client-key-1"):
                return 401, b"{}", "application/json"
            return super().engine(seen)

    async with Locked(tokenize=ids_of) as up:
        settings = load(
            None,
            {
                "auth": {"mode": "passthrough", "state_dir": str(tmp_path)},
                "shadow": {"rate": 0, "first": 0, "parity_rate": 1},
                "upstreams": {"e": {"url": up.url, "api_key": "sk-probe"}},
                "models": {"m": {"upstream": "e", "tokenizer": "embedded"}},
            },
            {},
        )
        async with running(settings, FakeTier().load) as proxy, aiohttp.ClientSession() as client:
            for key, status in (("client-key-1", 200), ("wrong", 401), (None, 401)):
                headers = {"Authorization": f"Bearer {key}"} if key else {}
                async with client.post(proxy.url + "/v1/chat/completions", json=BODY, headers=headers) as reply:
                    assert reply.status == status
            async with asyncio.timeout(20):
                while not any(line["event"] == "parity_check" for line in proxy.events):
                    await asyncio.sleep(0.01)
        assert [chat.header("Authorization") for chat in up.chats] == ["Bearer client-key-1", "Bearer wrong", None]
        own = {seen.target: seen.header("Authorization") for seen in up.seen if seen not in up.chats}
        assert set(own) == {"/version", "/v1/models", "/tokenize", "/v1/chat/completions"}
        assert set(own.values()) == {"Bearer sk-probe"}


async def test_passthrough(tmp_path: Path) -> None:
    async with staged(tmp_path, auth={"mode": "passthrough"}, upstream={"api_key": "sk-probe"}) as stage:
        assert (await stage.post(BODY))[0] == 200
        assert stage.up.chats[0].header("Authorization") is None
        headers = {"Authorization": "Bearer client-key-1", "Cookie": "a=b"}
        assert (await stage.post(BODY, headers=headers))[0] == 200
        seen = stage.up.chats[1]
        assert (seen.header("Authorization"), seen.header("Cookie")) == ("Bearer client-key-1", "a=b")


async def test_ready_tells_what_is_degraded(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        status, body, _ = await get(stage, "/ready")
        assert (status, json.loads(body)["status"]) == (200, "ready")
        await stage.up.stop()
        await stage.post(BODY)
        await stage.proxy.settled(State.UNPROBED)
        async with asyncio.timeout(20):
            while (await get(stage, "/ready"))[0] != 503:
                await asyncio.sleep(0.02)
        assert (await get(stage, "/health"))[0] == 200
    async with staged(tmp_path, FakeUpstream(honours_ids=False), wait=State.TEXT) as stage:
        status, body, _ = await get(stage, "/ready")
        report = json.loads(body)
        assert (status, report["degraded"], report["reasons"]) == (200, True, ["m: upstream_ignores_ids"])


async def test_ready_and_metrics_tell_of_what_an_older_version_and_a_damaged_file_distrust(tmp_path: Path) -> None:
    file = tmp_path / "quarantine.json"
    entry = {"tokenizer_digest": "old", "path": "edit", "level": "text", "source": "usage", "model": "before"}
    entry |= {"since": "2026-11-01T00:00:00+00:00", "request_id": "r", "count": 1}
    file.write_text(json.dumps({"schema": 1, "everything": None, "entries": [entry]}))
    async with staged(tmp_path) as stage:
        report = json.loads((await get(stage, "/ready"))[1])
        assert report["reasons"] == ["quarantine: stale entry of before, every model, path edit, level text"]
        assert [(one["stale"], one["versions"]) for one in report["quarantine"]] == [(True, "")]
    file.write_text("damaged")
    async with staged(tmp_path) as stage:
        assert json.loads((await get(stage, "/ready"))[1])["degraded"]
        assert b"\ntoktier_quarantined 1.0\n" in (await get(stage, "/metrics"))[1]


async def test_metrics(stage: Stage) -> None:
    await stage.post(BODY)
    await stage.error({**BODY, "model": "CANARY"})
    await stage.proxy.logged(2)
    status, body, headers = await get(stage, "/metrics")
    text = body.decode()
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert 'toktier_requests_total{model="m",path="init",status="200"} 1.0' in text
    assert 'toktier_upstream_state{state="ok",upstream="e"} 1.0' in text
    assert "CANARY" not in text
    for accept in ("application/openmetrics-text; version=abc", "text/plain; version=abc", ",;="):
        async with stage.client.get(stage.proxy.url + "/metrics", headers={"Accept": accept}) as reply:
            assert (reply.status, reply.content_type) == (200, "text/plain")


async def test_a_tokenizer_that_is_not_there_yet(tmp_path: Path) -> None:
    tier = FakeTier()
    there = asyncio.Event()

    def load(*_: object) -> Loaded:
        if not there.is_set():
            raise CannotLoad(Bypass.TOKENIZER_UNAVAILABLE, "no such file", final=False)
        return tier.load()

    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), load, wait=State.TEXT) as proxy,
        aiohttp.ClientSession() as client,
    ):
        async with client.post(proxy.url + "/v1/chat/completions", json=BODY) as reply:
            assert reply.status == 200
        assert (await proxy.logged(1))[0]["bypass"] == "tokenizer_unavailable"
        there.set()
        await proxy.settled(State.OK)


async def test_an_unexpected_error_is_500_without_words(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(_: object) -> None:
        raise ZeroDivisionError("CANARY")

    monkeypatch.setattr("proxy.app.chat", fail)
    status, error = await stage.error(BODY)
    assert (status, error["code"]) == (500, "internal_error")
    assert "CANARY" not in json.dumps(error)
    assert (await stage.proxy.logged(1))[0]["status"] == 500


def reloaded(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update=changes)


async def test_reload_serves_new_requests_by_new_settings(stage: Stage) -> None:
    done = asyncio.Event()
    stage.up.scripts.append([{"send": "data: {}\n\n"}, {"wait": done}, {"send": "data: [DONE]\n\n"}])
    running_one = asyncio.create_task(stage.post({**BODY, "stream": True}))
    async with asyncio.timeout(20):
        await stage.up.script_started.wait()
    core = stage.proxy.core
    old = core.generation
    model = old.settings.models["m"].model_copy(update={"aliases": ("second",)})
    loads = len(stage.tier.calls)
    async with FakeUpstream(tokenize=ids_of) as other:
        upstreams = {"e": old.settings.upstreams["e"].model_copy(update={"url": other.url})}
        new = reloaded(old.settings, models={"m": model}, upstreams=upstreams)
        await stage.proxy.app[RELOAD](new)
        await stage.proxy.settled(State.OK)
        assert len(stage.tier.calls) > loads
        assert (await stage.post({**BODY, "model": "second"}))[0] == 200
        assert len(other.chats) == 1
        assert not old.registry.upstreams["e"]._pooled.closed
        done.set()
        assert (await running_one)[1].endswith(b"[DONE]\n\n")
        async with asyncio.timeout(20):
            while not old.registry.upstreams["e"]._pooled.closed:
                await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("model", "upstream", "loads"),
    [
        ({}, {}, 1),
        ({"aliases": ("second",), "served_name": "m", "control_tokens": "reject"}, {"read_timeout_s": 9.0}, 1),
        ({"default_chat_template_kwargs": {"enable_thinking": False}}, {}, 2),
        ({"tokenizer": "other"}, {}, 2),
        ({"chat_template": Path("other.jinja")}, {}, 2),
        ({"vocab_size": 2000}, {}, 2),
    ],
)
async def test_reload_keeps_the_tokenizer_that_it_can_keep(
    tmp_path: Path, model: dict[str, Any], upstream: dict[str, Any], loads: int
) -> None:
    made: list[str] = []

    def load(name: str, *_: object) -> Loaded:
        made.append(name)
        return FakeTier().load()

    async with FakeUpstream(tokenize=ids_of) as up, running(settings_for(up.url, tmp_path), load) as proxy:
        old = proxy.core.generation
        tier = old.registry.models["m"].tier
        new = settings_for(up.url, tmp_path, model=model, upstream=upstream)
        await proxy.app[RELOAD](new)
        await proxy.settled(State.OK)
        runtime = proxy.core.generation.registry.models["m"]
        assert proxy.core.generation is not old
        assert (runtime.tier is tier) == (loads == 1)
        assert made == ["m"] * loads


async def test_sessions_outlive_a_reload(tmp_path: Path) -> None:
    async with (
        FakeUpstream() as up,
        running(settings_for(up.url, tmp_path), load_qwen3, wait=None) as proxy,
    ):
        core = proxy.core

        async def kept_ids(text: str) -> Prepared:
            runtime = core.generation.registry.models["m"]
            async with asyncio.timeout(60):
                while runtime.tier is None:
                    await asyncio.sleep(0.01)
            return runtime.tier.prepare("t", {"messages": [{"role": "user", "content": text}]})

        first = await kept_ids("word " * 5000)
        await proxy.app[RELOAD](settings_for(up.url, tmp_path, model={"aliases": ("second",)}))
        again = await kept_ids("word " * 5000)
        assert (again.path, again.session, again.scanned) == ("retry", first.session, 0)
        # The same files loaded anew under other settings that shape nothing: the sessions still fit.
        same = core.generation.registry.models["m"].tier.vocab_size
        await proxy.app[RELOAD](settings_for(up.url, tmp_path, model={"vocab_size": same}))
        assert (await kept_ids("word " * 5000)).session == first.session
        # Their IDs were found to be below the size before.
        await proxy.app[RELOAD](settings_for(up.url, tmp_path, model={"vocab_size": 200_000}))
        assert (await kept_ids("word " * 5000)).session != first.session


async def test_reload_that_cannot_be_used_changes_nothing(stage: Stage, tmp_path: Path) -> None:
    core = stage.proxy.core
    old = core.generation
    auth = old.settings.auth.model_copy(update={"mode": "keys", "key_file": tmp_path / "absent"})
    with pytest.raises(Exception, match=r"."):
        await stage.proxy.app[RELOAD](reloaded(old.settings, auth=auth))
    assert core.generation is old
    assert (await stage.post(BODY))[0] == 200


def test_documented_routes_are_the_real_ones() -> None:
    text = (ROOT / "docs" / "routes.md").read_text("utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `/")]
    documented = {row.split("`")[1]: tuple(row.split("|")[2].replace(" ", "").split(",")) for row in rows}
    assert documented == {route.pattern: route.methods for route in routes.ROUTES}
