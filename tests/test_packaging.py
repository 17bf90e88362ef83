"""The Dockerfile and the compose file without a Docker engine: their syntax, and every path and command in them."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import compose_spec
import pytest
import typer
import yaml

from proxy import cli, config, routes
from tests.conftest import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
OWN = [name for name, service in COMPOSE["services"].items() if "build" in service]


def instructions() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with their arguments, continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE, flags=re.MULTILINE).replace("\\\n", " ")
    return [(m[1], m[2].strip()) for m in re.finditer(r"^([A-Z]+) +(.*)$", text, re.MULTILINE)]


def environment(pairs: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S+)", pairs))


def substituted(value: str) -> str:
    """Compose's ``${NAME:-default}`` with its default."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)


def parse_command(arguments: list[str]) -> None:
    """Let the real command line parse ``arguments`` without running them. Raises `click.UsageError`."""
    group = typer.main.get_command(cli.app)
    context = group.make_context("toktier", list(arguments[:1]), resilient_parsing=True)
    command = group.get_command(context, arguments[0])  # type: ignore[attr-defined]
    assert command is not None, f"no command {arguments[0]}"
    command.make_context(arguments[0], list(arguments[1:]), parent=context)


def check_health_probe(command: list[str], port: int) -> None:
    """``python -c CODE``: CODE compiles and asks a path that this port's program serves."""
    assert command[:2] == ["python", "-c"]
    ast.parse(command[2])
    url = urlsplit(re.search(r"http://[^']+", command[2])[0])  # type: ignore[index]
    assert url.port == port
    assert any(url.path == route.pattern and route.kind is routes.Kind.HEALTH for route in routes.ROUTES)


def test_hadolint_finds_nothing() -> None:
    hadolint = shutil.which("hadolint", path=Path(sys.executable).parent)
    assert hadolint, "hadolint comes with the extra `test`"
    done = subprocess.run([hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_copied_path_exists_and_is_not_ignored() -> None:
    allowed = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")
    }
    sources = [s for name, args in instructions() if name == "COPY" for s in args.split()[:-1]]
    assert len(sources) >= 6
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source.rstrip("/") in allowed, f"{source} is kept out by .dockerignore"


def test_the_image_is_slim_and_not_root() -> None:
    stages = [args for name, args in instructions() if name == "FROM"]
    assert all("-slim" in stage for stage in stages)
    users = [args for name, args in instructions() if name == "USER"]
    assert users
    assert users[-1] not in ("root", "0")


def test_the_images_variables_are_settings() -> None:
    variables = {k: v for name, args in instructions() if name == "ENV" for k, v in environment(args).items()}
    ours = {k: v for k, v in variables.items() if k.startswith("TOKTIER_")}
    settings = config.load(None, {"upstreams": {"engine": {"url": "http://engine:8000"}}}, ours)
    assert settings.server.host == "0.0.0.0"
    exposed = [int(args) for name, args in instructions() if name == "EXPOSE"]
    assert exposed == [settings.server.port]
    health = next(args for name, args in instructions() if name == "HEALTHCHECK")
    check_health_probe(json.loads(health[health.index("[") :]), settings.server.port)


def test_the_entrypoint_is_an_installed_command() -> None:
    entry = json.loads(next(args for name, args in instructions() if name == "ENTRYPOINT"))
    assert (Path(sys.executable).parent / entry[0]).exists()
    parse_command(json.loads(next(args for name, args in instructions() if name == "CMD")))


def test_the_compose_file_follows_the_specification() -> None:
    compose = compose_spec.PyCompose.from_yaml((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
    compose.validate()
    assert set(compose.service_names()) == set(COMPOSE["services"])


@pytest.mark.parametrize("name", OWN)
def test_every_own_service_runs_a_valid_command(name: str) -> None:
    service = COMPOSE["services"][name]
    parse_command([substituted(argument) for argument in service["command"]])
    if "healthcheck" in service:
        kind, *probe = service["healthcheck"]["test"]
        assert kind == "CMD"
        port = next(int(a.split("=")[1]) for a in service["command"] if a.startswith("--port="))
        check_health_probe(probe, port)


@pytest.mark.parametrize("name", OWN)
def test_every_own_service_builds_from_this_folder(name: str) -> None:
    build: str | dict[str, Any] = COMPOSE["services"][name]["build"]
    context = build if isinstance(build, str) else build["context"]
    assert (ROOT / context / "Dockerfile").is_file()
    declared = {args.split("=")[0] for instruction, args in instructions() if instruction == "ARG"}
    assert set(build.get("args", {}) if isinstance(build, dict) else {}) <= declared


def test_services_reach_each_other_by_name() -> None:
    for service in COMPOSE["services"].values():
        for argument in map(substituted, service["command"]):
            if argument.startswith("--upstream="):
                upstream = urlsplit(argument.split("=", 1)[1])
                target = COMPOSE["services"][upstream.hostname]
                assert set(service["depends_on"]) == {upstream.hostname}
                ports = [int(a.split("=")[1]) for a in target["command"] if a.startswith("--port=")]
                assert upstream.port in (ports or [8000])  # 8000: the default of vLLM's image


def test_the_embedded_profile_needs_no_gpu() -> None:
    embedded = {n: s for n, s in COMPOSE["services"].items() if "embedded" in s.get("profiles", [])}
    assert set(embedded) == {"engine-embedded", "toktier-embedded"}
    assert not any("deploy" in service for service in embedded.values())


@pytest.mark.slow
def test_the_wheel_holds_what_it_needs(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", tmp_path, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("toktier_proxy-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    data = ("toktier/data/qwen3/tokenizer.json.xz", "toktier/data/qwen3/LICENSE", "proxy/audit_report/page.html")
    assert {*data, "toktier/py.typed"} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("tests/", "tools/")) for name in names)
