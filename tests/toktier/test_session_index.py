"""The maps of the session store, against plain lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier.session_index import Index

KEYS = [b"a", b"b", b"c"]


class Value:
    """Counts how often one is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Value.compared += 1
        return self is other

    __hash__ = object.__hash__


@given(st.lists(st.tuples(st.sampled_from(KEYS), st.integers(0, 6)), max_size=60), st.integers(1, 4))
def test_it_holds_what_lists_would_hold(steps: list[tuple[bytes, int]], count: int) -> None:
    index: Index[Value] = Index()
    values = [Value() for _ in range(7)]
    lists: dict[bytes, list[Value]] = {key: [] for key in KEYS}
    for key, number in steps:
        value = values[number]
        if value in lists[key]:
            lists[key].remove(value)
            index.remove(key, value)
        else:
            lists[key].append(value)
            index.add(key, value)
        for one in KEYS:
            assert index.latest(one, count) == lists[one][-count:]
            assert (one in index) == bool(lists[one])
        assert len(index) == sum(map(len, lists.values()))
        assert bool(index) == any(lists.values())
    keys = sum(map(bool, lists.values()))
    for _ in range(keys):
        assert index
        index.popitem()
    assert not index
    assert index.latest(b"a", 1) == []


def test_what_is_not_there_cannot_be_removed() -> None:
    index: Index[Value] = Index()
    one, other = Value(), Value()
    with pytest.raises(KeyError):
        index.remove(b"a", one)
    index.add(b"a", one)
    with pytest.raises(KeyError):
        index.remove(b"a", other)
    index.add(b"a", other)
    with pytest.raises(KeyError):
        index.remove(b"a", Value())
    assert index.latest(b"a", 5) == [one, other]


def test_removing_one_of_many_looks_at_no_other() -> None:
    index: Index[Value] = Index()
    values = [Value() for _ in range(1000)]
    for value in values:
        index.add(b"prompt", value)
    Value.compared = 0
    for value in values[::7]:
        index.remove(b"prompt", value)
    assert Value.compared < 200  # a scan would compare some 60,000 times
    assert len(index) == 1000 - len(values[::7])
