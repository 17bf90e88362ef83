from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import pytest

from proxy.audit_report import report
from proxy.audit_report.collect import Collected
from tests.conftest import ROOT
from tools import audit_sample

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC).timestamp()
PAGE = (ROOT / "docs" / "audit.md").read_text("utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30s", "2026-11-30T11:59:30"),
        ("30m", "2026-11-30T11:30:00"),
        (" 2 h ", "2026-11-30T10:00:00"),
        ("7d", "2026-11-23T12:00:00"),
        ("1w", "2026-11-23T12:00:00"),
        ("2026-11-30T10:00", "2026-11-30T10:00:00"),
        ("2026-11-30T10:00:00Z", "2026-11-30T10:00:00"),
        ("2026-11-30 10:00:00+02:00", "2026-11-30T08:00:00"),
        ("2026-11-30", "2026-11-30T00:00:00"),
        ("999999999w", "1970-01-01T00:00:00"),
    ],
)
def test_since(text: str, expected: str) -> None:
    assert report.since(text, NOW) == int(datetime.fromisoformat(expected + "+00:00").timestamp() * 1e6)


@pytest.mark.parametrize("text", ["", "h", "2 years", "-2h", "yesterday", "2026-13-01", "1.5h"])
def test_what_since_does_not_take(text: str) -> None:
    with pytest.raises(ValueError):
        report.since(text, NOW)


def table(first: str) -> set[str]:
    """Names in the first column of the table whose header begins so."""
    _, found, rest = PAGE.partition(f"\n| {first} | meaning |")
    assert found
    names: set[str] = set()
    for row in rest.split("\n\n")[0].splitlines()[2:]:
        names |= set(re.findall(r"`(\w+)`", row.split("|")[1]))
    return names


def test_the_documented_fields_are_those_of_the_report() -> None:
    built = report.build(audit_sample.collected(requests=200))
    assert table("field") == set(built)
    tally: dict[str, Any] = built["all"]
    assert table("field of a tally") == set(tally)
    assert table("field of `shadow`") == set(tally["shadow"])
    assert all(set(model) == {"model", *tally} for model in built["models"])


def test_warnings_say_what_is_missing() -> None:
    assert report.build(Collected())["warnings"] == ["nothing was read: the input is empty"]
    found = audit_sample.collected(requests=20)
    found.take(b"{torn")
    found.take(None)
    found.files.append({"name": "x.gz", "bytes": 1, "lines": 1, "own": 1, "damaged": "ends early"})
    assert report.build(found)["warnings"] == [
        "3 log lines were lost when they were written (log_dropped), and are missing here",
        "2 lines could not be read; a mismatch may be among them",
        "x.gz ends early: what came before that is counted",
    ]


def test_the_span_is_that_of_the_lines() -> None:
    found = audit_sample.collected(requests=20)
    assert report.build(found)["span"] == {
        "first": "2026-11-30T12:30:00Z", "last": "2026-11-30T14:30:00Z", "seconds": 7200.0,
    }  # fmt: skip
