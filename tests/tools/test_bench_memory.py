"""The memory account: what it says, and that its sessions are seeded."""

from __future__ import annotations

import json

from tools.bench.memory import CORE, PROCESS, Memory, Talk, over_limit, table


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
