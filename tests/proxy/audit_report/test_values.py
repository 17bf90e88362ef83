from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.audit_report.values import LARGEST, OTHER, Names, iso, moment, name, number
from tests.support.hostile_lines import values


@given(values)
@example("\x1b[31m")
@example("\ud800")
def test_a_name_is_short_and_printable(value: Any) -> None:
    taken = name(value, 40)
    assert (taken is None) == (not isinstance(value, str) or value == "")
    if taken is not None:
        assert taken.isprintable()
        assert len(taken) <= 40 * len("<U+10FFFF>")


def test_names() -> None:
    assert name("append") == "append"
    assert name("a\nb\u202e") == "a<U+000A>b<U+202E>"
    assert name("x" * 129) == "x" * 127 + "…"
    assert name("x" * 128) == "x" * 128


@pytest.mark.parametrize("value", [None, True, False, -1, 1.0, "1", [1], {}, LARGEST + 1, 10**400])
def test_what_is_no_number(value: Any) -> None:
    assert number(value) is None


def test_numbers() -> None:
    assert [number(0), number(LARGEST)] == [0, LARGEST]


@given(st.datetimes(min_value=datetime(1970, 1, 1)))
def test_a_moment_is_what_the_log_writes(when: datetime) -> None:
    text = when.isoformat(timespec="microseconds") + "Z"
    found = moment(text)
    assert found == (when - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    assert moment(iso(found)) == found - found % 1_000_000


def test_a_moment_may_have_another_offset() -> None:
    assert moment("2026-11-30T10:00:00+02:00") == int(datetime(2026, 11, 30, 8, tzinfo=UTC).timestamp() * 1e6)


@pytest.mark.parametrize(
    "value",
    [None, 5, "", "yesterday", "2026-11-30T10:00:00", "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "2" * 5000],
)
def test_what_is_no_moment(value: Any) -> None:
    assert moment(value) is None


@pytest.mark.parametrize("microseconds", [-(10**30), 10**30])
def test_a_moment_beyond_the_calendar_is_its_end(microseconds: int) -> None:
    assert iso(microseconds) in ("1970-01-01T00:00:00Z", "9999-12-31T23:59:59Z")


def test_names_are_bounded_and_nothing_is_lost() -> None:
    names = Names(3)
    for n in range(100):
        names.count(str(n))
        names.count("0")
    assert names.total() == 200
    assert names.sorted() == {"0": 101, OTHER: 97, "1": 1, "2": 1}
