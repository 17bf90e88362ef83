"""A small campaign of faults through a real proxy: every one is found, and nothing else.

With Qwen3's chat template on a small tokenizer: three processes load it, and how its merges go has no part in this.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tokenizer_files import small_qwen3
from tools.faults import quarantine, report, tables
from tools.faults.campaign import Wanted, run
from tools.faults.kinds import Kind
from tools.traffic import reference_ids


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_qwen3(tmp_path_factory.mktemp("small"))


@pytest.mark.slow
async def test_every_fault_is_found_and_nothing_else(small: Path) -> None:
    told: list[int] = []
    made = report.summary(await run(Wanted(240, 0.4, 1.0, seed=3, sessions=12, tokenizer=small), told.append))
    assert made.problems == []
    assert told == list(range(1, 241))
    assert set(made.injected) == {kind.value for kind in Kind}
    assert made.caught == made.sampled == made.injected
    assert made.checks == made.with_ids == 240
    assert 60 < sum(made.injected.values()) < 130
    assert 0 < made.same_length < sum(made.injected.values())
    assert made.counted_otherwise == 0, "the engine counts what it receives: wrong IDs are counted as they are"
    assert set(made.mismatch_kinds) == {"ids", "text"}
    assert made.mismatch_kinds["text"] == made.injected["wrong_template"]
    assert made.audit["mismatches"] == sum(made.injected.values())
    assert {"init", "append", "edit"} <= set(made.injected_paths)


@pytest.mark.slow
async def test_after_the_first_detection_ids_are_the_references(small: Path) -> None:
    """Of every path that was put in quarantine; the harness compares what the engine got with its own reference."""
    wanted = Wanted(
        120, 0.3, 1.0, seed=4, sessions=8, on_mismatch="quarantine", most_behind=1, warm_up=16, tokenizer=small
    )
    shown = quarantine.summary(await run(wanted, keep_received=True), reference_ids(small))
    assert tables.Results(4, {}, [], None, [shown]).problems == []
    assert {case.level for case in shown.cases} == {"reference"}
    assert sum(case.as_reference for case in shown.cases) > 40
