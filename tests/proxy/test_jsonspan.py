"""jsonspan: json.loads's semantics, and edits that touch no other byte."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.jsonspan import NotAnObject, in_utf8, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
SPACES = st.text(" \t\r\n", max_size=2)


@st.composite
def objects(draw: st.DrawFn) -> tuple[bytes, list[tuple[str, str]]]:
    """An object as text with odd spacing and repeated names, and its members (name, text of the value)."""
    names = st.sampled_from(["a", "model", "ä", "🫨", "", 'q"'])
    members = draw(st.lists(st.tuples(names, VALUES), max_size=5))
    ascii_only = draw(st.booleans())
    texts = [(n, json.dumps(v, ensure_ascii=ascii_only)) for n, v in members]
    parts = [
        f"{draw(SPACES)}{json.dumps(n, ensure_ascii=ascii_only)}{draw(SPACES)}:{draw(SPACES)}{v}{draw(SPACES)}"
        for n, v in texts
    ]
    text = draw(SPACES) + "{" + (",".join(parts) or draw(SPACES)) + "}" + draw(SPACES)
    return text.encode("utf-8", "ignore"), texts


def same(a: object, b: object) -> bool:
    return json.dumps(a) == json.dumps(b)


@given(objects())
def test_value_equals_json_loads(case: tuple[bytes, list[tuple[str, str]]]) -> None:
    raw, _ = case
    assert same(parse(raw).value, json.loads(raw))


ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "utf-32-be")


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("text", ["{}", "[]", "0", '{"ä": "🫨"}', '{"long": "' + "aä☃🫨" * 150_001 + '"}'])
def test_every_encoding_that_json_loads_takes_becomes_utf8(encoding: str, text: str) -> None:
    raw = text.encode(encoding)
    told = in_utf8(raw)
    assert told is raw if encoding.startswith("utf-8") else told.decode() == text
    assert json.loads(told) == json.loads(raw)


@given(st.binary(max_size=12) | st.text('{}"0 \0ä\ufeff', max_size=6).map(lambda text: text.encode("utf-16-le")))
def test_what_becomes_utf8_is_what_json_loads_reads(raw: bytes) -> None:
    try:
        told = in_utf8(raw)
    except UnicodeDecodeError:
        with pytest.raises(ValueError):  # json.loads takes lone surrogates, but not outside of strings
            json.loads(raw)
        return
    try:
        expected = json.loads(raw)
    except ValueError:
        with pytest.raises(ValueError):
            json.loads(told)
    else:
        assert same(json.loads(told), expected)


@given(st.text('{}[]",:0123456789.eE+-ntrufalsNIy \\u\n', max_size=20))
def test_refuses_what_json_loads_refuses(text: str) -> None:
    raw = ("{" + text).encode()
    try:
        expected = json.loads(raw)
    except ValueError:
        with pytest.raises(ValueError):
            parse(raw)
    else:
        assert same(parse(raw).value, expected)


@given(objects(), st.sets(st.sampled_from(["a", "model", "ä", "absent"])), st.booleans())
def test_edit_keeps_the_other_members(
    case: tuple[bytes, list[tuple[str, str]]], remove: set[str], add_one: bool
) -> None:
    raw, _ = case
    add = [("added", [b"[1,", b"2]"]), ("x", [b"null"])] if add_one else []
    edited = parse(raw).edit(remove, add)
    pairs = json.loads(edited, object_pairs_hook=list)
    before = json.loads(raw, object_pairs_hook=list)
    kept = [pair for pair in before if pair[0] not in remove]
    expected = [list(p) for p in kept] + ([["added", [1, 2]], ["x", None]] if add_one else [])
    assert same([list(p) for p in pairs], expected)
    if not remove and not add:
        assert edited == raw


def test_edit_leaves_every_other_byte() -> None:
    raw = b' {"b" : 1.50 ,\n "drop": {"x":[1]}, "a":"\\u00e9\xf0\x9f\xab\xa8" , "drop":2 } \n'
    edited = parse(raw).edit({"drop"}, [("ids", [b"[7]"])])
    assert edited == b' {"b" : 1.50, "a":"\\u00e9\xf0\x9f\xab\xa8","ids":[7] } \n'


def test_remove_first_and_last_and_all() -> None:
    raw = b'{"a":1, "b":2, "c":3}'
    assert parse(raw).edit({"a"}) == b'{"b":2, "c":3}'
    assert parse(raw).edit({"c"}) == b'{"a":1, "b":2}'
    assert parse(raw).edit({"a", "b", "c"}, [("d", [b"4"])]) == b'{"d":4}'
    assert parse(b"{ }").edit((), [("d", [b"4"])]) == b'{"d":4 }'


def test_python_extras() -> None:
    parsed = parse(b'\xef\xbb\xbf{"n":NaN,"i":-Infinity,"big":123456789012345678901234567890,"n":1}')
    assert math.isinf(parsed.value["i"])
    assert parsed.value["big"] == 123456789012345678901234567890
    assert parsed.value["n"] == 1
    assert parsed.repeats
    assert not parse(b'{"a":1,"b":2}').repeats


def test_names_are_decoded() -> None:
    assert parse(b'{"prompt\\u005fids":1}').members[0].name == "prompt_ids"


@pytest.mark.parametrize("raw", [b"[]", b'"x"', b"1", b"null"])
def test_not_an_object(raw: bytes) -> None:
    with pytest.raises(NotAnObject):
        parse(raw)


@pytest.mark.parametrize("raw", [b"", b"{", b'{"a":1}x', b'{"a":1,}', b"{'a':1}", b'{"a":\xff}', b'{"a" 1}', b'{"a":}'])
def test_broken(raw: bytes) -> None:
    with pytest.raises(ValueError):
        parse(raw)


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    with pytest.raises((RecursionError, ValueError)):
        parse(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}")
