"""What a rope lends and keeps: views, strings, bytes; and that a change that fails leaves it as it was."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest

from tests.support.ropes import check, prose, rope_of
from tests.support.small_bpe import CountingEngine, small_encoder, truth
from toktier.chunks import ChunkEncoder
from toktier.errors import InvalidText
from toktier.ids import Ids
from toktier.rope import Rope


def test_a_surrogate_behind_two_changes_is_placed_in_the_new_text() -> None:
    text = prose(23, 40_000)
    rope = rope_of(text)
    with pytest.raises(InvalidText) as caught:
        rope.set("much longer than before " + text[5:20_000] + text[25_000:] + "a\ud800")
    assert caught.value.offset == 24 + 19_995 + 15_000 + 1
    check(rope, text)


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
    assert list(alone.pieces()) == [parts[0]]
    assert sys.getsizeof(parts[0]) == before
