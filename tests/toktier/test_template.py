from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from tests.conftest import data_path
from toktier.errors import TemplateFailure, Unrenderable, UnusableFile
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest, environment

SILENT_ON_TOKENS = {"tokenizer_class": "PreTrainedTokenizerFast"}


def load(files: dict[str, str], config: dict[str, Any] | None = None, **kwargs: Any) -> ChatTemplate | None:
    encoded = {name: text.encode() for name, text in files.items()}
    return ChatTemplate.load((encoded, {**SILENT_ON_TOKENS, **(config or {})}), **kwargs)


def render(template: ChatTemplate | None, **kwargs: Any) -> str:
    assert template is not None
    tools = kwargs.pop("tools", None)
    messages = kwargs.pop("messages", [{"role": "user", "content": "hi"}])
    return template.render(RenderRequest(messages, tools, kwargs))


def one(source: str, **kwargs: Any) -> str:
    return render(ChatTemplate({"default": source}), **kwargs)


# --- which template counts ---------------------------------------------------------------------------------------


def test_the_jinja_file_wins_over_the_configuration() -> None:
    assert render(load({"chat_template.jinja": "file"}, {"chat_template": "config"})) == "file"
    assert render(load({}, {"chat_template": "config"})) == "config"


@pytest.mark.parametrize("as_list", [True, False])
def test_of_named_templates_tool_use_is_taken_when_tools_are_given(as_list: bool) -> None:
    named = {"default": "plain", "tool_use": "tools", "rag": "rag"}
    value = [{"name": name, "template": text} for name, text in named.items()] if as_list else named
    template = load({}, {"chat_template": value})
    assert render(template) == "plain"
    assert render(template, tools=[{}]) == "tools"


def test_additional_templates_stand_beside_the_file() -> None:
    files = {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools"}
    template = load(files, {"chat_template": "never"})
    assert render(template) == "plain"
    assert render(template, tools=[{}]) == "tools"
    assert template is not None
    assert not template.single


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


def test_a_model_without_a_template_has_none() -> None:
    assert load({}) is None


@pytest.mark.parametrize(
    ("files", "config", "named"),
    [
        ({"chat_template.jinja": "{% if %}"}, {}, "line 1"),
        ({}, {"chat_template": 5}, "tokenizer_config.json"),
        ({}, {"chat_template": [{"name": "default"}]}, "tokenizer_config.json"),
        ({"chat_template.json": "{}"}, {}, "chat_template.json"),
        ({}, {"chat_template": "x", "bos_token": 5}, "bos_token"),
    ],
)
def test_an_unusable_template_is_named(files: dict[str, str], config: dict[str, Any], named: str) -> None:
    with pytest.raises(UnusableFile, match=named):
        load(files, config)


def test_a_template_that_is_not_utf8_is_named() -> None:
    with pytest.raises(UnusableFile, match=r"chat_template\.jinja is not UTF-8"):
        ChatTemplate.load(({"chat_template.jinja": b"\xff"}, {}))


# --- special tokens ----------------------------------------------------------------------------------------------


def test_the_named_special_tokens_are_variables_and_arguments_win() -> None:
    config = {
        "chat_template": "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}",
        "bos_token": {"content": "<s>", "lstrip": False},
        "eos_token": "</s>",
        "pad_token": None,
    }
    assert render(load({}, config)) == "<s>|</s>|"
    assert render(load({}, config), eos_token="mine") == "<s>|mine|"


def test_the_legacy_map_counts_only_without_an_added_tokens_decoder() -> None:
    legacy = json.dumps({"bos_token": {"content": "<old>"}, "eos_token": "<old>"})
    config = {"chat_template": "{{ bos_token }}{{ eos_token }}", "eos_token": "<new>"}
    assert render(load({"special_tokens_map.json": legacy}, config)) == "<old><old>"
    assert render(load({"special_tokens_map.json": legacy}, {**config, "added_tokens_decoder": {}})) == "<new>"


def test_other_named_tokens_are_variables_too() -> None:
    config = {
        "chat_template": "{{ image_token }}|{{ boi }}|{{ add_bos_token }}",
        "image_token": "<img>",
        "add_bos_token": True,
        "extra_special_tokens": {"boi": "<boi>"},
    }
    assert render(load({}, config)) == "<img>|<boi>|"
    assert render(load({}, {**config, "extra_special_tokens": ["<boi>"]})) == "<img>||"


def test_a_token_that_only_the_tokenizer_class_knows_is_refused() -> None:
    config = {"chat_template": "{{ bos_token }}", "tokenizer_class": "LlamaTokenizer"}
    with pytest.raises(UnusableFile, match="bos_token"):
        load({}, config)
    assert render(load({}, {**config, "bos_token": None})) == ""
    assert render(load({}, {**config, "chat_template": "x"})) == "x"


# --- the environment ---------------------------------------------------------------------------------------------


def test_case_j01_tojson() -> None:
    cases = map(json.loads, data_path("cases", "cases.jsonl").read_text(encoding="utf-8").splitlines())
    case = next(case for case in cases if case["id"] == "J01")
    assert one(case["input"]["template"], **case["input"]["context"]) == case["expected"]["assert"]["rendered"]


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    source = """  {% for x in [1, 2, 3, 4] %}
{% if x == 2 %}{% continue %}{% endif %}
{% if x == 4 %}{% break %}{% endif %}
{{ x }};
  {% endfor %}
end
"""
    assert one(source) == "1;\n3;\nend"


def test_the_generation_tag_keeps_its_body_in_a_scope_of_its_own() -> None:
    source = "{% set x = 'a' %}{% generation %}{% set x = 'b' %}{{ x }}{% endgeneration %}{{ x }}"
    assert one(source) == "ba"


def test_the_clock_is_local_time() -> None:
    assert one("{{ strftime_now('%Y') }}") in {str(datetime.now().year), str(datetime.now().year - 1)}


class Clock(datetime):
    """A clock that stands still."""

    at = datetime(2026, 7, 26, 23, 59, 29)

    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return cls.at


def test_a_date_is_printed_while_the_engine_would_print_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toktier.template.datetime", Clock)
    assert one("{{ strftime_now('%d %b %Y') }}") == "26 Jul 2026"


@pytest.mark.parametrize(
    ("at", "format"),
    [
        (datetime(2026, 7, 26, 23, 59, 31), "%d %b %Y"),
        (datetime(2026, 7, 27, 0, 0, 29), "%d %b %Y"),
        (datetime(2026, 7, 26, 12, 0, 0), "%H:%M:%S"),
    ],
)
def test_a_clock_that_may_move_on_before_the_engine_reads_it_bypasses(
    at: datetime, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toktier.template.datetime", Clock)
    monkeypatch.setattr(Clock, "at", at)
    with pytest.raises(Unrenderable) as caught:
        one(f"{{{{ strftime_now('{format}') }}}}")
    assert caught.value.bypass is Bypass.CLOCK


@pytest.mark.parametrize("source", ["{{ [1, 2]|random }}", "{{ lipsum(1) }}", "{{ [[1, 2]]|map('random')|list }}"])
def test_a_random_choice_bypasses(source: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        one(source)
    assert caught.value.bypass is Bypass.RANDOM


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


# --- identity ----------------------------------------------------------------------------------------------------


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


def test_json_is_what_dumps_gives() -> None:
    tojson = environment().filters["tojson"]
    odd = [1, 1.0, -0.0, True, None, float("nan"), 1e400, 10**40, 'é\u2028\ud800"\\\n', "", [], {}, (), (1,), {1: 2}]
    for value in [*odd, odd, {"a": odd}, {str(k): v for k, v in enumerate(odd)}, [[[{"a": {"b": []}}]]]]:
        assert tojson(value) == json.dumps(value, ensure_ascii=False)
    for value in (object(), {"a": object()}, [Undefined()], {(1,): 2}, Namespace(a=1), {"a": Namespace()}):
        with pytest.raises(TypeError) as wanted:
            json.dumps(value, ensure_ascii=False)
        with pytest.raises(TypeError) as raised:
            tojson(value)
        assert str(raised.value).split(" at 0x")[0] == str(wanted.value).split(" at 0x")[0]
