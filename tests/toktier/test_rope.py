"""The rope against a full encode, and what each change costs."""

from __future__ import annotations

import random
import sys
from itertools import pairwise

import numpy as np
import pytest

from tests.support.small_bpe import CountingEngine, small_encoder, truth
from toktier.chunks import LONG, SEAL_MIN, SMALL, TARGET, ChunkEncoder, first_cut, last_cut, marker_of
from toktier.errors import InvalidText
from toktier.ids import Ids
from toktier.reasons import FullEncode
from toktier.rope import Rope, Splice

WORDS = ["the", "quick", "brown", "fox", "over", "lazy", "shadow", "morning", "xyzzy", "12345", "ünïcödé", "漢字", "é"]


def prose(seed: int, chars: int) -> str:
    rng = random.Random(seed)
    out: list[str] = []
    size = 0
    while size < chars:
        out.append(rng.choice(WORDS) + rng.choice([" ", " ", " ", "\n", "\n\n", "  "]))
        size += len(out[-1])
    return "".join(out)[:chars]


def rope_of(text: str) -> Rope:
    rope = Rope(small_encoder())
    rope.set(text)
    return rope


def common(a: list[int], b: list[int]) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def check(rope: Rope, text: str) -> None:
    assert rope.text() == text
    assert rope.chars == len(text)
    assert rope.ids.tolist() == truth(text)
    places = list(pairwise(rope._chars))
    sizes = [end - at for at, end in places]
    rule = rope._encoder.rule
    assert rule is None or all(rule.is_cut(text, seam) for seam in rope.seams()), "invariant 2"
    assert all(max(a, b) >= SMALL for a, b in pairwise(sizes[:-1])), "two small neighbours"
    assert rope._chars[0] == 0
    assert all(sizes)
    for (at, end), (a, b) in zip(places, pairwise(rope._tokens), strict=True):
        assert rope.ids[a:b].tolist() == truth(text[at:end]), "invariant 1"


def chunks_of(rope: Rope) -> int:
    return len(rope._chars) - 1


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


def test_a_surrogate_behind_two_changes_is_placed_in_the_new_text() -> None:
    text = prose(23, 40_000)
    rope = rope_of(text)
    with pytest.raises(InvalidText) as caught:
        rope.set("much longer than before " + text[5:20_000] + text[25_000:] + "a\ud800")
    assert caught.value.offset == 24 + 19_995 + 15_000 + 1
    check(rope, text)


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


def test_the_marker_is_how_most_special_tokens_begin() -> None:
    tokens = [("<|a|>", True), ("<|b|>", True), ("[x]", True), ("<c>", False), ("<d>", False), ("<e>", False)]
    assert marker_of({"added_tokens": [{"content": text, "special": special} for text, special in tokens]}) == "<|"
    assert marker_of({"added_tokens": []}) == marker_of({}) == ""


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


def test_many_small_appends_leave_no_crumbs() -> None:
    rope, text = Rope(small_encoder()), ""
    for k in range(2000):
        rope.append(f"{k} fox ")
        text += f"{k} fox "
    check(rope, text)
    assert chunks_of(rope) <= len(text) // SMALL + 2


def test_a_clone_is_independent_and_shares_its_strings() -> None:
    text = prose(13, 30_000)
    rope = rope_of(text)
    other = rope.clone()
    assert all(a is b for a, b in zip(rope.pieces(), other.pieces(), strict=True))
    rope.append(" one")
    other.set("two " + text)
    other.append("three")
    check(rope, text + " one")
    check(other, "two " + text + "three")


def test_the_view_is_read_only_and_no_copy() -> None:
    rope = rope_of(prose(14, 5000))
    view = rope.ids
    assert view.dtype == np.uint32
    assert view.flags.c_contiguous
    assert view.base is not None
    with pytest.raises(ValueError):
        view[0] = 1


def test_a_lone_surrogate_is_refused_with_its_place_and_changes_nothing() -> None:
    text = prose(15, 9000)
    rope = rope_of(text)
    for change in (
        lambda: rope.set(text + "a\ud800"),
        lambda: rope.append("a\ud800"),
    ):
        with pytest.raises(InvalidText) as caught:
            change()
        assert caught.value.offset == len(text) + 1
        check(rope, text)
    with pytest.raises(InvalidText) as caught:
        rope.replace(4000, 4001, "\udfff")
    assert caught.value.offset == 4000
    check(rope, text)


def test_an_engine_that_fails_changes_nothing() -> None:
    encoder = small_encoder()
    rope = Rope(encoder)
    text = prose(16, 9000)
    rope.set(text)

    class Broken(CountingEngine):
        def encode(self, text: str) -> np.ndarray:
            raise MemoryError

    assert isinstance(encoder.window, CountingEngine)
    broken = Broken(encoder.window.tokenizer)
    rope._encoder = ChunkEncoder(encoder.rule, broken, broken)
    with pytest.raises(MemoryError):
        rope.replace(100, 8000, "short")
    check(rope, text)


def test_the_bytes_are_counted_and_given_back() -> None:
    rope = rope_of("漢字 かな " * 20_000)
    strings = sum(map(sys.getsizeof, rope.pieces()))
    index = rope._leaves.index_bytes + 8 * (len(rope._chars) + len(rope._tokens))
    assert rope.nbytes == rope._flat.nbytes + strings + index
    assert strings < 1.2 * 2 * rope.chars, "two bytes a character: no UTF-8 copies are kept"
    full = rope.nbytes
    rope.truncate(1000)
    assert rope.nbytes < full // 4
    check(rope, ("漢字 かな " * 20_000)[:1000])


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


def test_ids_that_someone_holds_stay_what_they_are() -> None:
    chance = random.Random(9)
    rope = Rope(small_encoder())
    rope.set("the fox jumps over the lazy dog " * 200)
    held: list[tuple[Ids, list[int]]] = []
    for number in range(40):
        kind = number % 4
        if kind == 0:
            rope.append(" and so on " * chance.randint(1, 30))
        elif kind == 1:
            at = chance.randrange(rope.chars // 2)
            rope.replace(at, at + chance.randint(0, 400), "other " * chance.randint(0, 90))
        elif kind == 2:
            rope.truncate(rope.chars - chance.randint(0, 900))
        else:
            text = rope.text()
            rope.set("a " + text[:500] + text[700:] + " end")
        assert rope.ids.tolist() == truth(rope.text())
        assert all(ids.tolist() == wanted for ids, wanted in held)
        if chance.random() < 0.5:
            ids = rope.ids if chance.random() < 0.5 else rope.ids[chance.randrange(50) :][::2]
            held.append((ids, ids.tolist()))
        if chance.random() < 0.3:
            held.clear()


def test_a_rope_whose_ids_nobody_holds_changes_them_in_place() -> None:
    rope = Rope(small_encoder())
    rope.set("the fox jumps over the lazy dog " * 200)
    rope.append("a")
    address = rope.ids.ctypes.data
    rope.append(" fox")
    assert rope.ids.ctypes.data == address
    held = rope.ids[3:]
    rope.append(" fox")
    assert rope.ids.ctypes.data != address
    assert held.ctypes.data == address + 12


def test_what_is_followed_is_kept_as_it_is() -> None:
    """The parts are somebody else's too: no second copy, and no UTF-8 form that an engine asked for."""
    parts = [prose(50 + k, 900) + "é漢 \n" for k in range(12)]
    rope = Rope(small_encoder())
    rope.follow(0, parts)
    assert all(a is b for a, b in zip(rope.pieces(), parts, strict=True))
    check(rope, "".join(parts))
    changed = [*parts[:5], "other " * 40 + "\n", *parts[6:], "more"]
    rope.follow(sum(map(len, parts[:5])), changed[5:])
    assert all(a is b for a, b in zip(rope.pieces(), changed, strict=True))
    check(rope, "".join(changed))
    alone = Rope(small_encoder())
    alone.follow(0, parts[:1])
    before = sys.getsizeof(parts[0])
    assert alone.pieces() == (parts[0],)
    assert sys.getsizeof(parts[0]) == before
