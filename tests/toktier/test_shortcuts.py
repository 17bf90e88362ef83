"""Whichever way a text is encoded, on either side of each threshold, the IDs are those of the whole."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from tests.support.position_bpe import KINDS, position_encoder, position_truth
from tests.support.small_bpe import CountingEngine, small_encoder, truth
from toktier.chunks import ChunkEncoder
from toktier.errors import InvalidText
from toktier.reasons import FullEncode
from toktier.rope import Rope, Splice
from toktier.shortcuts import DEFAULTS, Shortcuts, Way

WORDS = ["the", "fox", "jumps", "over", "a", "lazy", "dog", "while", "other", "foxes", "sleep\n"]


def words(chance: random.Random, size: int) -> str:
    return " ".join(chance.choices(WORDS, k=size))[:size]


def shared(a: Sequence[object], b: Sequence[object]) -> int:
    return next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def put(rope: Rope, text: str, shortcuts: Shortcuts) -> Splice:
    """As a tier does."""
    return rope.anew(text) if len(text) < shortcuts.whole_below else rope.set(text)


@pytest.mark.parametrize("whole_below", [5, 700, 3000])
def test_a_text_around_the_threshold_has_the_ids_of_the_whole(whole_below: int) -> None:
    chance = random.Random(whole_below)
    shortcuts = Shortcuts(whole_below, 2048)
    rope = Rope(replace(small_encoder(), shortcuts=shortcuts))
    text, ways = "", set()
    for _ in range(60):
        before = rope.ids.tolist()
        size = max(2, whole_below + chance.choice((-300, -1, 0, 1, 300, 2500)))
        if len(text) > size:
            new = text[:size] if chance.random() < 0.5 else text[len(text) - size :]
        else:
            at = len(text) if chance.random() < 0.6 else chance.randrange(len(text) + 1)
            new = text[:at] + words(chance, size - len(text)) + text[at:]
        splice = put(rope, new, shortcuts)
        ids = rope.ids.tolist()
        assert ids == truth(new)
        assert splice.first_changed == shared(before, ids)
        assert splice.common == shared(text, new)
        way = shortcuts.way(len(new), splice.scanned)
        if len(new) < whole_below:
            assert (way, list(rope.pieces())) == (Way.WHOLE, [new])
            assert splice.full in (FullEncode.NO_SESSION, FullEncode.SHORT_TEXT)
        ways.add(way)
        text = new
    assert len(ways) > 1


@pytest.mark.parametrize("kind", KINDS)
def test_so_it_has_where_pieces_go_on_in_the_middle_of_a_text(kind: str) -> None:
    chance = random.Random(kind)
    ways = [Shortcuts(below, cores) for below, cores in product((0, 90), (0, 10**9))]
    ropes = [(Rope(replace(position_encoder(kind), shortcuts=one)), one) for one in ways]
    for size in (20, 89, 90, 91, 300, 40, 90, 89, 500):
        text = words(chance, size)
        for rope, shortcuts in ropes:
            put(rope, text, shortcuts)
            put(rope, text + " and", shortcuts)
            assert rope.ids.tolist() == position_truth(kind, text + " and")


def test_a_whole_text_that_has_no_ids_leaves_the_rope_as_it_was() -> None:
    rope = Rope(small_encoder())
    rope.set("the fox")
    with pytest.raises(InvalidText) as raised:
        rope.anew("the \ud800 fox")
    assert raised.value.offset == 4
    assert (rope.text(), rope.ids.tolist()) == ("the fox", truth("the fox"))
    rope.anew("")
    assert (rope.text(), len(rope.ids)) == ("", 0)


def test_a_batch_is_asked_for_from_the_threshold_on() -> None:
    class Batches(CountingEngine):
        asked = 0

        def encode_batch(self, texts):  # type: ignore[no-untyped-def]
            self.asked += 1
            return super().encode_batch(texts)

    small = small_encoder()
    assert isinstance(small.window, CountingEngine)
    pieces = ["the fox ", "jumps ", "over"]
    for cores, batches in ((18, 1), (19, 0)):
        engine = Batches(small.window.tokenizer)
        encoder = ChunkEncoder(small.rule, engine, small.reference, shortcuts=Shortcuts(0, cores))
        ids, counts, _ = encoder.encode(pieces)
        assert ids.tolist() == [i for piece in pieces for i in truth(piece)]
        assert list(counts) == [len(truth(piece)) for piece in pieces]
        assert engine.asked == batches
        assert encoder.shortcuts.way(100, 18) is (Way.ALL_CORES if batches else Way.IN_TURN)
        encoder.encode(["the fox jumps over the lazy dog"])
        assert engine.asked == batches  # one piece has nothing to share out


def test_ways() -> None:
    ways = Shortcuts(whole_below=10, all_cores_from=100)
    assert [ways.way(9, 9), ways.way(9, 5), ways.way(10, 10)] == [Way.WHOLE, Way.IN_TURN, Way.IN_TURN]
    assert [ways.way(500, 99), ways.way(500, 100), ways.way(500, 0)] == [Way.IN_TURN, Way.ALL_CORES, None]
    assert DEFAULTS.way(9, 9) is Way.IN_TURN
