"""The memory account: what it says, and that its sessions are seeded."""

from __future__ import annotations

import json

import pytest

from tests.support.models import qwen3
from tools.bench import memory
from tools.bench.memory import CORE, LIMITS, PROCESS, TEXTS, Memory, Talk, over_limit, table


def rows(process: float) -> list[Memory]:
    return [
        Memory("ASCII", 100_000, 10, 5_000, CORE, 12.25),
        Memory("ASCII", 100_000, 10, 5_000, PROCESS, process),
        Memory("CJK", 500_000, 2, 9_000, CORE, 13.0),
    ]


def test_what_is_over_a_limit_is_said() -> None:
    assert over_limit(rows(27.9)) == []
    (said,) = over_limit(rows(28.5))
    assert "ASCII" in said
    assert "28.5" in said


def test_the_table_has_a_column_a_session() -> None:
    assert table(rows(20.0)).splitlines() == [
        "| bytes a token | ASCII 100,000 | CJK 500,000 |",
        "|---|---:|---:|",
        f"| {CORE} | 12.2 | 13.0 |",
        f"| {PROCESS} | 20.0 | - |",
    ]


def test_the_working_memory_of_one_request_is_told_beside_the_growth() -> None:
    working = Memory("ASCII", 100_000, 1, 500, memory.WORKING, 30.0)
    told = table([*rows(20.0), working]).splitlines()
    assert told[-2:] == [f"| {memory.WORKING} | 30.0 | - |", f"| {memory.TOGETHER} | 23.0 | - |"]


def test_sessions_are_seeded_and_of_their_kind() -> None:
    talks = [Talk("ASCII", 1), Talk("ASCII", 1), Talk("ASCII", 2), Talk("CJK", 1)]
    for talk in talks:
        for _ in range(3):
            talk.turn()
    first, again, other, cjk = (talk.body() for talk in talks)
    assert first == again != other
    assert first.isascii()
    messages = json.loads(cjk)["messages"]
    assert [one["role"] for one in messages[:4]] == ["system", "user", "assistant", "tool"]
    assert not messages[-1]["content"].isascii()
    assert messages[-1]["tool_call_id"] == messages[-2]["tool_calls"][0]["id"]


@pytest.mark.parametrize("text", TEXTS)
def test_a_session_keeps_within_the_limits(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the store counts; the growth of a process is for the account itself."""
    monkeypatch.setattr(memory, "embedded", qwen3)
    served, talk, tokens = memory._Served(), Talk(text, 1), 0
    while tokens < 100_000:
        for _ in range(30):
            talk.turn()
        tokens = served.serve(talk.body())
    found = served.weigh(b"")
    assert len(served.store) == 1
    assert 0 < found[CORE] < LIMITS[CORE] * tokens
    assert found[CORE] < found["all, as the store counts"] < LIMITS[PROCESS] * tokens
