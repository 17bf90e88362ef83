"""Limits on a render: time and size are kept, and nothing that is rendered changes by them."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from tests.support.templates import CHATML, EVERY_KEY, MODELS, config_of, template_of
from toktier.errors import TakesLong, TemplateFailure, Unrenderable
from toktier.reasons import Bypass
from toktier.template import ChatTemplate, RenderRequest
from toktier.template_environment import environment
from toktier.template_limit import RenderLimit

MESSAGES = [{"role": "user", "content": f"text {number}"} for number in range(300)]


def made(source: str, seconds: float = 1e9, chars: float = 1e9) -> ChatTemplate:
    it = ChatTemplate({"default": source})
    it.limit = RenderLimit(seconds, chars)
    return it


def request(messages: list[dict[str, Any]] = MESSAGES, **kwargs: Any) -> RenderRequest:
    return RenderRequest(messages, None, {"add_generation_prompt": True, **kwargs})


ENDLESS = {
    "loops": "{% for a in messages %}" * 4 + "{% if a.content == 'never' %}x{% endif %}" + "{% endfor %}" * 4,
    "filtered": "{% for a in messages %}" * 3
    + "{% for b in messages if b.content == 'never' %}{% endfor %}"
    + "{% endfor %}" * 3,
    "macro": "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% for a in range(2) recursive %}{{ loop(range(2)) if loop.depth < 60 }}{% endfor %}",
    "call block": "{% macro f() %}{% for x in range(9) %}{{ caller() }}{% endfor %}{% endmacro %}"
    + "{% call f() %}" * 12
    + "x"
    + "{% endcall %}" * 12,
    "growing text": "{% set ns = namespace(t='ab') %}{% for a in range(99999) %}{% for b in range(99999) %}"
    "{% set ns.t = ns.t[:999] ~ ns.t[:999] %}{% endfor %}{% endfor %}",
    "generation": "{% for a in range(99999) %}{% generation %}{% for b in range(9999) %}{% endfor %}{% endgeneration %}"
    "{% endfor %}",
    "set block": "{% set x %}" + "{% for a in range(99999) %}" * 2 + "y" + "{% endfor %}" * 2 + "{% endset %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_render_without_end_is_stopped(name: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        made(ENDLESS[name], seconds=0.05).render(request())
    assert (caught.value.bypass, caught.value.detail) == (Bypass.TEMPLATE_LIMIT, "time")


def test_a_caller_in_a_hurry_is_told() -> None:
    it = made(ENDLESS["loops"], seconds=60)
    with pytest.raises(TakesLong):
        it.render(request(), within_s=0.01)
    it.limit = RenderLimit(0.01)
    with pytest.raises(Unrenderable):
        it.render(request(), within_s=60)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in messages %}{% for b in messages %}{{ b.content }}{% endfor %}{% endfor %}",
        "{% macro all() %}{% for b in messages %}{{ b.content }}{% endfor %}{% endmacro %}"
        "{% for a in messages %}{{ all() }}{% endfor %}",
        "{{ 'x' * 200000 }}",
    ],
)
def test_size_is_limited(source: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        made(source, chars=100_000).render(request())
    assert (caught.value.bypass, caught.value.detail) == (Bypass.TEMPLATE_LIMIT, "size")
    assert len(made(source).render(request())) > 100_000


def test_the_limits_are_exact() -> None:
    assert made("{{ 'x' * 1000 }}", chars=1000).render(request()) == "x" * 1000
    with pytest.raises(Unrenderable):
        made("{{ 'x' * 1001 }}", chars=1000).render(request())


def plain(source: str, arguments: dict[str, Any]) -> str:
    """What the template renders without any look at the clock."""
    return environment().from_string(source).render(arguments)


@pytest.mark.parametrize("source", [CHATML, EVERY_KEY])
def test_nothing_that_is_rendered_changes(source: str) -> None:
    arguments = {"documents": None, "add_generation_prompt": True, "messages": MESSAGES, "tools": None}
    assert made(source).render(request()) == plain(source, arguments)


@pytest.mark.parametrize("model", MODELS)
def test_nothing_that_real_models_render_changes(model: str) -> None:
    it = template_of(model)
    config_of(model)
    messages = [MESSAGES[0], {"role": "assistant", "content": "a"}, MESSAGES[1], {"role": "assistant", "content": "b"}]
    arguments = {"documents": None, **it.special_tokens, "add_generation_prompt": True, "messages": messages}
    assert it.render(request(messages)) == plain(it.source(tools=False), {**arguments, "tools": None})


TRICKY = [
    "{% for a in messages %}\n  {% if loop.first %}{% continue %}{% endif %}{{- a.content -}}\n{% if loop.index > 5 %}"
    "{% break %}{% endif %}{% else %}none{% endfor %}",
    "{%- for a in messages -%} {{ loop.index }} {%- endfor -%}",
    "{% macro f(x, y=2) %}{{ caller() if caller else x }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{{ f(1, 2, 3, k=4) }}{% call f(5) %}{% endcall %}",
    "{% for a in [] %}{% endfor %}{% for a, b in [[1, 2]] recursive %}{{ a }}{{ b }}{% endfor %}",
    "{% set ns = namespace(n=0) %}{% for a in messages %}{% set ns.n = ns.n + 1 %}{% set n = 9 %}{% endfor %}{{ ns.n }}"
    "{{ n is defined }}",
    "{% for a in messages if a.role == 'user' %}{% filter upper %}{{ a.content }}{% endfilter %}{% endfor %}",
]


@pytest.mark.parametrize("source", TRICKY)
def test_nothing_that_odd_templates_render_changes(source: str) -> None:
    arguments = {"documents": None, "add_generation_prompt": True, "messages": MESSAGES, "tools": None}
    assert made(source).render(request()) == plain(source, arguments)


@pytest.mark.parametrize(
    "source", ["{{ raise_exception('no') }}", "{% for a in messages %}{{ a.b.c }}{% endfor %}", "{{ 1 / 0 }}"]
)
def test_errors_are_the_templates_own(source: str) -> None:
    with pytest.raises(TemplateFailure) as caught:
        made(source).render(request())
    with pytest.raises((jinja2.TemplateError, ArithmeticError)) as expected:
        plain(source, {"messages": MESSAGES})
    assert caught.value.template_message == str(expected.value)
