from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app

SEARCHING = """
{%- set ns = namespace(last=-1, n=0) %}
{%- for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for m in messages %}
    {%- set ns.n = ns.n + 1 %}{{ m.content }}{{ loop.index0 > ns.last }}
    {{- messages[loop.index0 - 1].role }}{{ eos_token }}
{%- endfor %}
{%- for k, v in tools %}{{ k }}{% endfor %}
"""


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["template", *arguments])
    return result.exit_code, result.output


def test_a_template_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text(SEARCHING, encoding="utf-8")
    code, text = run(str(file))
    assert code == 0
    assert "2 of 3 loops folded" in text
    assert "compares its number with ns.last" in text
    assert "reads positions of messages" in text
    assert "carries ns.n" in text
    assert "leaves ns.last" in text
    assert "the loop unpacks its items" in text


def test_the_same_as_json(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text(SEARCHING, encoding="utf-8")
    code, text = run(str(file), "--json")
    (told,) = json.loads(text)
    assert (code, told["folds"]) == (0, "partly")
    first, second, third = told["loops"]
    assert (first["folded"], first["written"], first["carried"]) == (True, ["ns.last"], [])
    assert second["reads"] == {"values": ["eos_token"], "thresholds": ["ns.last"], "lists": ["messages"]}
    assert (third["folded"], third["reason"]) == (False, "unpacks")


LOOKING_UP = """
{%- for m in messages %}{% if m.role == 'tool' %}
    {%- for x in messages %}{% for c in x.tool_calls or [] %}{% if c.id == m.tool_call_id %}{{ c.function.name }}
    {%- endif %}{% endfor %}{% endfor %}
{%- endif %}{{ m.content }}{% endfor %}"""


def test_what_is_searched_for_is_said(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text(LOOKING_UP, encoding="utf-8")
    assert "searches lists for m.tool_call_id" in run(str(file))[1]
    (told,) = json.loads(run(str(file), "--json")[1])
    assert told["loops"][0]["looks_up"] == ["m.tool_call_id"]
    file.write_text(SEARCHING, encoding="utf-8")
    assert "searches" not in run(str(file))[1]


def test_a_template_that_is_not_folded_says_why(tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{% include 'x' %}{% for m in messages %}{% endfor %}", encoding="utf-8")
    code, text = run(str(file))
    assert code == 1
    assert "includes" in text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", SEARCHING),
        ("tokenizer_config.json", json.dumps({"chat_template": SEARCHING})),
        ("tokenizer_config.json", json.dumps({"chat_template": [{"name": "default", "template": SEARCHING}]})),
    ],
)
def test_where_a_template_may_lie(tmp_path: Path, name: str, content: Any) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert run(str(tmp_path))[0] == 0
    assert run(str(tmp_path / name))[0] == 0


@pytest.mark.parametrize("content", ["{% if %}", None])
def test_what_cannot_be_read_is_said(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "t.jinja"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert run(str(file))[0] == 2


def test_the_embedded_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, text = run("embedded", "--json")
    (told,) = json.loads(text)
    assert (code, told["name"], told["folds"]) == (0, "embedded", "yes")
    monkeypatch.chdir(tmp_path)
    assert run("./embedded")[0] == 2, "a folder of that name is another"
