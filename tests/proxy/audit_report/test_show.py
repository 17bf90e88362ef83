from __future__ import annotations

import io
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from proxy.audit_report import report
from proxy.audit_report.collect import Collected
from proxy.audit_report.show import duration, show
from tests.support.hostile_lines import lines as hostile
from tools import audit_sample


def shown(found: Collected, width: int = 110) -> str:
    console = Console(file=io.StringIO(), width=width, highlight=False, color_system=None)
    show(report.build(found), console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_sample_says_what_matters() -> None:
    text = shown(audit_sample.collected(requests=600))
    assert "verdict       1 mismatch, all resolved" in text
    assert "Qwen/Qwen3-8B" in text
    assert "3 log lines were lost" in text
    assert "p50" in text


@pytest.mark.parametrize("dropped", ["quarantine_lifted", "shadow_check"])
def test_what_is_not_resolved_is_told_first(dropped: str) -> None:
    found = Collected()
    for one in audit_sample.lines(requests=100):
        if one["event"] != dropped:
            found.take(orjson.dumps(one))
    expected = "1 mismatch, 1 NOT RESOLVED; 1 in quarantine" if dropped == "quarantine_lifted" else "1 mismatch, all"
    assert expected in shown(found)


def test_no_number_is_cut_off_on_a_narrow_terminal() -> None:
    found = Collected()
    huge = dict.fromkeys(("chars", "served_chars", "scanned_chars", "tokens"), 2**53)
    found.take(orjson.dumps(audit_sample.line("request", audit_sample.START_US, path="append", **huge)))
    for width in (20, 80):
        assert shown(found, width).count("9,007,199,254,740,992") == 4


def test_nothing_was_read() -> None:
    text = shown(Collected())
    assert "no mismatch" in text
    assert "the input is empty" in text


@given(st.lists(hostile(), max_size=8))
@settings(max_examples=60, deadline=None)
def test_nothing_in_a_log_reaches_the_terminal_but_as_text(lines: list[bytes]) -> None:
    found = Collected()
    for raw in lines:
        found.take(raw)
    text = shown(found)
    assert all(character.isprintable() or character == "\n" for character in text)


def test_markup_is_shown_not_followed() -> None:
    found = Collected()
    made: dict[str, Any] = audit_sample.line("request", audit_sample.START_US, model="[red]m[/]", path="[b]p[/b]")
    found.take(orjson.dumps(made))
    text = shown(found)
    assert "[red]m[/]" in text
    assert "[b]p[/b]" in text


@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (None, "-"),
        (0, "0 us"),
        (999, "999 us"),
        (1000, "1 ms"),
        (1234, "1.23 ms"),
        (999_499, "999 ms"),
        (999_500, "1 s"),
        (12_345_678, "12.3 s"),
        (123_456_789, "123 s"),
        (10**12, "1,000,000 s"),
    ],
)
def test_durations(microseconds: int | None, text: str) -> None:
    assert duration(microseconds) == text
