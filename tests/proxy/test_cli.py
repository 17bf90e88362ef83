from __future__ import annotations

import asyncio
import io
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import structlog
from aiohttp import web
from aiohttp.test_utils import TestServer
from rich.console import Console
from tokenizers import Tokenizer, models
from typer.testing import CliRunner, Result

import proxy.check
from proxy.check import Report, inspect
from proxy.check_print import show
from proxy.cli import app
from proxy.config import Settings, load
from tests.support.tokenizer_files import CACHE
from toktier.reasons import Bypass

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _own_state(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    monkeypatch.setenv("TOKTIER_AUTH__STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TOKTIER_SERVER__CACHE_DIR", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.delenv("TOKTIER_CONFIG", raising=False)
    yield
    structlog.reset_defaults()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False)


@pytest.fixture
async def engine() -> AsyncIterator[TestServer]:
    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") == "Bearer wrong-key":
            return web.Response(status=401)
        return web.json_response({"data": [{"id": "m"}]})

    async def engine_version(_: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    served = web.Application()
    served.router.add_get("/v1/models", models)
    served.router.add_get("/version", engine_version)
    async with TestServer(served) as server:
        yield server


def test_version_and_help() -> None:
    assert run("--version").output.strip() == f"toktier {version('toktier-proxy')}"
    assert run("-h").exit_code == 0
    for command in ("serve", "check", "embedded"):
        assert run(command, "--help").exit_code == 0


@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_wrong_configuration_is_exit_code_2_and_a_line_each(tmp_path: Path, command: str) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[server]\nprot = 1\n[upstreams.u]\nurl = "http://me:CANARY@h"\n', "utf-8")
    result = run(command, "--config", str(path))
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        f"toktier: server.prot ({path}): unknown setting. Did you mean port?",
        f"toktier: upstreams.u.url ({path}): the URL holds credentials. Use api_key_file or api_key instead.",
    ]


def test_no_traceback_from_the_real_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "serve", "--upstream", "h:1", "--model", "m"],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == (
        "toktier: upstreams.default.url (the command line): not an http:// or https:// URL. "
        "Write it as http://HOST:PORT.\n"
    )


def test_serve_without_an_upstream_says_what_to_give() -> None:
    result = run("serve")
    assert result.exit_code == 2
    assert "--upstream URL --model NAME, or --config FILE" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--tokenizer", "x"], "--model NAME"),
        (["--token-field", "vllm"], "--upstream"),
        (["--chat-template", "x"], "--model"),
    ],
)
def test_options_that_need_another_one(arguments: list[str], hint: str) -> None:
    result = run("check", *arguments)
    assert result.exit_code == 2
    assert hint in result.stderr


def test_options_change_the_file_s_models(tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text('[upstreams.gpu]\nurl = "http://h"\n[models.m]\nupstream = "gpu"\naliases = ["x"]\n', "utf-8")
    result = run("check", "--config", str(path), "--model", "m", "--chat-template", "a.jinja", "--json")
    assert json.loads(result.stdout)["problems"][0]["place"] == "models.m.chat_template (the command line)"
    result = run("check", "--config", str(path), "--upstream", "http://other", "--model", "m", "--json")
    report = json.loads(result.stdout)
    assert report["models"][0]["upstream"] == "default"
    assert report["models"][0]["aliases"] == ["x"]
    assert {u["name"]: u["url"] for u in report["upstreams"]} == {"gpu": "http://h", "default": "http://other"}


@pytest.mark.slow
def test_check_of_the_shipped_example(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    loaded: list[Report] = []

    def inspected(settings: Settings, *, probe: bool) -> Report:
        loaded.append(inspect(settings, probe=probe))
        return loaded[0]

    monkeypatch.setattr(proxy.check, "inspect", inspected)
    monkeypatch.setenv("TOKTIER_SERVER__CACHE_DIR", str(CACHE))
    result = run("check", "--config", str(ROOT / "conf" / "toktier.toml"), "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    (model,) = report["models"]
    assert (report["exit_code"], model["repair"], model["bypass"], model["certified"]) == (0, True, None, True)
    assert model["vocab_size"] >= 151_669
    assert all(model[key] for key in ("tokenizer_digest", "certificate_digest", "template_digest", "window_engine"))
    assert model["all_cores_from"] > 0
    assert model["whole_below"] >= 0

    show(loaded[0], Console(file=shown, width=200))
    text = shown.getvalue()
    assert "listens on      http://127.0.0.1:8080" in text
    assert "model Qwen/Qwen3-8B on gpu: repair" in text
    assert f"certificate yes, {model['certificate_digest'][:16]}" in text
    assert "short cuts  below " in text
    assert "not asked (--probe)" in text
    assert model["parity"] == "equal"
    assert f"{model['parity_detail']} (equal)" in text
    assert text.endswith("\nok\n")


def test_check_of_a_tokenizer_that_is_not_there_is_degraded(tmp_path: Path) -> None:
    arguments = ("check", "--upstream", "http://h", "--model", "m", "--tokenizer", str(tmp_path / "absent"))
    result = run(*arguments)
    assert result.exit_code == 1
    assert "model m on default: text" in result.stdout
    assert "(tokenizer_unavailable)" in result.stdout
    assert "warning models.m.tokenizer" in result.stdout
    (model,) = json.loads(run(*arguments, "--json").stdout)["models"]
    assert (model["repair"], model["bypass"]) == (False, Bypass.TOKENIZER_UNAVAILABLE)


def test_text_mode_that_was_asked_for_is_ok(tmp_path: Path) -> None:
    result = run("check", "--upstream", "http://h", "--model", "m")
    assert result.exit_code == 0
    assert "model m on default: text" in result.stdout
    assert "no tokenizer is set" in result.stdout


def test_check_of_a_tokenizer_without_template(tmp_path: Path) -> None:
    (tmp_path / "tok").mkdir()
    Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[])).save(str(tmp_path / "tok" / "tokenizer.json"))
    result = run("check", "--upstream", "http://h", "--model", "m", "--tokenizer", str(tmp_path / "tok"), "--json")
    assert result.exit_code == 1
    (model,) = json.loads(result.stdout)["models"]
    assert model["bypass"] == Bypass.NO_TEMPLATE


def test_check_prints_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").write_text("alice:CANARY-client-key\n", "utf-8")
    monkeypatch.setenv("TOKTIER_AUTH__MODE", "keys")
    monkeypatch.setenv("TOKTIER_AUTH__KEY_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("TOKTIER_AUTH__HMAC_KEY", "CANARY" * 4)
    monkeypatch.setenv("TOKTIER_UPSTREAMS__DEFAULT__API_KEY", "CANARY")
    for form in ([], ["--json"]):
        result = run("check", "--upstream", "http://h", "--model", "m", *form)
        assert result.exit_code == 0
        assert "CANARY" not in result.output
        assert "configured" in result.stdout


def settings(server: TestServer, **upstream: Any) -> Settings:
    url = str(server.make_url("/")).rstrip("/")
    return load(
        None,
        {"upstreams": {"u": {"url": url, **upstream}}, "models": {"m": {"upstream": "u"}, "other": {"upstream": "u"}}},
    )


async def test_probe_asks_the_upstreams(engine: TestServer) -> None:
    report = await asyncio.to_thread(inspect, settings(engine), probe=True)
    (upstream,) = report.upstreams
    assert (upstream.reachable, upstream.version, upstream.models) == (True, "0.32.0", ["m"])
    assert "models.other: u does not list other as its models." in report.warnings
    assert not any(warning.startswith("models.m") for warning in report.warnings)
    assert report.exit_code == 0


async def test_probe_of_an_upstream_that_refuses_or_is_not_there(engine: TestServer) -> None:
    asked = settings(engine)
    refused = await asyncio.to_thread(inspect, settings(engine, api_key="wrong-key"), probe=True)
    assert (refused.upstreams[0].reachable, refused.upstreams[0].problem) == (False, "GET /v1/models answered 401")
    assert refused.exit_code == 1
    await engine.close()
    gone = await asyncio.to_thread(inspect, asked, probe=True)
    assert gone.upstreams[0].reachable is False
    assert gone.exit_code == 1


def test_check_says_whose_credential_goes_upstream(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("check", "--upstream", "http://h", "--model", "m", "--json")
    monkeypatch.setenv("TOKTIER_AUTH__MODE", "passthrough")
    assert json.loads(run(*arguments).stdout)["upstreams"][0]["credential"] == "from the client"
    monkeypatch.setenv("TOKTIER_UPSTREAMS__DEFAULT__API_KEY", "key")
    told = json.loads(run(*arguments).stdout)["upstreams"][0]["credential"]
    assert told == "from the client, configured for probes"


@pytest.mark.parametrize("command", ["serve", "check"])
def test_without_an_upstream_there_is_nothing_to_serve(command: str) -> None:
    done = run(command)
    assert done.exit_code == 2
    assert "upstreams: none is configured" in done.output
