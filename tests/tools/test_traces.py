"""The generated conversations: reproducible, varied, and what their labels say."""

from __future__ import annotations

import json
from collections import Counter

from tools.traces import FEATURES, from_record, generate, main, to_record

N = 60


def test_same_seed_same_conversations_and_another_seed_others():
    first = [to_record(conversation) for conversation in generate(3, 10)]
    assert json.dumps(first) == json.dumps([to_record(conversation) for conversation in generate(3, 10)])
    assert json.dumps(first) != json.dumps([to_record(conversation) for conversation in generate(4, 10)])


def test_a_record_read_back_gives_the_same_requests_byte_for_byte():
    for conversation in generate(5, N):
        back = from_record(json.loads(json.dumps(to_record(conversation))))
        assert [step.kind for step in back.steps] == [step.kind for step in conversation.steps]
        assert [step.body for step in back.steps] == [step.body for step in conversation.steps]
        assert json.dumps(back.steps[-1].body["messages"]) == json.dumps(conversation.steps[-1].body["messages"])


def test_every_feature_client_and_kind_of_step_occurs():
    conversations = list(generate(1, N))
    features = Counter(feature for conversation in conversations for feature in conversation.features)
    assert min(features[name] for name in FEATURES) >= N // 12
    assert sum(len(conversation.steps[-1].body["messages"]) > 100 for conversation in conversations) >= N // 12
    kinds = Counter(step.kind for conversation in conversations for step in conversation.steps)
    assert set(kinds) == {"init", "append", "retry", "edit", "truncate", "compaction", "tools", "side"}
    assert len({conversation.client for conversation in conversations}) == 10


def test_an_append_keeps_the_list_before_it_and_a_retry_all_of_it():
    for conversation in generate(2, 20):
        before: list = []
        for step in conversation.steps:
            messages = step.body["messages"]
            if step.kind == "append":
                assert messages[: len(before)] == before
                assert len(messages) > len(before)
            elif step.kind == "retry":
                assert messages == before
            if step.kind != "side":
                before = messages


def test_tool_results_answer_the_calls_before_them():
    for conversation in generate(6, 20):
        for message_list in (step.body["messages"] for step in conversation.steps):
            called = [call["id"] for message in message_list for call in message.get("tool_calls", [])]
            assert [m["tool_call_id"] for m in message_list if m["role"] == "tool"] == called


def test_command_line_writes_one_line_a_conversation(tmp_path, capsys):
    out = tmp_path / "traces.jsonl"
    assert main(["--seed", "9", "--n", "12", "--long", "1", "--out", str(out)]) == 0
    lines = out.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert len(lines) == 12
    assert [from_record(json.loads(line)).id for line in lines] == [f"9-{i:04}" for i in range(12)]
    assert "12 conversations" in capsys.readouterr().out
