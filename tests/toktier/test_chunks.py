"""What a chunk encoder makes of pieces that go on in the middle of a text."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from tests.support.position_bpe import KINDS, position_encoder, position_rule, position_truth
from tests.support.small_bpe import CountingEngine, small_encoder
from toktier import chunks
from toktier.ids import Ids


def pieces_of(kind: str, text: str) -> list[str]:
    bounds = [0, *position_rule(kind).cuts(text).tolist(), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def joined(encoded: tuple[Ids, object]) -> list[int]:
    return encoded[0].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_what_stands_before_them_give_the_ids_of_the_whole(kind: str) -> None:
    text = "the quick <m> fox jumps12 over the\nlazy 7 dog <m>the shadow x1 y2 z3"
    encoder = position_encoder(kind)
    pieces = pieces_of(kind, text)
    before = ["", *(piece[-1] for piece in pieces[:-1])]
    ids, counts = encoder.encode(pieces, before)
    assert len(pieces) > 6
    assert ids.tolist() == position_truth(kind, text)
    assert [len(ids), len(counts)] == [sum(counts), len(pieces)]
    assert joined(encoder.encode(pieces[2:3], before[2:3])) == ids[sum(counts[:2]) : sum(counts[:3])].tolist()
    assert joined(encoder.encode(pieces[:1], [""])) == ids[: counts[0]].tolist()
    assert joined(encoder.encode([], [])) == []


def test_the_length_of_a_character_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "_HEADS", 2)
    encoder = position_encoder("prepend")
    reference = encoder.reference
    assert isinstance(reference, CountingEngine)
    for left in "ababa":
        encoder.encode([" fox"], [left])
    assert reference.seen == ["a", "b"]
    encoder.encode([" fox"] * 2, ["c", "a"])  # the third one empties the table, so that it stays bounded
    assert reference.seen == ["a", "b", "c", "a"]


def test_a_rule_without_positions_needs_nothing_before_a_piece() -> None:
    encoder = small_encoder()
    assert not encoder.interior
    assert np.array_equal(encoder.encode(["the", " fox"])[0], encoder.window.encode("the fox"))
    assert isinstance(encoder.window, CountingEngine)
    assert encoder.window.seen == ["the", " fox", "the fox"]
    assert position_encoder("prepend").interior
