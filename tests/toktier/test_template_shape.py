from __future__ import annotations

import pytest

from toktier.template_environment import environment
from toktier.template_shape import TemplateShape, shape_of


def shape(source: str) -> TemplateShape:
    return shape_of(environment(), source)


LOOP = "{% for message in messages %}"
END = "{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        LOOP + "{% for part in message.content %}{% endfor %}" + END,
        LOOP + "{% for part in message['content'] %}{% endfor %}" + END,
        LOOP + "{% for part in message.content | list %}{% endfor %}" + END,
        LOOP + "{% for part in message.content[1:] %}{% endfor %}" + END,
        "{% for m in messages[1:] %}{% for part in m.content %}{% endfor %}{% endfor %}",
        "{% set rest = messages[1:] %}{% for m in rest %}{% for p in m.content %}{% endfor %}{% endfor %}",
        LOOP + "{% set content = message.content %}{% for part in content %}{% endfor %}" + END,
        "{% macro show(x) %}{% for part in x %}{% endfor %}{% endmacro %}" + LOOP + "{{ show(message.content) }}" + END,
        "{% macro show(x) %}{% for p in x %}{% endfor %}{% endmacro %}" + LOOP + "{{ show(x=message.content) }}" + END,
    ],
)
def test_a_loop_over_content_makes_the_format_openai(source: str) -> None:
    assert shape(source).content_format == "openai"


@pytest.mark.parametrize(
    "source",
    [
        LOOP + "{{ message.content }}" + END,
        LOOP + "{% for part in message.other %}{% endfor %}" + END,
        LOOP + "{% for part in message.content.parts %}{% endfor %}" + END,
        "{% for part in other.content %}{% endfor %}",
        # a macro's own name is judged by what it is given, `content` included
        "{% macro show(content) %}{% for part in content %}{% endfor %}{% endmacro %}" + LOOP + "{{ show(1) }}" + END,
        # vLLM's analysis gives up on a target that unpacks
        "{% for a, b in messages %}{% for part in a.content %}{% endfor %}{% endfor %}",
        LOOP + "{% for a, b in message.content %}{% endfor %}" + END,
    ],
)
def test_else_it_is_string(source: str) -> None:
    assert shape(source).content_format == "string"


def test_the_free_variables_are_those_that_the_template_leaves_open() -> None:
    source = "{% set a = 1 %}{{ a }}{{ b }}{% if c is defined %}{% endif %}{{ namespace() }}{{ raise_exception }}"
    assert shape(source).variables == {"b", "c"}


def test_the_developer_role_must_be_quoted() -> None:
    assert shape("{{ 'developer' }}").names_developer
    assert shape('{{ "developer" }}').names_developer
    assert not shape("{{ developer }} developer").names_developer


def test_names_of_content_loops() -> None:
    source = "{% for p in msg.content %}{% endfor %}{% for p in x['content'] | list %}{% endfor %}"
    assert shape(source).content_loop_names == {"msg", "x"}


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | tojson }}",
        LOOP + "{{ message | tojson }}" + END,
        LOOP + "{{ message }}" + END,
        LOOP + "{{ 'a' ~ message }}" + END,
        LOOP + "{% for key, value in message.items() %}{% endfor %}" + END,
        LOOP + "{% for key in message %}{% endfor %}" + END,
        "{% macro show(m) %}{{ m | tojson }}{% endmacro %}" + LOOP + "{{ show(message) }}" + END,
        "{% set last = messages[-1] %}{{ last | string }}",
        "{% set last = messages | last %}{{ last }}",
    ],
)
def test_a_template_that_shows_whole_messages_is_known(source: str) -> None:
    assert shape(source).dumps_messages


@pytest.mark.parametrize(
    "source",
    [
        LOOP + "{{ message.role }}{{ message['content'] | tojson }}{{ 'x' in message }}" + END,
        "{{ messages | length }}{% set rest = messages[1:] %}{% for m in rest | reverse %}{{ m.role }}{% endfor %}",
        "{% macro show(m) %}{{ m.content }}{% endmacro %}" + LOOP + "{{ show(message) }}" + END,
        LOOP + "{{ message.tool_calls | tojson }}{% for call in message.tool_calls %}{{ call }}{% endfor %}" + END,
    ],
)
def test_a_template_that_names_its_keys_is_not(source: str) -> None:
    assert not shape(source).dumps_messages
