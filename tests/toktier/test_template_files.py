"""What a model's files say of its template and its special tokens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.templates import load, render
from toktier.errors import UnusableFile
from toktier.template import ChatTemplate


def test_the_jinja_file_wins_over_the_configuration() -> None:
    assert render(load({"chat_template.jinja": "file"}, {"chat_template": "config"})) == "file"
    assert render(load({}, {"chat_template": "config"})) == "config"


def test_additional_templates_stand_beside_the_file() -> None:
    files = {"chat_template.jinja": "plain", "additional_chat_templates/tool_use.jinja": "tools"}
    template = load(files, {"chat_template": "never"})
    assert render(template) == "plain"
    assert render(template, tools=[{}]) == "tools"
    assert template is not None
    assert not template.single


def test_a_model_without_a_template_has_none() -> None:
    assert load({}) is None


@pytest.mark.parametrize(
    ("files", "config", "named"),
    [
        ({"chat_template.jinja": "{% if %}"}, {}, "line 1"),
        (
            {"chat_template.jinja": "{% for m in l %}{% generation %}{% break %}{% endgeneration %}{% endfor %}"},
            {},
            "'break' outside loop",
        ),
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
