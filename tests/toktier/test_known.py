"""What is taken over from another request, and the keys under which bodies are found."""

from __future__ import annotations

import gc
import json
import sys
import weakref

from toktier.known import FIRST_KEY, Run, Weight, gaps, keys_of, settle, taken_over


def test_runs_are_taken_over_and_the_rest_is_made() -> None:
    shared = (Run(1, 4, 2), Run(3, 0, 1), Run(6, 2, 1))
    assert list(gaps(shared, 8)) == [0, 4, 5, 7]
    assert taken_over(shared, 8, "abcdef", str) == ["0", "e", "f", "a", "4", "5", "c", "7"]
    assert taken_over((), 3, "", str) == ["0", "1", "2"]
    assert taken_over((Run(0, 0, 3),), 3, "abc", str) == ["a", "b", "c"]


def test_what_fails_first_is_what_comes_first() -> None:
    asked = []

    def fresh(place: int) -> str:
        asked.append(place)
        return ""

    taken_over((Run(2, 0, 1),), 5, "x", fresh)
    assert asked == [0, 1, 3, 4]


def test_keys_tell_tenants_apart_and_bodies_that_begin_alike() -> None:
    one = bytes(range(256)) * 100
    keys = keys_of("t", one)
    assert len(keys) == len(set(keys)) == 4  # at 2, 4, 8 and 16 KiB
    assert not set(keys) & set(keys_of("u", one))
    assert keys_of("t", one[: FIRST_KEY - 1]) == ()
    longer = keys_of("t", one * 2)
    assert longer[-4:] == keys
    other = one[:5000] + b"!" * 20000
    assert [key in keys for key in keys_of("t", other)] == [False, False, True, True]
    edited = one[:3000] + b"?" + one[3001:]  # as long as before, so no key is lost
    assert keys_of("t", edited) == keys
    hinted = keys_of("t", one, "s")
    assert hinted[:-1] == keys
    assert hinted[-1] != keys_of("u", one, "s")[-1]


def test_weight_counts_long_strings_once() -> None:
    text = "x" * 1000
    size = sys.getsizeof(text)
    assert settle(text) == settle(text, text) == Weight(size, 0)
    containers = sys.getsizeof([1, 2]) + sys.getsizeof({"a": 1})
    assert settle({"a": [text, text]}, text) == Weight(size + containers + 54, 2)
    assert settle({"a": None, "b": True}, 3) == Weight(sys.getsizeof({"a": 1, "b": 2}) + 108, 1)


def test_the_collector_does_not_look_at_what_is_kept() -> None:
    class Mark(str):
        __slots__ = ("__weakref__",)

    value = json.loads('{"a": [{"b": {"c": [1, "x"]}}, []], "d": {"e": {}}}')
    mark = Mark("m")
    gone = weakref.ref(mark)
    value["a"].append(mark)
    del mark
    settle(value)
    inner = [value, value["a"], value["a"][0], value["a"][0]["b"], value["d"]]
    assert not any(map(gc.is_tracked, inner))
    gc.collect()
    assert json.dumps(value) == '{"a": [{"b": {"c": [1, "x"]}}, [], "m"], "d": {"e": {}}}'
    del value, inner
    assert gone() is None
