"""The rope against a full encode, and what each change costs."""

from __future__ import annotations

import random

import pytest

from tests.support.ropes import WORDS, check, chunks_of, common, prose, rope_of
from tests.support.small_bpe import CountingEngine, small_encoder, truth
from toktier.chunks import LONG, SMALL, TARGET, ChunkEncoder
from toktier.reasons import FullEncode
from toktier.rope import Rope, Splice


def test_an_empty_rope_has_nothing_and_takes_everything() -> None:
    rope = Rope(small_encoder())
    assert rope.ids.tolist() == []
    assert rope.set("") == Splice(0, 0, 0, 0, 0, None)
    assert rope.append("") == Splice(0, 0, 0, 0, 0, None)
    assert rope.truncate(0).scanned == 0
    splice = rope.replace(0, 0, "the fox")
    assert splice.full is FullEncode.NO_SESSION
    check(rope, "the fox")
    rope.set("")
    check(rope, "")


def test_setting_the_same_text_scans_nothing() -> None:
    text = prose(1, 9000)
    rope = rope_of(text)
    before = rope.ids.copy()
    splice = rope.set(text)
    assert splice == Splice(len(before), 0, len(before), 0, len(text), None)
    check(rope, text)


def test_an_edit_in_the_middle_keeps_both_sides() -> None:
    text = prose(4, 60_000)
    rope = rope_of(text)
    old = rope.ids.tolist()
    edited = text[:30_000] + "EDIT" + text[30_007:]
    splice = rope.set(edited)
    check(rope, edited)
    assert splice.scanned < 3 * TARGET
    assert splice.kept_prefix > len(old) // 3
    assert splice.kept_suffix > len(old) // 3
    assert splice.first_changed == common(old, rope.ids.tolist())
    assert splice.common == common(list(map(ord, text)), list(map(ord, edited)))


def test_several_changes_at_once_keep_what_lies_between() -> None:
    """A pruned tool result, an edit of the first message and a new turn in one request."""
    text = prose(21, 80_000)
    rope = rope_of(text)
    old = rope.ids.tolist()
    edited = "tuesday " + text[7:20_000] + "cleared" + text[32_000:60_000] + "x" + text[60_000:] + prose(22, 800)
    splice = rope.set(edited)
    check(rope, edited)
    assert splice.scanned < 8 * TARGET
    assert splice.first_changed == common(old, rope.ids.tolist())
    assert splice.full is None
    splice = rope.set("monday " + edited[8:])
    check(rope, "monday " + edited[8:])
    assert splice.scanned < 2 * TARGET


def test_moved_text_is_found() -> None:
    parts = [prose(30 + k, 9000) + "\n" for k in range(4)]
    rope = rope_of("".join(parts))
    splice = rope.set("".join([parts[1], parts[0], *parts[2:], "end"]))
    check(rope, "".join([parts[1], parts[0], *parts[2:], "end"]))
    assert splice.scanned < 18_000


def test_chunks_end_before_a_marker_where_the_cuts_allow() -> None:
    base = small_encoder()
    encoder = ChunkEncoder(base.rule, base.window, base.reference, marker="<|")
    message = "<|user\n" + "fox " * 150 + "x<|end \n"
    text = message * 20
    pieces = encoder.pieces(text, at_end=True)
    assert "".join(pieces) == text
    assert all(piece.startswith("<|user") for piece in pieces[:-1])
    assert len(pieces) >= 20
    rope = Rope(encoder)
    rope.set(text)
    at = 10 * len(message)
    splice = rope.set(text[:at] + "<|user\nother<|end \n" + text[at + len(message) :] + message)
    assert splice.scanned < 2 * len(message)
    check(rope, text[:at] + "<|user\nother<|end \n" + text[at + len(message) :] + message)


def test_replace_touches_only_its_chunks() -> None:
    text = prose(5, 60_000)
    rope = rope_of(text)
    splice = rope.replace(1000, 1010, "something else")
    text = text[:1000] + "something else" + text[1010:]
    check(rope, text)
    assert splice.scanned < 3 * TARGET
    for start, end in [(-1, 2), (3, 2), (0, len(text) + 1)]:
        with pytest.raises(IndexError):
            rope.replace(start, end, "")
    check(rope, text)


def test_a_compaction_keeps_what_is_equal_at_both_ends() -> None:
    text = prose(6, 50_000)
    rope = rope_of(text)
    compact = text[:9000] + "summary of all that was said " + text[-9000:]
    splice = rope.set(compact)
    check(rope, compact)
    assert splice.scanned < 4 * TARGET
    assert splice.kept_prefix > 0
    assert splice.kept_suffix > 0


@pytest.mark.parametrize("n", [0, 1, 255, 300, 2048, 2049, 19_999, 20_000])
def test_truncation(n: int) -> None:
    text = prose(7, 20_000)
    rope = rope_of(text)
    old = rope.ids.tolist()
    splice = rope.truncate(n)
    check(rope, text[:n])
    assert splice.first_changed == common(old, rope.ids.tolist())
    assert splice.scanned <= 2 * TARGET + SMALL


def test_the_first_changed_id_runs_on_into_a_shifted_suffix() -> None:
    """One more of a periodic run: the IDs differ only where the run ends, far behind the place of the edit."""
    text = prose(8, 3000) + " \n" * 6000 + prose(9, 3000)
    for edited in (text[:5000] + " \n" + text[5000:], text[:5000] + text[5002:]):
        rope = rope_of(text)
        old = rope.ids.tolist()
        splice = rope.set(edited)
        check(rope, edited)
        assert splice.first_changed == common(old, rope.ids.tolist())
        assert splice.first_changed > 12_000


def test_without_a_rule_every_change_is_a_full_encode_by_the_reference() -> None:
    rope = Rope(small_encoder(certified=False))
    text = prose(10, 5000)
    window, reference = rope._encoder.window, rope._encoder.reference
    assert isinstance(window, CountingEngine)
    assert isinstance(reference, CountingEngine)
    assert rope.set(text).full is FullEncode.NO_CERTIFICATE
    splice = rope.append(" more")
    assert splice.full is FullEncode.NO_CERTIFICATE
    assert splice.scanned == len(text) + 5
    assert splice.first_changed == len(truth(text))
    assert rope.set(text + " more").scanned == 0
    check(rope, text + " more")
    rope.truncate(100)
    check(rope, text[:100])
    assert window.seen == []
    assert len(reference.seen) == 3


def test_a_stretch_without_cuts_is_one_chunk_and_goes_to_the_reference_when_it_is_long() -> None:
    text = "the " * 500 + "x" * (LONG + 10) + " fox" * 500
    rope = rope_of(text)
    assert isinstance(rope._encoder.reference, CountingEngine)
    assert len(rope._encoder.reference.seen) == 1
    check(rope, text)
    rope.append("y")
    check(rope, text + "y")
    rope.replace(3000, 3001, " ")
    check(rope, text[:3000] + " " + text[3001:] + "y")


def test_a_text_without_any_cut_is_encoded_in_full_and_says_so() -> None:
    rope = rope_of("x" * 5000)
    assert rope.append("x").full is FullEncode.NO_CUT
    check(rope, "x" * 5001)
    short = rope_of("x" * 50)
    assert short.append("x").full is FullEncode.SHORT_TEXT


def test_many_small_edits_leave_no_crumbs() -> None:
    rng = random.Random(11)
    text = prose(12, 20_000)
    rope = rope_of(text)
    for _ in range(300):
        at = rng.choice([5000, 5001, rng.randrange(len(text))])
        rope.replace(at, at, " a ")
        text = text[:at] + " a " + text[at:]
    check(rope, text)
    for k in range(60):
        rope.replace(0, 300, "")
        text = text[300:]
        assert rope.chars == 20_900 - 300 * (k + 1)
    check(rope, text)
    assert chunks_of(rope) <= 2 * len(text) // SMALL + 2


def test_random_changes_against_the_full_encode() -> None:
    rng = random.Random(17)
    repaired = scanned = served = 0
    for round_ in range(5):
        text = prose(200 + round_, [0, 30, 900, 6000, 12_000][round_])
        rope = rope_of(text)
        for _ in range(40):
            old = rope.ids.tolist()
            new = prose(rng.randrange(10**6), rng.choice([0, 1, 3, 40, 700, 5000]))
            a, b = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
            if rng.random() < 0.8:
                b = min(len(text), a + rng.randint(0, 30))
            match rng.randrange(5):
                case 0:
                    splice, text = rope.append(new), text + new
                case 1:
                    splice, text = rope.replace(a, b, new), text[:a] + new + text[b:]
                case 2:
                    b = max(0, len(text) - rng.randint(0, 2000))
                    splice, text = rope.truncate(b), text[:b]
                case 3:
                    c = rng.randint(b, len(text))
                    text = text[:a] + new + text[b:c] + text[c + 1 :] + "!"
                    splice = rope.set(text)
                case _:
                    text = text[:a] + new + text[b:]
                    splice = rope.set(text)
            check(rope, text)
            assert splice.first_changed == common(old, rope.ids.tolist())
            repaired += splice.full is None
            scanned += splice.scanned
            served += len(text)
    assert repaired > 120
    assert scanned < served / 2


def test_following_gives_what_setting_gives() -> None:
    rng = random.Random(8)
    encoder = small_encoder()

    def words(count: int) -> str:
        return " ".join(rng.choices(WORDS, k=count))

    followed, plain = Rope(encoder), Rope(encoder)
    text = ""
    for _ in range(150):
        at = rng.choice([len(text), rng.randrange(len(text) + 1)])
        to = rng.choice([at, len(text), rng.randrange(at, len(text) + 1)])
        new = text[:at] + words(rng.choice([0, 1, 5, 400])) + text[to:]
        common = next((i for i, (a, b) in enumerate(zip(text, new, strict=False)) if a != b), min(len(text), len(new)))
        told = rng.choice([common, rng.randrange(common + 1), 0])
        end = rng.randrange(told, len(new) + 1)
        assert followed.follow(told, [one for one in (new[told:end], new[end:]) if one]) == plain.set(new)
        assert followed.text() == "".join(followed.pieces()) == new
        assert followed.ids.tolist() == plain.ids.tolist() == truth(new)
        text = new
    with pytest.raises(IndexError):
        followed.follow(len(text) + 1, [])
