"""What is read out of replies beside their way to the client."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest

from proxy.marks import Marks
from proxy.observers import HEAD, MAX_LINE, WHOLE, JsonObserver, SseObserver
from tests.support.observed import STREAM, observed


def test_observer_is_the_same_at_any_chunking() -> None:
    rng = random.Random(5)
    for _ in range(300):
        cuts = sorted(rng.sample(range(len(STREAM)), rng.randint(0, 30)))
        pieces = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        o = observed(pieces)
        assert (o.events, o.done, o.finished, o.prompt_tokens, o.boundary) == (6, True, True, 41, True)
    o = observed([STREAM[i : i + 1] for i in range(len(STREAM))])
    assert (o.events, o.done, o.finished, o.prompt_tokens) == (6, True, True, 41)


@pytest.mark.parametrize(
    ("data", "boundary"),
    [
        (b"", True),
        (b"data: x\n\n", True),
        (b"data: x\r\n\r\n", True),
        (b": ping\n\n", True),
        (b"data: x\n", False),
        (b"data: x", False),
        (b"data: x\n\nd", False),
    ],
)
def test_observer_knows_event_boundaries(data: bytes, boundary: bool) -> None:
    assert observed([data]).boundary is boundary


def test_observer_memory_is_bounded() -> None:
    o = SseObserver()
    for _ in range(64):
        o.feed(b'data: {"usage":{"x":"' + b"a" * 100_000)
    assert len(o._line) <= MAX_LINE
    o.feed(b'"}}\n')
    for _ in range(2000):
        o.feed(b"data: " + b"b" * 1000 + b"\n")
    assert len(o._data or b"") <= MAX_LINE
    o.feed(b"\n")
    o.feed(b'data: {"usage":{"prompt_tokens":3}}\n\n')
    assert o.prompt_tokens == 3


def test_observer_ignores_what_is_no_chunk() -> None:
    o = observed([b'data: [1]\n\ndata: {"usage":{"prompt_tokens":true}}\n\ndata: {"usage":{bad\n\ndata: 5\n\n'])
    assert (o.events, o.prompt_tokens, o.complete) == (4, None, False)
    assert observed([b'data: {"error":{"message":"x"}}\n\n']).complete


def test_observer_keeps_little_of_an_event_without_end() -> None:
    o = SseObserver()
    for _ in range(100):
        o.feed(b"data:\n" * 10_000)
        assert len(o._data or b"") <= MAX_LINE
    for _ in range(3):
        o.feed(b"x" * (MAX_LINE + 1) + b"\n")
    assert o._data == b""
    assert not o.boundary
    o.feed(b'\ndata: {"usage":{"prompt_tokens":3}}\n\n')
    assert (o.events, o.prompt_tokens) == (2, 3)


def read(reply: bytes, cut: int = 5000) -> JsonObserver:
    observer = JsonObserver({"Server": "s"})
    for start in range(0, len(reply), cut):
        observer.feed(reply[start : start + cut])
    observer.end()
    return observer


LONG = "\u00e9 \\" * WHOLE
"""As JSON, longer than `WHOLE`."""
LOGPROBS = [{"token": '"usage":{"prompt_tokens":1}', "logprob": -0.5, "bytes": [34]}] * 2000


def reply(**after: Any) -> dict[str, Any]:
    """A reply with much in the middle, in the order in which engines write one."""
    choice = {
        "index": 0,
        "message": {"content": LONG},
        "logprobs": {"content": LOGPROBS, "usage": {"prompt_tokens": 2}},
    }
    return {"id": 'a\\"b', "created": 1.5, "model": "m", "choices": [choice], **after}


@pytest.mark.parametrize("cut", [1, 100, 1 << 20])
def test_a_short_json_reply_is_read_as_a_whole(cut: int) -> None:
    usage = {"prompt_tokens": 12}
    message = {"role": "assistant", "content": "It is"}
    o = read(json.dumps({"usage": usage, "model": "m", "choices": [{"index": 0, "message": message}]}).encode(), cut)
    assert (o.prompt_tokens, o.marks, o.beginning.text) == (12, Marks("s", None, "m"), "It is")
    assert read(b'{"error":{"message":"x"}}', cut).error
    assert read(b'{"usage":{"prompt_tokens":12}', cut).prompt_tokens is None
    assert read(b"[1]", cut).marks == Marks()


@pytest.mark.parametrize(
    ("after", "count"),
    [
        ({"usage": {"prompt_tokens": 41, "prompt_tokens_details": None}}, 41),
        (
            {"service_tier": None, "system_fingerprint": "f", "usage": {"prompt_tokens": 41}, "prompt_logprobs": None},
            41,
        ),
        ({"usage": {"prompt_tokens": 41}, "prompt_logprobs": [{"7": {"logprob": -1.0}}] * 500}, 41),
        ({"usage": {"prompt_tokens": 41}, "choices_again": [{"usage": {"prompt_tokens": 3}}]}, 41),
        ({"usage": {"prompt_tokens": 41, "usage": {"prompt_tokens": 3}}}, 41),
        ({"usage": None}, None),
        ({"usage": {"prompt_tokens": True}}, None),
        ({"usage": "prompt_tokens"}, None),
        ({}, None),
        ({"other": {"usage": {"prompt_tokens": 3}}}, None),
        ({"x": '\\"usage":{"prompt_tokens":3}}'}, None),
        ({'x"usage': {"prompt_tokens": 3}}, None),
    ],
)
def test_the_count_of_a_long_json_reply_is_its_own(after: dict[str, Any], count: int | None) -> None:
    """No text of the model, no logprob and nothing further in is taken for it; what is found is what a parser finds."""
    for separators in ((",", ":"), (" , ", " : ")):
        raw = json.dumps(reply(**after), separators=separators).encode()
        assert len(raw) > 2 * WHOLE
        o = read(raw)
        assert o.prompt_tokens == count
        assert o.marks == Marks("s", after.get("system_fingerprint"), "m")
        assert (o.error, o.beginning.text) == (False, None)
    usage = orjson.loads(raw).get("usage")
    told = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    assert count == (None if told is True else told)


def test_a_long_json_reply_that_tells_of_an_error() -> None:
    assert read(json.dumps(reply(error={"message": "no memory"})).encode()).error
    assert read(json.dumps({"error": "no memory", "x": LONG}).encode()).error
    assert not read(json.dumps(reply(error=None)).encode()).error


def test_the_count_stands_near_the_end_or_is_not_known() -> None:
    assert read(json.dumps({"usage": {"prompt_tokens": 12}, "x": LONG}).encode()).prompt_tokens is None
    assert read(b'{"x":"' + b"a" * WHOLE).prompt_tokens is None


def test_little_of_a_json_reply_is_kept_and_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads nothing keeps its observer for a minute; a parser lets nobody in before it is done."""
    parsed: list[int] = []
    loads = orjson.loads
    monkeypatch.setattr("proxy.observers.orjson.loads", lambda raw: parsed.append(len(raw)) or loads(raw))
    o = JsonObserver()
    raw = b'{"a":[' + b'{"usage":{}},' * 80_000 + b'1],"usage":{"prompt_tokens":9}}'
    for start in range(0, len(raw), 70_000):
        o.feed(raw[start : start + 70_000])
        assert len(o._tail) + len(o._head) <= WHOLE + HEAD
    o.end()
    assert o.prompt_tokens == 9
    assert sum(parsed) <= 2 * WHOLE


def test_empty_lines_are_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[bytes] = []
    end_line = SseObserver._end_line

    def counted(self: SseObserver, line: bytes, skipped: bool) -> None:
        lines.append(line)
        end_line(self, line, skipped)

    monkeypatch.setattr(SseObserver, "_end_line", counted)
    for end in (b"\n", b"\r", b"\r\n"):
        lines.clear()
        o = observed([b"data: 1" + end * 60_000 + b"data: 2" + end * 2 + b"data: 3", end * 60_000])
        assert (o.events, o.boundary) == (3, True)
        assert len(lines) < 10


def test_a_line_that_is_skipped_spoils_its_event() -> None:
    usage = b'data: {"usage":{"prompt_tokens":3}}\n'
    o = observed([usage, b"data: " + b"x" * MAX_LINE + b"\n", usage, b"\n"])
    assert (o.events, o.prompt_tokens) == (1, None)
    o.feed(usage + b"\n")
    assert (o.events, o.prompt_tokens) == (2, 3)
