"""Ropes over the small tokenizer, and what must hold of one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from tests.support.small_bpe import small_encoder, truth
from toktier.chunks import SMALL
from toktier.rope import Rope

WORDS = ["the", "quick", "brown", "fox", "over", "lazy", "shadow", "morning", "xyzzy", "12345", "ünïcödé", "漢字", "é"]


def text_of(rng: random.Random, words: Sequence[str], ends: Sequence[str], chars: int) -> str:
    """``chars`` characters: words, each with one of ``ends`` behind it."""
    out: list[str] = []
    size = 0
    while size < chars:
        out.append(rng.choice(words) + rng.choice(ends))
        size += len(out[-1])
    return "".join(out)[:chars]


def prose(seed: int, chars: int) -> str:
    return text_of(random.Random(seed), WORDS, [" ", " ", " ", "\n", "\n\n", "  "], chars)


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
