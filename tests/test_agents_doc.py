"""What docs/agents.md tells people to write down can be read by what reads it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from proxy.cli import app
from proxy.embedded_script import Script
from tests.conftest import ROOT
from tools.agent import Pi

TEXT = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def test_the_script_example_is_a_script() -> None:
    (script,) = [block for block in blocks("json") if '"turns"' in block]
    turns = Script.model_validate(json.loads(script)).turns
    assert [bool(turn.tool_calls) for turn in turns] == [True, False, False]
    assert all(isinstance(json.loads(call.arguments), dict) for turn in turns for call in turn.tool_calls)


def test_pi_is_set_up_as_in_its_own_test(tmp_path: Path) -> None:
    """The document's settings are those that `make test-agent` drives."""
    (told,) = [json.loads(block) for block in blocks("json") if '"openai-completions"' in block]
    Pi(Path("pi"), tmp_path, tmp_path, url="http://127.0.0.1:8080", model="qwen3")
    assert told == json.loads((tmp_path / ".pi" / "agent" / "models.json").read_text())


def urls(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [url for item in value.values() for url in urls(item)]
    if isinstance(value, list):
        return [url for item in value for url in urls(item)]
    return [value] if isinstance(value, str) and value.startswith("http") else []


def test_every_configuration_parses_and_names_the_base_url() -> None:
    parsed = [json.loads(block) for block in blocks("json")] + [yaml.safe_load(block) for block in blocks("yaml")]
    found = [url for value in parsed for url in urls(value)]
    assert found
    assert set(found) == {"http://127.0.0.1:8080/v1"}


def test_the_embedded_engines_options_exist() -> None:
    (line,) = re.findall(r"^toktier embedded (.+)$", TEXT, re.MULTILINE)
    told = set(re.findall(r"--[a-z]+", line))
    shown = CliRunner().invoke(app, ["embedded", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    assert told <= set(re.findall(r"--[a-z]+", shown))


@pytest.mark.parametrize("link", re.findall(r"\]\(([^)#]+)\)", TEXT))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / "docs" / link).exists()
