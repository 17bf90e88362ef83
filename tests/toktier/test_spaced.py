"""Cuts at even distances, beside a search that asks place after place."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.small_bpe import SpaceRule
from toktier import spaced
from toktier.spaced import WINDOWS, spaced_cuts

WINDOW = WINDOWS[-1]


class NextRule(SpaceRule):
    """A cut before "a" where the character after that is no mark, as under a composing normalizer."""

    def is_cut(self, text: str, i: int) -> bool:
        return text[i] == "a" and text[i - 1] != "c" and i + 1 < len(text) and text[i + 1] != "~"


def slow(rule: SpaceRule, text: str, first: int, stop: int, step: int) -> list[int]:
    found = []
    for place in range(first, stop, step):
        found += [at for at in range(place, place + WINDOW) if rule.is_cut(text, at)][:1]
    return found


@pytest.mark.parametrize("rule", [SpaceRule(), NextRule()])
def test_the_first_cut_of_each_window(rule: SpaceRule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spaced, "_AT_ONCE", 7)
    rng = random.Random(4)
    seen = 0
    for _ in range(60):
        text = "".join(rng.choice(("a", "a~", "ca", "b" * rng.choice((1, 5, 70, 600)), " ")) for _ in range(1500))
        step = rng.choice((WINDOW + 3, 600, 900))
        first, stop = rng.randint(1, 40), len(text) - WINDOW - 2
        cuts = spaced_cuts(rule, text, first, stop, step)
        assert cuts == slow(rule, text, first, stop, step)
        seen += len(cuts)
    assert seen > 300


def test_nothing_is_asked_where_there_is_no_place() -> None:
    class Silent(SpaceRule):
        def cuts(self, text: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
            raise AssertionError("asked")

    assert spaced_cuts(Silent(), "a b " * 50, 90, 90, 40) == []
