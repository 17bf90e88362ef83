"""A real bug is found: fastokens 0.3.1, whose IDs depend on the texts before, forced on a proxy."""

from __future__ import annotations

import dataclasses
import os
from itertools import pairwise
from pathlib import Path

import pytest

from tools.faults import environment
from tools.faults.real_bug import Replay, read, replay, session, table, write


def python() -> str:
    """That of the environment with fastokens 0.3.1. CI makes it; else `python -m tools.faults environment` does."""
    found = environment.build() if os.environ.get("CI") else environment.existing()
    if found is None:
        pytest.skip("no environment with fastokens 0.3.1: python -m tools.faults environment")
    return str(found)


@pytest.mark.slow
async def test_ids_that_depend_on_history_are_found_also_where_their_number_is_right() -> None:
    bodies = [body for seed in (0, 1) for body in session(seed, 4)]
    found = await replay("kept", python(), bodies)
    assert found.problems == []
    assert (found.requests, found.checks) == (8, 8)
    assert found.caught == found.wrong > found.caught_same_length == found.same_length > 0
    assert found.counted_otherwise == 0
    longer, same = found.examples
    assert longer["tokens"] != longer["reference_tokens"]
    assert same["tokens"] == same["reference_tokens"]
    assert all(example["piece_chars"] >= 2 for example in found.examples), "a run of white space"


@pytest.mark.slow
async def test_the_same_requests_in_a_process_each_are_right() -> None:
    found = await replay("fresh", python(), list(session(0, 2)))
    assert found.problems == []
    assert (found.requests, found.checks, found.wrong, found.caught) == (2, 2, 0, 0)


def test_a_session_grows_and_is_the_same_for_the_same_seed() -> None:
    texts = [body["messages"][-1]["content"] for body in session(3, 5)]
    assert texts == [body["messages"][-1]["content"] for body in session(3, 5)]
    assert all(new.startswith(old) and len(new) > len(old) for old, new in pairwise(texts))
    assert len(texts[0]) > 4096


def test_results_survive_the_file_and_what_must_not_be_is_named(tmp_path: Path) -> None:
    kept = Replay("kept", 9, 5, 2, 9, 5, 2, 0, 0, 0, 0, [])
    fresh = Replay("fresh", 9, 0, 0, 9, 0, 0, 0, 0, 0, 0, [])
    write(tmp_path / "x" / "bug.json", [kept, fresh])
    assert read(tmp_path / "x" / "bug.json") == [kept, fresh]
    assert kept.problems == fresh.problems == []
    assert "| one process for all texts | 9 | 5 | 2 | 9 | 5 | 0 | 0 | 0 |" in table([kept, fresh])
    for change in ({"missed": 1}, {"false_positives": 1}, {"drops": 1}, {"checks": 8}, {"caught_same_length": 0}):
        assert dataclasses.replace(kept, **change).problems
    assert dataclasses.replace(fresh, wrong=1).problems
