"""What replies say of the process that wrote them."""

from __future__ import annotations

from proxy.marks import Marks, marks_of, steady


def test_marks_are_read_where_they_are_plain() -> None:
    reply = {"system_fingerprint": "vllm-1", "model": "m", "choices": []}
    assert marks_of({"Server": "uvicorn"}, reply) == Marks("uvicorn", "vllm-1", "m")
    assert marks_of({}, {"system_fingerprint": None, "model": 3}) == Marks()
    assert marks_of({}, [reply]) == Marks()


def test_only_what_both_say_can_differ() -> None:
    probe = Marks("uvicorn", "vllm-1", None)
    assert probe.differs(Marks()) is None
    assert probe.differs(Marks("uvicorn", None, "m")) is None
    assert probe.differs(Marks("uvicorn", "vllm-2", "m")) == "fingerprint"
    assert probe.differs(Marks("nginx", "vllm-2")) == "server"


def test_a_mark_that_changes_with_every_reply_is_none() -> None:
    replies = [Marks("a", "1", "m"), Marks("a", "2", "m")]
    assert steady(replies) == Marks("a", None, "m")
    assert steady([Marks("a", None, "m"), Marks("a", "2", "m")]) == Marks("a", None, "m")
