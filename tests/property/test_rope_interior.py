"""Ropes of tokenizers that put something before the text or its segments: random changes against the full encode."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from tests.support.position_bpe import KINDS, LITERAL, position_encoder, position_rule, position_truth
from tests.support.ropes import text_of
from toktier.chunks import SMALL
from toktier.rope import Rope

WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "lazy",
    "12",
    "fox1",
    "7th",
    "x2y",
    LITERAL,
    f"{LITERAL}the",
    f"a{LITERAL}",
    "|",
]


def random_text(rng: random.Random, chars: int) -> str:
    return text_of(rng, WORDS, [" ", " ", " ", "", "  ", "\n"], chars)


def check(rope: Rope, kind: str, text: str) -> None:
    """The IDs, and both invariants of the rope chunk by chunk."""
    assert rope.text() == text
    assert rope.ids.tolist() == position_truth(kind, text)
    tokens = rope._tokens
    for k, (at, end) in enumerate(pairwise(rope._chars)):
        chunk = text[at:end]
        assert k == 0 or position_rule(kind).is_cut(text, at)
        before = text[max(0, at - 1) : at]
        expected = position_truth(kind, before + chunk)[len(position_truth(kind, before)) :]
        assert rope.ids[tokens[k] : tokens[k + 1]].tolist() == expected


def sizes_of(rope: Rope) -> list[int]:
    return [end - at for at, end in pairwise(rope._chars)]


@pytest.mark.parametrize("kind", KINDS)
def test_interior_chunks_differ_from_whole_texts(kind: str) -> None:
    """Else nothing below would be tested: T(u b v) is not T(u) + T(b v) at some cut of the rule."""
    text = "the fox1 lazy"
    rule = position_rule(kind)
    cuts = rule.cuts(text).tolist()
    whole = position_truth(kind, text)
    parts = [position_truth(kind, text[:cut]) + position_truth(kind, text[cut:]) for cut in cuts]
    assert cuts
    assert any(part != whole for part in parts)


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_leaves_the_ids_of_the_full_encode(kind: str) -> None:
    rng = random.Random(f"interior {kind}")
    firsts = 0
    for _ in range(20):
        text = random_text(rng, rng.choice((40, 3000, 9000, 14000)))
        rope = Rope(position_encoder(kind))
        rope.set(text)
        check(rope, kind, text)
        for _ in range(14):
            new = random_text(rng, rng.choice((0, 1, 3, 50, 900)))
            start, end = sorted((rng.randint(0, len(text)), rng.randint(0, len(text))))
            change = rng.choice(("append", "edit", "prune", "drop", "before", "seam", "truncate"))
            if change == "append":
                rope.append(new)
                text += new
            elif change == "edit":
                end = min(end, start + 30)
                rope.replace(start, end, new)
                text = text[:start] + new + text[end:]
            elif change == "prune":  # two changes in one text
                text = new + text[start:end] + new
                rope.set(text)
            elif change == "drop":  # whole chunks from the front: another one becomes the first
                at = rng.choice(rope._chars[:4])
                firsts += 0 < at < len(text)
                rope.replace(0, at, "") if rng.random() < 0.5 else rope.set(text[at:])
                text = text[at:]
            elif change == "before":  # the first chunk becomes an inner one
                new += rng.choice(("", "the", "the "))
                text = new + text
                rope.set(text)
            elif change == "seam":
                at = rng.choice(rope._chars)
                rope.replace(at, at, new)
                text = text[:at] + new + text[at:]
            else:
                start = max(0, len(text) - start)
                rope.truncate(start)
                text = text[:start]
            check(rope, kind, text)
    assert firsts > 3


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_first_chunk_is_encoded_again_when_another_becomes_the_first(kind: str) -> None:
    text = random_text(random.Random(kind), 30_000)
    rope = Rope(position_encoder(kind))
    rope.set(text)
    sizes = sizes_of(rope)
    assert rope.set(text[sizes[0] :]).scanned == sizes[1]
    check(rope, kind, text[sizes[0] :])
    assert rope.set("the" + text[sizes[0] :]).scanned == len("the") + sizes[1]
    check(rope, kind, "the" + text[sizes[0] :])
    assert rope.append(" fox").scanned <= len(" fox") + sizes_of(rope)[-1] + SMALL
    check(rope, kind, "the" + text[sizes[0] :] + " fox")
