"""What templates find in their environment."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.runtime import Undefined
from jinja2.utils import Namespace

from tests.conftest import data_path
from tests.support.templates import one
from toktier import template_environment
from toktier.errors import Unrenderable
from toktier.reasons import Bypass
from toktier.template_environment import environment


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
    monkeypatch.setattr("toktier.template_environment.datetime", Clock)
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
    monkeypatch.setattr("toktier.template_environment.datetime", Clock)
    monkeypatch.setattr(Clock, "at", at)
    with pytest.raises(Unrenderable) as caught:
        one(f"{{{{ strftime_now('{format}') }}}}")
    assert caught.value.bypass is Bypass.CLOCK


@pytest.mark.parametrize("source", ["{{ [1, 2]|random }}", "{{ lipsum(1) }}", "{{ [[1, 2]]|map('random')|list }}"])
def test_a_random_choice_bypasses(source: str) -> None:
    with pytest.raises(Unrenderable) as caught:
        one(source)
    assert caught.value.bypass is Bypass.RANDOM


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


LARGE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


@given(LARGE, st.booleans(), st.sampled_from([None, 2, "\t"]), st.booleans())
def test_large_values_are_written_as_small_ones(value: Any, ascii_only: bool, indent: Any, sort: bool) -> None:
    options = {"ensure_ascii": ascii_only, "indent": indent, "sort_keys": sort}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(template_environment, "_LARGE", 0)
        written = template_environment._tojson([value], **options)
    assert written == template_environment._tojson([value], **options) == json.dumps([value], **options)
