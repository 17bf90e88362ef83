"""Where an append begins to encode, and what it costs."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.ropes import check, chunks_of, common, prose, rope_of
from tests.support.small_bpe import CountingEngine, SpaceRule, small_encoder, truth
from toktier.appends import Resumed, resumed
from toktier.chunks import SEAL_MIN, SMALL, TARGET
from toktier.leaves import Leaves
from toktier.rope import Rope


@pytest.mark.parametrize("size", [0, 1, 5, SEAL_MIN, TARGET, 3 * TARGET, 40_000])
def test_an_append_costs_the_tail_and_the_open_chunk(size: int) -> None:
    text = prose(2, size)
    rope = rope_of(text)
    for step in range(6):
        tail = prose(100 + step, 700)
        old = rope.ids.tolist()
        splice = rope.append(tail)
        text += tail
        check(rope, text)
        assert splice.first_changed == common(old, rope.ids.tolist())
        assert len(tail) <= splice.scanned <= len(tail) + SEAL_MIN + SMALL
        assert splice.common == len(text) - len(tail)
        assert splice.full is None or size + step * 700 < TARGET


def test_set_finds_an_append_by_itself() -> None:
    text = prose(3, 20_000)
    rope = rope_of(text)
    splice = rope.set(text + "and then some more")
    assert splice.scanned < SEAL_MIN + SMALL + 20
    assert splice.common == len(text)
    check(rope, text + "and then some more")


def test_many_small_appends_leave_no_crumbs() -> None:
    rope, text = Rope(small_encoder()), ""
    for k in range(2000):
        rope.append(f"{k} fox ")
        text += f"{k} fox "
    check(rope, text)
    assert chunks_of(rope) <= len(text) // SMALL + 2


def leaves_of(text: str, size: int = 10_000) -> Leaves:
    leaves = Leaves()
    leaves.put(0, 0, [text[at : at + size] for at in range(0, len(text), size)])
    return leaves


def begun(text: str, tail: str, begin: int = 0, size: int = 10_000) -> Resumed:
    return resumed(small_encoder(), leaves_of(text, size), begin, len(truth(text[begin:])), tail)


@pytest.mark.parametrize(
    ("text", "tail", "behind"),
    [
        ("the fox", " jumps", ""),
        ("the fox ", "jumps", ""),
        ("the fo", "x", "fo"),
        ("the  ", "x", ""),
        ("the fox" + "x" * 62, "x", "the fox" + "x" * 62),
        ("the quick brown fox jumps over the lazy dog " * 5 + "x" * 100, "x", "x" * 100),
    ],
)
@pytest.mark.parametrize("size", [10_000, 7])
def test_an_append_begins_at_the_last_cut(text: str, tail: str, behind: str, size: int) -> None:
    found = begun(text, tail, size=size)
    assert found == Resumed(len(text) - len(behind), len(truth(behind)), behind)
    assert truth(text)[: len(truth(text)) - found.tokens] + truth(behind + tail) == truth(text + tail)


@pytest.mark.parametrize("far", [70, 300, 6000])
def test_where_cuts_are_far_it_begins_at_the_chunk(far: int) -> None:
    """What stands behind a cut is encoded twice, so more than half of a chunk is not counted."""
    text = "the fox " * 5 + "x" * far
    begin = len(text) - far - 4
    assert begun(text, "y", begin) == Resumed(begin, len(truth(text[begin:])), text[begin:])


def test_the_rule_is_asked_of_what_was_there_already() -> None:
    """A pair that counts only with the character after it is a cut of the old text where the old text has that."""

    class IfNext(SpaceRule):
        def is_cut(self, text: str, i: int) -> bool:
            return super().is_cut(text, i) and i + 1 < len(text)

    encoder = replace(small_encoder(), rule=IfNext())
    assert resumed(encoder, leaves_of("a fox "), 0, 4, "q").behind == "fox "
    assert resumed(encoder, leaves_of("a fox "), 0, 4, "ab").behind == ""
    assert resumed(encoder, leaves_of("a fox  "), 0, 5, "q").behind == "  "


def test_an_append_at_a_cut_encodes_what_is_new_and_nothing_else() -> None:
    text = prose(1, 5000).rstrip()
    rope = rope_of(text)
    engine = rope._encoder.window
    assert isinstance(engine, CountingEngine)
    engine.seen.clear()
    for tail in (" and more", " \n", "fox", " " + "quick " * 100):
        splice = rope.append(tail)
        text += tail
        assert engine.seen == [tail]
        assert splice.scanned == len(tail)
        engine.seen.clear()
    check(rope, text)


def test_the_ids_behind_the_last_cut_are_counted() -> None:
    rope = rope_of("the quick brown fox jumps")
    engine = rope._encoder.window
    assert isinstance(engine, CountingEngine)
    engine.seen.clear()
    splice = rope.append("ing over")
    assert engine.seen == ["jumps", "jumpsing over"]
    assert splice.scanned == len("jumps") + len("jumpsing over")
    assert splice.kept_prefix == len(truth("the quick brown fox "))
    check(rope, "the quick brown fox jumpsing over")


def test_a_chunk_begins_where_the_last_one_is_long_enough() -> None:
    rope = rope_of("the fox " * 10)
    while rope.chars + 40 < SEAL_MIN:
        rope.append("the fox " * 5)
    assert chunks_of(rope) == 1
    rope.append("the fox " * 5)
    rope.append("the fox " * 5)
    assert rope.seams()[0] >= SEAL_MIN
    check(rope, rope.text())


def test_long_appends_are_cut_into_chunks() -> None:
    text = prose(2, 3000)
    rope = rope_of(text)
    for size in (2 * TARGET - 1, 2 * TARGET, 30_000):
        tail = prose(size, size)
        rope.append(tail)
        text += tail
        check(rope, text)
    assert max(b - a for a, b in pairwise(rope._chars)) < 3 * TARGET


def test_appends_of_any_kind_against_the_full_encode() -> None:
    chance = random.Random(3)
    for _round in range(12):
        rope, text = Rope(small_encoder()), ""
        for _ in range(30):
            size = chance.choice((1, 2, 3, 9, 70, 700, 5000))
            tail = chance.choice(("x" * size, " " * size, prose(chance.randrange(10**6), size)))
            old = rope.ids.tolist()
            splice = rope.append(tail) if chance.random() < 0.5 else rope.set(text + tail)
            text += tail
            assert splice.first_changed == common(old, rope.ids.tolist())
            if chance.random() < 0.3 and text:
                text = text[: chance.randrange(len(text))]
                rope.truncate(len(text))
        check(rope, text)
