from __future__ import annotations

import random

import pytest

from toktier.campaign.minimise import escaped, smallest


@pytest.mark.parametrize("seed", range(20))
def test_no_character_can_be_left_out_of_what_is_found(seed: int) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choices("abcxyz ", k=300))
    wanted = "".join(rng.choices("abcxyz", k=3))

    def fails(candidate: str) -> bool:
        at = -1
        return all((at := candidate.find(c, at + 1)) >= 0 for c in wanted)

    if fails(text):
        assert smallest(text, fails) == wanted


def test_a_window_around_the_fault_is_tried_first() -> None:
    tried: list[str] = []

    def fails(candidate: str) -> bool:
        tried.append(candidate)
        return "ab" in candidate

    assert smallest("x" * 5000 + "ab" + "x" * 5000, fails, around=5001) == "ab"
    assert len(tried) < 10


def test_the_budget_bounds_what_is_tried() -> None:
    tried = 0

    def fails(candidate: str) -> bool:
        nonlocal tried
        tried += 1
        return candidate.count("a") > 90

    best = smallest("a" * 100 + "b" * 100, fails, budget=5)
    assert tried == 5
    assert best.count("a") > 90


def test_texts_are_shown_exactly_and_safely() -> None:
    assert escaped("a\\ \u00e9\n\U0001f600") == "a\\\\ \\u00e9\\u000a\\U0001f600"
    text = "\x1b[31m \\n \u202e\u0301"
    assert escaped(text).encode("ascii").decode("unicode_escape") == text
