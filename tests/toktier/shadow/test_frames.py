"""What goes over the socket."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.shadow import JOB, VERDICT
from toktier.shadow import frames
from toktier.shadow.frames import Answer
from toktier.shadow.job import Drop, Kind, NotComparable, Verdict


def source(*contents: bytes) -> Callable[[int], bytes]:
    stream = io.BytesIO(b"".join(frames.head(content) + content for content in contents))

    def receive(size: int) -> bytes:
        content = stream.read(size)
        if len(content) < size:
            raise EOFError
        return content

    return receive


def test_a_job_comes_out_as_it_went_in() -> None:
    empty = replace(JOB, text="", body=b"", ids=b"")
    large = replace(JOB, text="a\ud83d\U0001f600" * frames.PIECE)
    receive = source(*frames.pack_job(JOB), *frames.pack_job(empty), *frames.pack_job(large))
    assert [frames.read_job(receive) for _ in range(3)] == [JOB, empty, large]
    assert max(map(len, frames.pack_job(large))) <= 4 * frames.PIECE
    with pytest.raises(EOFError):
        frames.read_job(receive)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(VERDICT, True),
        Answer(Verdict(None, 1, 1, 3, 3, "a", "a", "c", "c", None, None, None, {}), True),
        Answer(Verdict(Kind.TEXT, 1, 1, 3, None, "a", "a", "c", None, None, 2, None, {}), False),
        Answer(NotComparable(Drop.FILES_CHANGED, "why"), True),
        Answer(None, False),
    ],
)
def test_an_answer_comes_out_as_it_went_in(answer: Answer) -> None:
    assert frames.read_answer(source(frames.pack_answer(answer))) == answer


PLAIN = st.none() | st.booleans() | st.integers() | st.text()
JSON = st.recursive(PLAIN, lambda values: st.lists(values, max_size=3), max_leaves=5)
FIELDS = st.sampled_from(["final", "verdict", "dropped", "reason", "detail", "kind", "piece", "index"])


@settings(max_examples=60)
@given(
    st.binary(max_size=200)
    | JSON.map(json.dumps).map(str.encode)
    | st.dictionaries(FIELDS, JSON).map(json.dumps).map(str.encode)
)
def test_what_is_no_answer_is_refused_in_one_way(content: bytes) -> None:
    try:
        answer = frames.read_answer(source(content))
    except ValueError:
        return
    assert answer.result is None or isinstance(answer.result, Verdict | NotComparable)


def test_a_length_that_no_answer_has_is_not_waited_for() -> None:
    asked: list[int] = []

    def receive(size: int) -> bytes:
        asked.append(size)
        return b"\xff" * size

    with pytest.raises(ValueError, match="too long"):
        frames.read_answer(receive)
    assert asked == [frames.HEAD]


@pytest.mark.parametrize("piece", [{"index": 1}, 5, {"index": 1, "start": 2, "chars": 3, "more": 4}])
def test_a_piece_of_another_form_is_no_answer(piece: Any) -> None:
    value = json.loads(frames.pack_answer(Answer(VERDICT, True)))
    value["verdict"]["piece"] = piece
    with pytest.raises(ValueError, match="no answer"):
        frames.read_answer(source(json.dumps(value).encode()))
