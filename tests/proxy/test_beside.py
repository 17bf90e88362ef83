"""Reading a body beside an earlier one gives what reading it alone gives, on whatever clients and enemies send."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import beside, jsonspan
from proxy.jsonspan import Parsed
from toktier.errors import TakesLong
from toktier.json_pieces import PLACES, JsonLimits

LIMITS = JsonLimits()
Body = dict[str, Any]

TEXT = st.text(st.sampled_from('ab{}[]",:\\ \n1é漢😀\u2028'), max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, -0.0, 10**30, 1e300, float("nan")]) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
MESSAGES = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool"]), "content": TEXT}, optional={"x": VALUES})
MEMBERS = st.lists(st.tuples(st.sampled_from(["model", "tools", "n", "ä"]), VALUES), max_size=2)


def check(raw: bytes, before: Parsed, limits: JsonLimits = LIMITS) -> Parsed | None:
    """Reads ``raw`` beside ``before``; what comes of it, after checking it against a full parse."""
    got = beside.read(raw, before, limits)
    try:
        alone = jsonspan.parse(raw, limits)
    except ValueError:
        assert got is None
        return None
    if got is None:
        return None
    old, new = before.value["messages"], list(got.outline["messages"])
    for run in got.shared:
        assert new[run.at : run.at + run.size] == [None] * run.size
        new[run.at : run.at + run.size] = old[run.old : run.old + run.size]
    whole = {**got.outline, "messages": new}
    assert repr(whole) == repr(alone.value) == repr(got.value)  # tells apart types, signs and the order of keys
    assert got.members == alone.members
    assert got.listed is not None
    assert alone.listed is not None
    assert (got.listed.start, got.listed.end) == (alone.listed.start, alone.listed.end)
    assert got.listed.starts.tolist() == alone.listed.starts.tolist()
    assert got.listed.ends.tolist() == alone.listed.ends.tolist()
    inside = b"".join(raw[start:end] for start, end in got.fresh())
    assert len(inside) + sum(
        int(got.listed.ends[run.at + run.size - 1] - got.listed.starts[run.at]) for run in got.shared
    ) + got.head + got.tail == len(raw)
    assert raw[: got.head] == before.raw[: got.head]
    assert raw[len(raw) - got.tail :] == before.raw[len(before.raw) - got.tail :]
    return got


def shared(parsed: Parsed | None) -> list[tuple[int, int, int]]:
    assert parsed is not None
    return [tuple(run) for run in parsed.shared]


def parse(body: Body | bytes) -> Parsed:
    return jsonspan.parse(body if isinstance(body, bytes) else dump(body), LIMITS)


def dump(body: Body) -> bytes:
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def say(role: str, content: Any, **more: Any) -> Body:
    return {"role": role, "content": content, **more}


def talk(size: int) -> list[Body]:
    return [say(("user", "assistant")[k % 2], f"message {k} é " + "text " * (k % 7)) for k in range(size)]


@st.composite
def written(draw: st.DrawFn, body: tuple[list[Any], list[Any], list[Any]]) -> bytes:
    """An object of members, messages and members, in some client's spelling."""
    head, messages, tail = body
    comma, colon = draw(st.sampled_from([(",", ":"), (", ", ": "), (" , ", " :\n")]))
    ascii_only = draw(st.booleans())

    def text(value: Any) -> str:
        return json.dumps(value, ensure_ascii=ascii_only, separators=(comma, colon))

    parts = [text(name) + colon + text(value) for name, value in head]
    parts.append(f'"messages"{colon}[{draw(st.sampled_from(["", " "]))}{comma.join(map(text, messages))}]')
    parts += [text(name) + colon + text(value) for name, value in tail]
    return ("{" + comma.join(parts) + "}").encode()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_two_bodies(data: st.DataObject) -> None:
    head, tail = data.draw(MEMBERS), data.draw(MEMBERS)
    messages = data.draw(st.lists(MESSAGES, max_size=9))
    before = parse(data.draw(written((head, messages, tail))))
    if before.listed is None:
        return
    changed = list(messages)
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(changed)))
        taken = changed[at : at + data.draw(st.integers(0, 5))]
        changed[at : at + len(taken)] = data.draw(st.lists(MESSAGES, max_size=3))
        if data.draw(st.booleans()):
            at = data.draw(st.integers(0, len(changed)))
            changed[at:at] = taken
    if data.draw(st.booleans()):
        head = data.draw(MEMBERS)
    if data.draw(st.booleans()):
        tail = data.draw(MEMBERS)
    raw = data.draw(written((head, changed, tail)))
    if data.draw(st.integers(0, 4)) == 0:  # and broken in one place
        at = data.draw(st.integers(0, len(raw)))
        raw = raw[:at] + data.draw(st.binary(max_size=2)) + raw[at + data.draw(st.integers(0, 2)) :]
    check(raw, before)


# what clients do (measured on fourteen of them)

TOOLS = [{"type": "function", "function": {"name": f"f{k}", "description": "é" * k}} for k in range(4)]


def request(messages: list[Body], **tail: Any) -> Body:
    return {"model": "m", "messages": messages, "stream": True, "tools": TOOLS, **tail}


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        ("retry", [(0, 0, 8)]),
        ("append", [(0, 0, 8)]),
        ("date in the first message and a turn", [(1, 1, 7)]),
        ("status and listing in the first two", [(2, 2, 6)]),
        ("an old result is pruned", [(0, 0, 3), (4, 4, 4)]),
        ("pruned, and a turn", [(0, 0, 3), (4, 4, 4)]),
        ("a mark moves to the last message", [(0, 0, 6)]),
        ("string to parts", [(0, 0, 7)]),
        ("a nudge is put in", [(0, 0, 4), (5, 4, 4)]),
        ("a nudge is put in, and a turn", [(0, 0, 4), (5, 4, 4)]),
        ("one is taken out", [(0, 0, 2), (2, 3, 5)]),
        ("the first ones are taken out", [(0, 3, 5)]),
        ("two nudges are put in, and a turn", [(0, 0, 4), (6, 4, 4)]),
        ("five are put in, and a turn", [(0, 0, 4), (9, 4, 4)]),
        ("four are taken out, and a turn", [(0, 0, 2), (2, 6, 2)]),
        ("another four, and a turn", [(0, 0, 1), (1, 5, 3)]),
        ("one that comes again later is put in, and a turn", [(0, 0, 4), (4, 6, 1), (5, 4, 4)]),
        ("the second half stands first, and a turn", [(0, 4, 4), (4, 0, 4)]),
        ("truncated", [(0, 0, 4)]),
        ("trimmed", [(0, 0, 5), (6, 6, 2)]),
        ("moved", [(0, 0, 2), (2, 5, 3)]),
        ("a tool in the middle", [(0, 0, 8)]),
        ("another tail", [(0, 0, 8)]),
        ("another head", [(0, 0, 8)]),
        ("a longer head", [(0, 0, 8)]),
        ("compacted", [(0, 0, 1)]),
        ("all else", []),
        ("empty", []),
    ],
)
def test_what_clients_do(change: str, runs: list[tuple[int, int, int]]) -> None:
    old = talk(8)
    old[6] |= {"cache_control": {"type": "ephemeral"}}
    new = list(old)
    body = request(new)
    turn = [say("assistant", "said"), say("user", "next")]
    if "date" in change or "status" in change:
        new[0] = say("user", "Today is the 30th, a longer day")
    if "status" in change:
        new[1] = say("assistant", "M f.py")
    if "pruned" in change:
        new[3] = say("assistant", "[Old tool result content cleared]")
    if "mark" in change:
        new[6] = say("user", old[6]["content"])
        new[7] = old[7] | {"cache_control": {"type": "ephemeral"}}
    if "parts" in change:
        new[7] = say("assistant", [{"type": "text", "text": old[7]["content"]}])
    if "two nudges" in change or "five" in change:
        new[4:4] = [say("system", f"N={k} left") for k in range(2 if "two" in change else 5)]
    elif "four" in change:
        first = 2 if "taken out" in change else 1
        del new[first : first + 4]
    elif "later" in change:
        new.insert(4, old[6])
    elif "second half" in change:
        new[:] = [*old[4:], *old[:4]]
    elif "nudge" in change:
        new.insert(4, say("system", "N=9000 left"))
    if "one is taken out" in change:
        del new[2]
    if "first ones" in change:
        del new[:3]
    if change == "truncated":
        del new[4:]
    if change == "trimmed":
        new[5] = say("assistant", old[5]["content"].strip())
    if change == "moved":
        new[2:] = [*old[5:], say("user", "the others")]
    if "turn" in change or change == "append":
        new += turn
    if change == "a tool in the middle":
        body["tools"] = [*TOOLS[:2], TOOLS[3], *TOOLS[2:]]
    if change == "another tail":
        body["metadata"] = {"é": 1}
    if change == "another head":
        body["model"] = "n"
    if change == "a longer head":
        body = {"temperature": 1.0, "note": "é", **body}
    if change == "compacted":
        new[1:] = [say("user", "summary")]
    if change == "all else":
        new[:] = [say("user", f"other {k}") for k in range(8)]
    if change == "empty":
        new.clear()
    got = check(dump(body), parse(request(old)))
    assert shared(got) == runs


def test_members_that_come_again_are_the_same_objects() -> None:
    before = parse(request(talk(2)))
    longer = check(dump(request(talk(4), seed=1)), before)
    assert longer is not None
    assert longer.outline["tools"] is before.outline["tools"]
    same = check(dump(request(talk(4))), before)
    assert same is not None
    assert same.outline["tools"] is before.outline["tools"]


def test_equal_is_what_is_written_alike() -> None:
    before = parse(b'{"messages":[{"a":1},{"b":1.0},{"c":true}]}')
    for other, kept in (
        (b'{"a":1.0},{"b":1.0},{"c":true}', [(1, 1, 2)]),
        (b'{"a":1},{"b":1},{"c":true}', [(0, 0, 1), (2, 2, 1)]),
        (b'{"a":1},{"b":1.00},{"c":1}', [(0, 0, 1)]),
        (b'{"a":10},{"b":1.0},{"c":true}', [(1, 1, 2)]),
        (b'{"\\u0061":1},{"b":1.0},{"c":true}', [(1, 1, 2)]),
    ):
        assert shared(check(b'{"messages":[' + other + b"]}", before)) == kept


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages":[{"a":1}],"messages":[]}',
        b'{"messages":[{"a":1}],"m\\u0065ssages":[]}',
        b'{"model":"m","messages":[{"a":1}],"model":"n"}',
        b'{"model":"m","model":"n","messages":[{"a":1}]}',
        b'{"messages":{"a":1}}',
        b'{"messages":[{"a":1},2]}',
        b'{"messages":[{"a":1}]',
        b'{"messages":[{"a":1},]}',
        b'{"messages":[{"a":1}]]}',
        b'{"messages":[{"a":1} {"b":2}]}',
        b'{"messages":[{"a":1}]} x',
        b'{"messages":[{"a":1},{"b":"\xff"}]}',
        b'{"messages":[{"a":1},{"b":"\xc3"}]}',
        b'{"messages":[{"a":1}],"n":"\xc3"}',
        b'[{"messages":[{"a":1}]}]',
        b'{"messages":[{"a":1},{"b":' + b"9" * 5000 + b"}]}",
        b'{"messages":[{"a":1},' + b'{"b":' * 200 + b"1" + b"}" * 200 + b"]}",
        b"",
    ],
)
def test_what_is_not_certain_is_left_to_the_parser(raw: bytes) -> None:
    assert check(raw, parse(b'{"messages":[{"a":1}]}')) is None


def test_bodies_that_nothing_is_read_beside() -> None:
    for raw in (b'{"a":1}', b'{"messages":[1]}', b'{"messages":[{}],"messages":[{}]}', b'{"messages":{}}'):
        assert parse(raw).listed is None
        assert beside.read(b'{"messages":[{}]}', parse(raw), LIMITS) is None
    many = b'{"messages":[' + b"{}," * PLACES + b"{}]}"
    assert parse(many).listed is None
    before = parse(b'{"messages":[{"a":1}]}')
    assert beside.read(many, before, LIMITS) is None
    assert beside.read(b'{"messages":[{"a":1}]}', before, JsonLimits(depth=5)) is None


def test_large_messages_are_read_whole_wherever_pieces_of_the_text_end() -> None:
    for letter in ("x", "é", "漢", "😀", "\\"):
        for size in (32_740, 32_750, 131_060, 400_001):
            before = parse(request(talk(3)))
            after = check(dump(request([*talk(3), say("user", letter * size), say("user", "end")])), before)
            assert shared(after) == [(0, 0, 3)]
            assert after is not None
            again = check(dump(request([*talk(3), say("user", letter * size), say("user", "enD")])), after)
            assert shared(again) == [(0, 0, 4)]


def test_values_are_counted_over_all_that_was_taken_over() -> None:
    limits = JsonLimits(values=400)
    body: Body = {"messages": [say("user", [0] * 20)]}
    before = jsonspan.parse(dump(body), limits)
    refused = 0
    for _ in range(20):
        body["messages"].append(say("user", [0] * 20))
        got = check(dump(body), before, limits)
        refused += got is None
        before = got or before
    assert 5 < refused < 15
    with pytest.raises(ValueError):
        jsonspan.parse(dump(body), limits)
    # text that only looks like values is no reason to refuse
    wordy: Body = {"messages": [say("user", "a,b:c{d[e " * 10)]}
    before = jsonspan.parse(dump(wordy), limits)
    wordy["messages"] += [say("user", "[[[[" * 200)]
    assert check(dump(wordy), before, limits) is None
    assert jsonspan.parse(dump(wordy), limits).value == wordy


def test_what_stands_around_the_messages_takes_long_as_well() -> None:
    """Where nothing looks at the clock, the size decides. Without a limit of time all of it is read."""
    long, spaces = "\u4e2d" * 50_000, b" " * 100_000
    small, large = dump(request(talk(3))), dump({"user": long, **request(talk(3)), "metadata": {"a": long}})
    before = {raw: parse(raw) for raw in (small, large)}
    cases = [
        (small, small[:-1] + b',"metadata":"' + long.encode() + b'"}', 1000.0),
        (large, large[:-3] + b'x"}}', 1000.0),
        (large, b" " + large, 1000.0),
        (large, large, 1000.0),  # what is not kept is read again
        (small, small.replace(b"},{", b"}," + spaces + b"{"), 0.0),
        (small, small, 0.0),
    ]
    for old, raw, within_s in cases:
        kept = replace(before[old], outline={})
        read = beside.read(raw, kept, LIMITS)
        assert read is None or read.value == json.loads(raw)
        with pytest.raises(TakesLong):
            beside.read(raw, kept, LIMITS, within_s)
    assert beside.read(small, before[small], LIMITS, 1000.0) is not None


def test_what_takes_long_is_said() -> None:
    before = parse(request(talk(3)))
    raw = dump(request([*talk(3), say("user", [0] * 200_000)]))
    with pytest.raises(TakesLong):
        beside.read(raw, before, LIMITS, 0.0)
