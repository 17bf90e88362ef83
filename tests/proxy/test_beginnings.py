from __future__ import annotations

from typing import Any

import pytest

from proxy.beginnings import Beginning, Beginnings
from toktier.prepared import CONTINUED


def message(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "message": {"role": "assistant", **fields}}]}


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def of(*replies: dict[str, Any]) -> Beginning:
    beginning = Beginning()
    for reply in replies:
        if beginning.open:
            beginning.take(reply)
    return beginning


@pytest.mark.parametrize(
    ("replies", "text"),
    [
        ([message(content="It is")], "It is"),
        ([message(content="x" * 1000)], "x" * CONTINUED),
        ([message(content="It is", tool_calls=[])], "It is"),
        ([message(content="It is", tool_calls=[{"id": "c"}])], None),
        ([message(content="It is", reasoning_content="Well")], None),
        ([message(content=None)], None),
        ([message(content=[{"type": "text", "text": "It is"}])], None),
        ([delta(role="assistant", content=""), delta(content="It"), delta(content=" is")], "It"),
        ([delta(role="assistant"), delta(reasoning="Well"), delta(content="It is")], None),
        ([{"choices": [{"index": 1, "delta": {"content": "no"}}]}, delta(content="It")], "It"),
        ([{"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": [{"delta": 1}]}, {}], None),
    ],
)
def test_how_a_reply_begins(replies: list[dict[str, Any]], text: str | None) -> None:
    assert of(*replies).text == text


def test_the_last_reply_of_a_session_counts() -> None:
    known = Beginnings()
    known.note("a", "It is")
    assert not known.differs("a", "It is late.<|im_end|>")
    assert known.differs("a", "<think>\n\n</think>\n\nIt is")
    assert not known.differs("a", ""), "nothing that an assistant said"
    assert not known.differs("b", "Else"), "another session"
    known.note("a", None)
    assert not known.differs("a", "<think>"), "what the last reply was cannot be said"


def test_only_so_many_sessions_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.beginnings._SESSIONS", 2)
    known = Beginnings()
    for session in "abac":
        known.note(session, session)
    assert [known.differs(session, "-") for session in "abc"] == [True, False, True]
