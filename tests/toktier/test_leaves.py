"""A text in leaves beside the plain string that it stands for."""

from __future__ import annotations

import random
import sys

import pytest

from toktier.leaves import CRUMB, LEAF, Leaves, own


def check(leaves: Leaves, text: str) -> None:
    rows = leaves.all()
    assert "".join(rows) == text
    assert all(rows)
    assert leaves.chars == len(text)
    assert leaves.text_bytes == sum(map(sys.getsizeof, rows))


def words(rng: random.Random, size: int) -> str:
    return "".join(rng.choices("abc é漢😀", k=size))


def test_random_changes_against_a_string() -> None:
    rng = random.Random(5)
    for _ in range(30):
        leaves, text = Leaves(), ""
        for _ in range(40):
            if rng.random() < 0.2:
                more = words(rng, rng.choice([1, CRUMB, 700, LEAF + 1]))
                leaves.add(more)
                text += more
                check(leaves, text)
            start = rng.choice([0, len(text), rng.randint(0, len(text))])
            end = rng.choice([start, len(text), rng.randint(start, len(text))])
            parts = [words(rng, rng.choice([1, 5, CRUMB, 700])) for _ in range(rng.choice([0, 1, 1, 3]))]
            leaves.put(start, end, parts)
            text = text[:start] + "".join(parts) + text[end:]
            check(leaves, text)
            low = rng.randint(0, len(text))
            high = rng.randint(low, len(text))
            assert leaves.text(low, high) == text[low:high]


def test_what_two_texts_share_is_found_to_the_character() -> None:
    rng = random.Random(6)
    for _ in range(200):
        text = words(rng, rng.choice([1, 40, 900]))
        leaves = Leaves()
        leaves.put(0, 0, [text[at : at + 100] for at in range(0, len(text), 100)])
        start = rng.randint(0, len(text))
        at = rng.randint(start, len(text))
        other = text[start:at] + rng.choice(["", "!"]) + text[at + rng.choice([0, 1]) :]
        prefix = leaves.common_prefix(start, other)
        assert other.startswith(text[start : start + prefix])
        assert not other.startswith(text[start : start + prefix + 1]) or start + prefix == len(text)
        most = rng.randint(0, min(len(text), len(other)))
        suffix = leaves.common_suffix(other, most)
        assert suffix == next(k for k in range(most, -1, -1) if other.endswith(text[len(text) - k :]) or k == 0)


def test_others_strings_stay_what_they_are() -> None:
    parts = ["x" * 3 * LEAF, "é" * 300, "s", "t", "y" * 200]
    leaves = Leaves()
    leaves.put(0, 0, parts)
    assert all(a is b for a, b in zip(leaves.all(), parts, strict=True))
    other = leaves.clone()
    other.put(0, 0, ["z" * 500])
    check(leaves, "".join(parts))
    check(other, "z" * 500 + "".join(parts))


@pytest.mark.parametrize("size", [1, 40, CRUMB])
def test_crumbs_do_not_pile_up(size: int) -> None:
    leaves, text = Leaves(), ""
    for _ in range(600):
        leaves.put(leaves.chars, leaves.chars, own("a" * size))
        text += "a" * size
    check(leaves, text)
    assert len(leaves.all()) <= 2 * len(text) / CRUMB + 1
    for _ in range(600):
        at = len(text) // 2
        leaves.put(at, at, own("bc"))
        text = text[:at] + "bc" + text[at:]
    check(leaves, text)
    assert len(leaves.all()) <= 2 * len(text) / CRUMB + 4
    for _ in range(600):
        leaves.put(1, 3, [])
        text = text[:1] + text[3:]
    check(leaves, text)


def test_own_text_is_cut_and_holds_no_second_form() -> None:
    assert own("") == []
    assert list(map(len, own("a" * (2 * LEAF + 1)))) == [LEAF, LEAF, 1]
    text = words(random.Random(7), 500)
    size = sys.getsizeof(text)
    "".join([text]).encode()
    (alone,) = own(text)
    assert alone == text
    assert alone is not text
    assert sys.getsizeof(alone) <= size


def test_a_row_that_somebody_holds_stays_what_it_is_and_no_other_is_copied() -> None:
    leaves = Leaves()
    leaves.put(0, 0, [word * 100 for word in ("ab ", "cd ", "ef ")])
    first = leaves._leaves
    number = id(first)
    del first
    leaves.add("gh " * 100)
    leaves.put(0, 10, [])
    assert id(leaves._leaves) == number
    held = leaves.all()
    before = list(held)
    leaves.add("i")
    leaves.put(200, 700, ["x" * 300])
    leaves.add("j" * 500)
    assert list(held) == before
    number = id(leaves._leaves)
    del held
    leaves.add("k" * 500)
    assert id(leaves._leaves) == number
