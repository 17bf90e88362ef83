"""Every kind of fault does harm somewhere, and is found."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.campaigns import qwen, small, worker
from toktier.campaign.plants import Fault, Harmless, kinds, plant
from toktier.campaign.seams import Seams
from toktier.campaign.splices import FAULTS
from toktier.campaign.subject import Subject
from toktier.campaign.worker import PlantBlock, RopeBlock
from toktier.rope import Rope, Splice

CASES = [
    ("pair", "qwen", 3),
    ("class", "qwen", 3),
    ("next", "composing", 1),
    ("boundary", "composing", 1),
    ("join", "prepend", 2),
    ("interior", "prepend", 1),
    ("interior", "metaspace_first", 1),
]


@pytest.fixture(scope="module")
def parent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp()


def subject(name: str, parent: Path) -> Subject:
    return qwen() if name == "qwen" else small(name, parent)


@pytest.mark.parametrize(("kind", "name", "faults"), CASES)
def test_a_fault_in_the_rule_is_found_and_made_small(kind: str, name: str, faults: int, parent: Path) -> None:
    own = worker(subject(name, parent))
    for number in range(faults):
        report = own.plant(PlantBlock(kind, number, checks=60_000, operations=0)).report
        assert report.caught is True, report
        assert report.by.startswith("cuts: ")
        # inside a literal a seam is wrong only where the literal is whole
        assert 2 <= report.smallest_chars <= 6 or report.smallest in own.subject.texts.literals, report


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_the_splice_is_found(name: str) -> None:
    report = worker(qwen()).plant(PlantBlock(f"splice: {name}", 0, checks=0, operations=2_000)).report
    assert report.caught is True
    assert report.by.startswith("ropes: ")


@pytest.mark.parametrize(("kind", "name"), [("pair", "qwen"), ("class", "qwen"), ("next", "composing")])
def test_the_witness_contradicts_the_planted_rule_and_not_the_sound_one(kind: str, name: str, parent: Path) -> None:
    sound = subject(name, parent)
    fault = plant(sound, kind, random.Random(1))
    assert isinstance(fault, Fault)
    assert Seams(sound).check(fault.witness)[1] is None
    assert Seams(fault.subject).check(fault.witness)[1] is not None


def test_what_does_not_exist_or_does_no_harm_is_no_fault() -> None:
    assert plant(qwen(), "join", random.Random(0)) == Harmless("join", 0)
    assert plant(qwen(), "interior", random.Random(0)) == Harmless("interior", 0)
    # under Qwen3 a character that composes stays in its class: whatever follows, the seam is one
    harmless = plant(qwen(), "next", random.Random(0))
    assert isinstance(harmless, Harmless)
    assert harmless.candidates > 10
    report = worker(qwen()).plant(PlantBlock("next", 0, checks=1000, operations=0)).report
    assert report.caught is None


def test_a_fault_that_is_not_looked_for_long_enough_is_missed() -> None:
    report = worker(qwen()).plant(PlantBlock("pair", 0, checks=0, operations=0)).report
    assert report.caught is False


def test_a_campaign_reaches_each_way_of_an_append() -> None:
    """The old end is a cut, or what is behind the last cut is counted, or the chunk is taken; a seam stands or goes."""
    ways = Counter[str]()

    class Counting(Rope):
        __slots__ = ()

        def _extend(self, tail: str, shared: bool = False) -> Splice:
            size, chunks = self.chars, len(self._chars)
            found = self._resumed(self._encoder, self._leaves, self._chars[-2], 0, tail)
            splice = super()._extend(tail, shared)
            at = found.at
            ways["at the end" if at == size else "behind a cut" if found.tokens else "the chunk"] += 1
            ways["a seam" if len(self._chars) > chunks and self._chars[chunks - 1] == at else "no seam"] += 1
            ways["one piece" if len(self._chars) - chunks < 2 else "pieces"] += 1
            return splice

    own = worker(replace(qwen(), rope=Counting))
    for number in range(8):
        assert not own.ropes(RopeBlock(number)).failures
    assert set(ways) == {"at the end", "behind a cut", "the chunk", "a seam", "no seam", "one piece", "pieces"}


def test_kinds_are_all_planted_above() -> None:
    assert {kind for kind, _, _ in CASES} | {f"splice: {name}" for name in FAULTS} == set(kinds())
