"""Which template counts, what it sees, and what becomes of its failures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.templates import load, one, render
from toktier.errors import TemplateFailure, Unrenderable, UnusableFile
from toktier.reasons import Bypass
from toktier.template import ChatTemplate


@pytest.mark.parametrize("as_list", [True, False])
def test_of_named_templates_tool_use_is_taken_when_tools_are_given(as_list: bool) -> None:
    named = {"default": "plain", "tool_use": "tools", "rag": "rag"}
    value = [{"name": name, "template": text} for name, text in named.items()] if as_list else named
    template = load({}, {"chat_template": value})
    assert render(template) == "plain"
    assert render(template, tools=[{}]) == "tools"


def test_a_default_serves_tools_too_where_there_is_no_tool_use() -> None:
    assert render(load({}, {"chat_template": "one"}), tools=[{}]) == "one"


def test_without_a_default_only_the_requests_with_tools_can_be_rendered() -> None:
    template = load({}, {"chat_template": {"tool_use": "tools"}})
    assert render(template, tools=[{}]) == "tools"
    with pytest.raises(Unrenderable) as raised:
        render(template)
    assert raised.value.bypass is Bypass.NO_TEMPLATE


def test_a_processors_legacy_template_counts_when_there_are_no_tools() -> None:
    legacy = json.dumps({"chat_template": "processor"})
    template = load({"chat_template.json": legacy}, {"chat_template": "tokenizer"})
    assert render(template) == "processor"
    assert render(template, tools=[{}]) == "tokenizer"
    assert render(load({"chat_template.json": legacy, "chat_template.jinja": "file"})) == "file"
    only = load({"chat_template.json": legacy})
    assert render(only) == "processor"
    with pytest.raises(Unrenderable):
        render(only, tools=[{}])


def test_an_override_replaces_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text("mine", encoding="utf-8")
    files = {"chat_template.jinja": "file", "additional_chat_templates/tool_use.jinja": "tools"}
    template = load(files, override=tmp_path / "mine.jinja")
    assert render(template, tools=[{}]) == "mine"
    with pytest.raises(UnusableFile, match=r"missing\.jinja"):
        load(files, override=tmp_path / "missing.jinja")


def test_tools_and_documents_are_none_when_absent() -> None:
    assert one("{{ tools }}{{ documents }}{{ add_generation_prompt }}", add_generation_prompt=True) == "NoneNoneTrue"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('SECRET ' + messages[0].content) }}",
        "{{ messages[0].missing.attribute }}",
        "{{ messages[0].content + 1 }}",
        "{% set _ = messages.append(1) %}",
        "{{ messages.__class__.__mro__ }}",
        "{{ undefined_thing | tojson }}",
    ],
)
def test_whatever_a_template_raises_is_one_failure_without_text(source: str) -> None:
    with pytest.raises(TemplateFailure) as raised:
        one(source, messages=[{"role": "user", "content": "SECRET"}])
    assert raised.value.bypass is Bypass.TEMPLATE_ERROR
    assert "SECRET" not in str(raised.value)
    assert raised.value.__suppress_context__


def test_client_text_is_never_read_as_a_template() -> None:
    assert one("{{ messages[0].content }}", messages=[{"role": "user", "content": "{{ 1 + 1 }}"}]) == "{{ 1 + 1 }}"


def test_the_digest_covers_sources_names_and_tokens() -> None:
    def digest(templates: dict[str, str], **kwargs: Any) -> str:
        return ChatTemplate(templates, **kwargs).digest

    base = digest({"default": "a"})
    assert base == digest({"default": "a"})
    others = [
        digest({"default": "b"}),
        digest({"tool_use": "a"}),
        digest({"default": "a", "tool_use": "a"}),
        digest({"default": "a"}, processor="a"),
        digest({"default": "a"}, special_tokens={"bos_token": "x"}),
    ]
    assert len({base, *others}) == 1 + len(others)
