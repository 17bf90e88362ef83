"""What a chunk encoder makes of pieces that go on in the middle of a text."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.position_bpe import KINDS, position_encoder, position_rule, position_truth
from tests.support.small_bpe import CountingEngine, SpaceRule, small_encoder, truth
from toktier import chunks
from toktier.chunks import LONG, SEAL_MIN, TARGET, ChunkEncoder, Encoded, first_cut, last_cut, marker_of


def pieces_of(kind: str, text: str) -> list[str]:
    bounds = [0, *position_rule(kind).cuts(text).tolist(), len(text)]
    return [text[a:b] for a, b in pairwise(bounds)]


def joined(encoded: Encoded) -> list[int]:
    return encoded.ids.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_pieces_and_what_stands_before_them_give_the_ids_of_the_whole(kind: str) -> None:
    text = "the quick <m> fox jumps12 over the\nlazy 7 dog <m>the shadow x1 y2 z3"
    encoder = position_encoder(kind)
    pieces = pieces_of(kind, text)
    before = ["", *(piece[-1] for piece in pieces[:-1])]
    ids, counts, _ = encoder.encode(pieces, before)
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


def test_chunks_are_as_short_in_a_long_text() -> None:
    text = "word " * 200_000
    pieces = small_encoder().pieces(text, at_end=True)
    assert "".join(pieces) == text
    assert all(abs(len(piece) - TARGET) < 5 for piece in pieces[:-2])


def test_chunks_between_far_markers_are_as_short() -> None:
    """Some markers near, some far, some where they make no cut, and stretches without any cut."""
    rng = random.Random(3)
    encoder = small_encoder()
    encoder = ChunkEncoder(encoder.rule, encoder.window, encoder.reference, marker="<|")
    kinds = (
        "word " * 900,
        "word " * 9_000,
        "word " * 21_000,
        "x" * 300,
        "x" * 9_000,
        " <|m ",
        "x<|m",
        " <|m word" * 30,
    )
    for _ in range(20):
        text = "".join(rng.choices(kinds, k=rng.randint(3, 20)))
        pieces = encoder.pieces(text, at_end=True)
        assert "".join(pieces) == text
        seams = list(accumulate(map(len, pieces)))[:-1]
        assert all(SpaceRule().is_cut(text, seam) for seam in seams)
        for piece in pieces[:-2]:
            assert len(piece) >= SEAL_MIN
            assert len(piece) < 2 * TARGET + 200 or "x" * 300 in piece, len(piece)


@pytest.mark.parametrize(("targets", "at_once"), [(9, False), (20, False), (30, True)])
def test_many_cuts_are_asked_at_once_where_that_pays(
    targets: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = chunks.spaced_cuts
    monkeypatch.setattr(chunks, "spaced_cuts", lambda *given: asked.append(given[2]) or real(*given))
    encoder = small_encoder()
    text = "some words " * (targets * TARGET // 11)
    pieces = encoder.pieces(text, at_end=False)
    assert "".join(pieces) == text
    assert abs(len(pieces) - targets) <= 1
    assert encoder.rule is not None
    assert all(encoder.rule.is_cut(text, at) for at in accumulate(map(len, pieces[:-1])))
    assert bool(asked) == at_once


def test_cuts_that_are_never_where_they_are_looked_for_cost_no_more() -> None:
    """Windows at even distances are asked once, whatever they find."""
    rule = CountingRule()
    encoder = ChunkEncoder(rule, small_encoder().window, small_encoder().reference)
    text = "x" * 2000 + " " + ("x" * (TARGET - 1) + " ") * 300
    pieces = encoder.pieces(text, at_end=True)
    assert len(pieces) > 290
    assert rule.asked < 4 * len(text)


def test_a_long_stretch_among_many_chunks_goes_to_the_reference_alone() -> None:
    encoder = small_encoder()
    window, reference = encoder.window, encoder.reference
    assert isinstance(window, CountingEngine)
    assert isinstance(reference, CountingEngine)
    pieces = ["the fox ", "x" * (LONG + 1), " over ", "the lazy ", " ", "y" * LONG, "z" * (LONG + 2)]
    ids, counts, _ = encoder.encode(pieces)
    assert ids.tolist() == [i for piece in pieces for i in truth(piece)]
    assert list(counts) == [len(truth(piece)) for piece in pieces]
    assert reference.seen == [pieces[1], pieces[6]]
    assert window.seen == [pieces[k] for k in (0, 2, 3, 4, 5)]
    only_long = [pieces[1]] * 5
    assert list(encoder.encode(only_long)[1]) == [counts[1]] * 5


class CountingRule(SpaceRule):
    """Remembers how many positions it was asked about."""

    asked = 0

    def cuts(self, text: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        self.asked += len(text)
        return super().cuts(text, start, stop)


@pytest.mark.parametrize("stretch", [0, 5, 30, 300, 5000, LONG - 1000, 2 * LONG, 5 * LONG])
def test_the_ends_of_a_stretch_without_cuts_are_found(stretch: int) -> None:
    """Exactly within `LONG` characters; beyond, at the first sample that has a cut."""
    rule = SpaceRule()
    text = "x" * stretch + " fox" * (2 * LONG // 4)
    found = first_cut(rule, text, 1, len(text))
    assert found is not None
    assert rule.is_cut(text, found)
    assert found == max(1, stretch) or (stretch > LONG and stretch < found <= stretch + LONG)
    mirrored = text[::-1]
    found = last_cut(rule, mirrored, 1, len(text))
    assert found is not None
    assert rule.is_cut(mirrored, found)
    place = len(text) - found
    assert place == max(1, stretch) or (stretch > LONG and stretch < place <= stretch + LONG)


def test_a_text_without_cuts_is_only_sampled() -> None:
    rule = CountingRule()
    text = "x" * (20 * LONG)
    encoder = ChunkEncoder(rule, small_encoder().window, small_encoder().reference, marker="xx")
    assert encoder.pieces(text, at_end=True) == [text]
    assert rule.asked < 8 * LONG
    assert first_cut(rule, text, 1, len(text)) is last_cut(rule, text, 1, len(text)) is None


def test_markers_are_found_as_str_finds_them() -> None:
    rng = random.Random(5)
    for _ in range(400):
        alphabet = rng.choice(("<|ab\u4e2d", "<" * 8 + "|", "a" * 60 + "<|"))
        text = "".join(rng.choices(alphabet, k=rng.choice((0, 3, 40, 900))))
        start, stop = rng.randint(0, 20), rng.randint(0, len(text))
        assert chunks._find(text, "<|", start, stop) == text.find("<|", start, stop)
        assert chunks._find(text, "<", start, stop) == text.find("<", start, stop)


def test_markers_that_are_no_cuts_are_passed_over() -> None:
    """Each is looked at once, whatever the number of chunks."""
    encoder = small_encoder()
    encoder = ChunkEncoder(encoder.rule, encoder.window, encoder.reference, marker="<|")
    text = ("the<|fox" * 400 + " ") * 10 + "<|end " * 2000
    pieces = encoder.pieces(text, at_end=True)
    assert "".join(pieces) == text
    assert any(piece.startswith("<|") for piece in pieces)
    assert all(SpaceRule().is_cut("".join(pieces[:k]) + pieces[k], len("".join(pieces[:k]))) for k in range(1, 8))
    assert all(len(piece) >= SEAL_MIN for piece in pieces[:-2])


def test_the_marker_is_how_most_special_tokens_begin() -> None:
    tokens = [("<|a|>", True), ("<|b|>", True), ("[x]", True), ("<c>", False), ("<d>", False), ("<e>", False)]
    assert marker_of({"added_tokens": [{"content": text, "special": special} for text, special in tokens]}) == "<|"
    assert marker_of({"added_tokens": []}) == marker_of({}) == ""


def test_the_search_for_a_cut_finds_the_nearest_at_any_distance() -> None:
    rule = small_encoder().rule
    assert rule is not None
    for gap in (1, 5, 23, 24, 25, 300, 5000):
        text = "x" * 50 + " " + "x" * gap + " " + "x" * 50
        assert first_cut(rule, text, 53, len(text)) == (51 + gap if gap > 1 else 53)
        assert last_cut(rule, text, 1, 51 + gap) == 51
        assert first_cut(rule, text, 53 + gap, len(text)) is None
        assert last_cut(rule, text, 1, 50) is None
        assert first_cut(rule, text, 52, 51 + gap) is None


def test_a_short_piece_is_given_as_the_engine_has_it() -> None:
    encoder = small_encoder()
    text = "the fox jumps"
    assert np.frombuffer(encoder.one(text), "<u4").tolist() == truth(text)

    class Bytes(CountingEngine):
        def encode_bytes(self, text: str) -> bytes:
            return b"four" * len(text)

    assert isinstance(encoder.window, CountingEngine)
    assert replace(encoder, window=Bytes(encoder.window.tokenizer)).one("ab") == b"fourfour"


@pytest.mark.parametrize(("certified", "plain"), [(True, True), (False, False)])
def test_an_encoder_is_plain_where_every_chunk_is_a_text_of_its_own(certified: bool, plain: bool) -> None:
    assert small_encoder(certified=certified).plain is plain
    assert not position_encoder(KINDS[0]).plain


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [40, TARGET - 1, 2 * TARGET + 500, 20_000])
@pytest.mark.parametrize("word", ["the fox ", "漢字 "])
def test_what_is_made_of_a_text_is_t_of_it_chunk_by_chunk(word: str, size: int, shared: bool) -> None:
    text = (word * size)[: size - 1] + "x"
    before = sys.getsizeof(text)
    made = small_encoder().made(text, shared)
    assert sys.getsizeof(text) == before or not shared
    assert "".join(made.pieces) == text
    assert list(made.counts) == [len(truth(piece)) for piece in made.pieces]
    assert np.frombuffer(made.raw, "<u4").tolist() == truth(text)


def test_a_text_of_a_few_messages_is_one_chunk() -> None:
    encoder = replace(small_encoder(), marker="<|")
    message = "<|user\n" + "fox " * 150 + "x<|end \n"
    assert len(encoder.made(message * 3, False).pieces) == 1
    assert len(encoder.made(message * 4, False).pieces) > 1
