from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from proxy.audit_report.timeline import MINUTE_US, MOST, Timeline

moments = st.lists(
    st.tuples(st.integers(0, 10**10) | st.integers(0, 250 * 10**15), st.sampled_from("abc")), min_size=1, max_size=60
)


@given(moments, st.integers(1, 50))
def test_every_count_is_in_its_column(events: list[tuple[int, str]], most: int) -> None:
    timeline = Timeline()
    for moment, name in events:
        timeline.count(moment, name)
    start, width, columns = timeline.columns(most)
    assert 1 <= len(columns) <= most
    assert width % MINUTE_US == 0
    expected = [Counter[str]() for _ in columns]
    for moment, name in events:
        expected[(moment - start) // width][name] += 1
    assert columns == expected
    assert timeline.names() == dict(sorted(Counter(n for _, n in events).items(), key=lambda item: (-item[1], item[0])))


def test_a_long_log_is_kept_in_wider_intervals() -> None:
    timeline = Timeline()
    for minute in range(5 * MOST):
        timeline.count(minute * MINUTE_US, "a")
    assert timeline.width_us == 8 * MINUTE_US
    rows = timeline.rows()
    assert len(rows) == 900
    assert all(counts == {"a": 8} for _, counts in rows)
    assert rows[1][0] == 8 * MINUTE_US


def test_an_empty_one() -> None:
    assert Timeline().columns(10) == (0, MINUTE_US, [])
    assert Timeline().rows() == []
