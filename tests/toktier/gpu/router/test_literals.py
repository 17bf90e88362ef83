"""Literals in bytes, beside a search that takes one place after the other."""

from __future__ import annotations

import random

import numpy as np
import pytest

from toktier.gpu.router import literals
from toktier.gpu.router.literals import Finder, TooMany


def slow(known: dict[bytes, int], text: bytes) -> list[tuple[int, int, int]]:
    """Leftmost-longest, by trying."""
    found, at = [], 0
    while at < len(text):
        fits = [literal for literal in known if text.startswith(literal, at)]
        if fits:
            longest = max(fits, key=len)
            found.append((at, len(longest), known[longest]))
            at += len(longest)
        else:
            at += 1
    return found


def fast(finder: Finder, text: bytes) -> list[tuple[int, int, int]]:
    found = finder.find(np.frombuffer(bytearray(text), np.uint8))
    return list(zip(found.starts.tolist(), found.lengths.tolist(), found.ids.tolist(), strict=True))


def test_matches_are_those_of_the_slow_search() -> None:
    rng = random.Random(5)
    seen = 0
    for _ in range(600):
        alphabet = rng.choice(("ab", "<|a>", "<[ab\u00e9\uff5c", "abcdefgh"))
        count = rng.choice((1, 2, 5, 40))
        words = {"".join(rng.choices(alphabet, k=rng.choice((1, 2, 3, 5, 8, 9, 14)))) for _ in range(count)}
        known = {word.encode(): k for k, word in enumerate(sorted(words))}
        parts = [rng.choice((*words, "".join(rng.choices(alphabet, k=3)))) for _ in range(rng.randint(0, 12))]
        text = "".join(parts).encode()[: rng.choice((400, 400, 7))]
        found = fast(Finder(known), text)
        assert found == slow(known, text), (known, text)
        seen += len(found)
    assert seen > 2000


def test_a_literal_at_the_very_end_and_one_that_is_cut_off_there() -> None:
    finder = Finder({b"<|im_end|>": 7, b"<s>": 8})
    assert fast(finder, b"a<|im_end|>") == [(1, 10, 7)]
    assert fast(finder, b"a<|im_end|") == []
    assert fast(finder, b"<s><s") == [(0, 3, 8)]
    assert fast(finder, b"") == []


def test_without_literals_nothing_is_found() -> None:
    finder = Finder({})
    assert not finder
    assert fast(finder, b"<|im_end|>") == []


def test_too_many_candidates_are_refused_and_look_alikes_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(literals, "MOST", 100)
    finder = Finder({b"<|im_end|>": 7})
    assert fast(finder, b"<|im_ends" * 50 + b"<|im_" * 500) == []
    with pytest.raises(TooMany):
        fast(finder, b"<|im_end|>" * 101)
