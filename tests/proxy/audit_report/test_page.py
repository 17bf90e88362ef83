from __future__ import annotations

import re
from html.parser import HTMLParser

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.audit_report import page, report
from proxy.audit_report.collect import Collected
from proxy.audit_report.values import LARGEST
from tests.support.hostile_lines import MARKUP, TEXTS
from tests.support.hostile_lines import lines as hostile
from tools import audit_sample

VOID = {"meta", "link", "img", "br", "hr", "input"}
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "p", "div", "b", "span", "i", "section",
    "table", "tr", "th", "td", "code", "svg", "line", "rect", "text",
}  # fmt: skip
ATTRIBUTES = {
    "lang", "charset", "http-equiv", "content", "name", "class", "viewbox", "role", "aria-label", "x", "y", "x1", "x2",
    "y1", "y2", "width", "height", "opacity", "text-anchor",
}  # fmt: skip


class Parsed(HTMLParser):
    """Every element of the page, whether they nest, and all text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        for name, value in attrs:
            if name in ("x", "y", "width", "height", "x1", "x2", "y1", "y2", "opacity"):
                assert value is not None
                assert re.fullmatch(r"-?\d+(\.\d+)?", value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def rendered(found: Collected) -> str:
    return page.render(report.build(found), found)


def test_the_sample_has_every_plot_and_nothing_from_elsewhere() -> None:
    text = rendered(audit_sample.collected(requests=800))
    parsed = Parsed(text)
    assert parsed.tags.count("svg") == 8
    for title in ("Requests per minute", "Time in each stage", "Served and scanned", "Bypass reasons", "Shadow checks"):
        assert title in parsed.text
    assert set(parsed.tags) == TAGS
    assert parsed.attributes <= ATTRIBUTES
    assert not re.search(r"https?://|url\(|@import|<script|javascript:", text)
    assert "prefers-color-scheme: dark" in text
    assert "default-src 'none'" in text


def test_an_empty_log_makes_a_page_without_plots() -> None:
    parsed = Parsed(rendered(Collected()))
    assert "svg" not in parsed.tags
    assert "the input is empty" in parsed.text


def test_hostile_names_are_text_everywhere() -> None:
    found = Collected()
    for number, text in enumerate(TEXTS):
        base = audit_sample.START_US + number
        made = [
            audit_sample.line("request", base, model=text, path=text, bypass=text, full=text, cause=text, error=text,
                              route=text, flags=[text], status=LARGEST, chars=LARGEST, served_chars=LARGEST,
                              scanned_chars=LARGEST, tokens=1, stages_us={"read": LARGEST, "total": 0, text: 5}),
            audit_sample.line("shadow_check", base, model=text, path=text, result=text, sampled=text, delay_us=LARGEST),
            audit_sample.line("shadow_dropped", base, model=text, reason=text),
            audit_sample.line("mismatch", base, model=text, path=text, source=text, kind=text, tokenizer_digest=text,
                              versions={text: text}, certificate=text, capture=text, request_id=text),
            audit_sample.line("quarantined", base, tokenizer_digest=text, path=text, source=text,
                              quarantine_level=text),
            audit_sample.line(text or "x", base),
        ]  # fmt: skip
        for one in made:
            found.take(orjson.dumps(one))
    text = rendered(found)
    parsed = Parsed(text)
    assert set(parsed.tags) <= TAGS
    assert parsed.attributes <= ATTRIBUTES
    assert MARKUP in parsed.text
    assert MARKUP not in text
    assert "{{ 7 * 7 }}" in parsed.text
    assert all(c.isprintable() or c == "\n" for c in text)


@given(st.lists(hostile(), max_size=10))
@settings(max_examples=60, deadline=None)
def test_any_lines_make_a_sound_page(lines: list[bytes]) -> None:
    found = Collected()
    for raw in lines:
        found.take(raw)
    text = rendered(found)
    parsed = Parsed(text)
    assert set(parsed.tags) <= TAGS
    assert parsed.attributes <= ATTRIBUTES
    assert all(c.isprintable() or c == "\n" for c in text)
