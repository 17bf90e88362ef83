from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.campaigns import qwen, worker
from toktier.campaign.edits import OPERATIONS
from toktier.campaign.splices import FAULTS
from toktier.campaign.subject import Subject
from toktier.campaign.worker import CUT_CASES, ROPES, WITHOUT_FAULT, CutBlock, PlantBlock, RopeBlock
from toktier.certificate.table import YES, TableCuts


def everything_is_a_cut() -> Subject:
    table = qwen().rule.table
    return replace(qwen(), rule=TableCuts(replace(table, matrix=np.full_like(table.matrix, YES)), interior=False))


def test_a_block_is_a_function_of_seed_and_number() -> None:
    first, again, other = (worker(qwen(), seed).cuts(CutBlock(1)).tally for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert first.cases.total() == CUT_CASES
    assert set(first.cases.values()) == {CUT_CASES // 8}
    assert first.done > CUT_CASES
    assert not first.failures


def test_failures_are_counted_all_and_told_a_few() -> None:
    result = worker(everything_is_a_cut()).cuts(CutBlock(0))
    assert result.tally.failures.total() > 100
    assert len(result.failures) == 3
    for failure in result.failures:
        assert failure.where == "cuts"
        assert failure.chars == 2
        assert failure.cut == 1


def test_a_rope_block_counts_its_ropes() -> None:
    result = worker(qwen()).ropes(RopeBlock(4))
    assert result.tally.ropes == ROPES
    assert result.tally.done == ROPES * OPERATIONS
    assert result.tally.close.operations == 3 * OPERATIONS
    assert result.failures == []


def test_a_change_that_fails_is_told_as_small_as_it_gets() -> None:
    subject = replace(qwen(), rope=FAULTS["an ID changed at the seam"])
    failures = worker(subject).ropes(RopeBlock(6)).failures
    assert failures
    for failure in failures:
        assert failure.where == "ropes"
        assert failure.change is not None
        # a rope keeps no chunk shorter than two characters, and the fault needs one that is kept
        assert 2 <= failure.chars < 40
    assert min(failure.chars for failure in failures) <= 8


def test_a_cut_that_is_wrong_on_a_rope_is_told_as_a_cut() -> None:
    subject = everything_is_a_cut()
    subject = replace(subject, encoder=replace(subject.encoder, rule=subject.rule))
    failures = worker(subject).ropes(RopeBlock(6)).failures
    assert failures
    assert all(failure.cut is not None for failure in failures)
    assert min(failure.chars for failure in failures) <= 4


@pytest.mark.parametrize("kind", ["pair", "splice: a character dropped"])
def test_a_failure_that_is_there_without_the_fault_does_not_count(kind: str) -> None:
    broken = replace(everything_is_a_cut(), rope=FAULTS["a character dropped"])
    own = worker(broken)
    fault = replace(broken, rope=FAULTS["a character dropped"])
    failure = worker(fault)._plant_cut(3, own)[0] if kind == "pair" else worker(fault)._plant_rope(3, own)[0]
    assert failure is not None
    assert failure.where == WITHOUT_FAULT
    if kind == "pair":
        # nothing is left to plant where everything is a cut
        assert own.plant(PlantBlock("pair", 0, 1000, 0)).report.caught is None
