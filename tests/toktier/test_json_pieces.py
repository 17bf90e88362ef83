"""json_pieces: json.loads's semantics at any place of the cuts, limits, and no long call of the scanner."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from json.decoder import JSONDecodeError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toktier import json_pieces
from toktier.errors import TakesLong
from toktier.json_pieces import JsonLimits, JsonReader, TooDeep, TooManyValues, loads

FREE = JsonLimits(200, 10**9)
TEXT = st.text(st.sampled_from('a"\\/\n\x00é漢😀\ud83d\ude00{}[],:1u'), max_size=40)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(TEXT, inner, max_size=6),
    max_leaves=40,
)


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    """Pieces so small that generated texts are full of their edges."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "_VALUE", 40)
        patch.setattr(json_pieces, "PIECE", 400)
        patch.setattr(json_pieces, "_SHORT", 9)
        yield


def outcome(read: Callable[[str], Any], text: str) -> str:
    """What was read, strictly, or that it was refused."""
    try:
        return json.dumps(read(text))
    except ValueError:
        return "refused"


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_reads_what_json_reads(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert outcome(lambda it: loads(it, FREE), text) == outcome(json.loads, text) != "refused"


@given(VALUES, st.data())
def test_refuses_what_json_refuses(value: Any, data: st.DataObject) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    put = data.draw(st.sampled_from(['"', "\\", ",", "{", "]", "}", "1", "\\u", "\x01", " ", ":", ""]))
    text = text[:at] + put + text[at + data.draw(st.integers(0, 2)) :]
    assert outcome(lambda it: loads(it, FREE), text) == outcome(json.loads, text)


def test_repeated_names_count_as_in_json() -> None:
    text = '{"a":1,"b":2,"a":{"x":1,"x":[3]},' + ",".join(f'"k{n % 7}":{n}' for n in range(60)) + "}"
    assert json.dumps(loads(text, FREE)) == json.dumps(json.loads(text))


@pytest.mark.parametrize("escape", ["\\ud83d\\ude00", "\\u6f22", "\\n", "\\\\", '\\"', "\\ud83d", "\\ude00"])
def test_no_escape_is_cut(escape: str) -> None:
    for before in range(90):
        text = '"' + "x" * before + escape * 300 + '"'
        assert loads(text, FREE) == json.loads(text), before


@pytest.mark.parametrize("number", ["1.5e+10", "-0.0", "123456789012345678901234567890", "1E5", "-Infinity", "NaN"])
def test_no_number_is_cut(number: str) -> None:
    for before in range(80):
        text = "[" + " " * before + number + "," * (before % 2) + (number if before % 2 else "") + " " * 300 + "]"
        assert json.dumps(loads(text, FREE)) == json.dumps(json.loads(text)), before


def test_errors_name_their_place_in_the_whole() -> None:
    text = '{"a":[' + "1," * 200 + '{"b":"' + "x" * 500 + '", "c" 1}]}'
    with pytest.raises(JSONDecodeError) as caught:
        loads(text, FREE)
    with pytest.raises(JSONDecodeError) as expected:
        json.loads(text)
    assert caught.value.pos == expected.value.pos


def test_a_number_longer_than_a_piece_is_refused() -> None:
    with pytest.raises(ValueError):
        loads("[" + "1" * 1000 + ",2]", FREE)
    assert loads("[" + "1" * 300 + ",2]", FREE) == [int("1" * 300), 2]


@pytest.mark.parametrize("inside", ["", "1", "1," * 300 + "1"])
@pytest.mark.parametrize("kind", ["[]", "{}"])
def test_depth_is_limited_exactly(kind: str, inside: str) -> None:
    def nested(depth: int) -> str:
        opening, closing = ("[", "]") if kind == "[]" else ('{"k":', "}")
        inner = f"[{inside}]"
        return opening * (depth - 1) + inner + closing * (depth - 1)

    limits = JsonLimits(depth=20)
    assert loads(nested(20), limits) == json.loads(nested(20))
    with pytest.raises(TooDeep):
        loads(nested(21), limits)
    with pytest.raises(TooDeep):
        loads("[" * 100_000, limits)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("[" + ",".join(["1"] * 500) + "]", 504),
        ("[" + ",".join(["[2]"] * 500) + "]", 4 + 500 * 5),
        ("[" + ",".join(['{"a":[]}'] * 100) + "]", 4 + 100 * 8),
        ("[" + ",".join(['{"a":[3,{}],"b":"},"}'] * 100) + "]", 4 + 100 * 14),
        ("{" + ",".join(f'"{n}":""' for n in range(300)) + "}", 304),
        ('["' + "x" * 2000 + '"]', 5),
        ("[[[" + "7, " * 99 + "7]]]", 112),
    ],
)
def test_values_are_counted_exactly(text: str, values: int) -> None:
    assert loads(text, JsonLimits(values=values)) == json.loads(text)
    with pytest.raises(TooManyValues):
        loads(text, JsonLimits(values=values - 1))


def test_a_deadline_is_kept() -> None:
    text = "[" + ",".join(['{"a":1}'] * 50_000) + "]"
    with pytest.raises(TakesLong):
        JsonReader(text, FREE, time.perf_counter() + 0.002).value(0)
    assert len(JsonReader(text, FREE, time.perf_counter() + 1000).value(0)[0]) == 50_000


@pytest.mark.parametrize("size", [json_pieces._VALUE])
@pytest.mark.parametrize(
    "text",
    [
        "[" + "[]," * 40_000 + "[]]",
        '["' + "\\n" * 60_000 + '"]',
        '{"' + "k" * 120_000 + '":1}',
        "[" + " " * 120_000 + "1]",
        "[" + '{"a":{"b":[1,2,3],"c":"x,y"}},' * 4_000 + "1]",
        "[" * 60 + "7," * 60_000 + "7" + "]" * 60,
        '{"a":"' + "漢" * 120_000 + '"}',
    ],
)
def test_no_call_of_the_scanner_is_long(monkeypatch: pytest.MonkeyPatch, text: str, size: int) -> None:
    """Sizes, not times: what each call can have read, in the sizes that the product has."""
    monkeypatch.setattr(json_pieces, "_VALUE", size)
    monkeypatch.setattr(json_pieces, "PIECE", 4 * size)
    longest = 0

    def noted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(text: str, at: int, *more: Any) -> Any:
            nonlocal longest
            try:
                value, end = function(text, at, *more)
            except ValueError:
                longest = max(longest, min(len(text) - at, 5 * size))
                raise
            longest = max(longest, end - at)
            return value, end

        return call

    monkeypatch.setattr(json_pieces, "_scan", noted(json_pieces._scan))
    monkeypatch.setattr(json_pieces, "scanstring", noted(json_pieces.scanstring))
    assert loads(text, FREE) == json.loads(text)
    assert 0 < longest <= 4 * size + 20
