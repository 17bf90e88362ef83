from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from tests.support.campaigns import qwen
from toktier.campaign.texts import Texts
from toktier.certificate.classes import CODE_POINTS, SURROGATES
from toktier.certificate.table import Table

FAMILIES = ["pairs", "borders", "mixed", "literals", "unicode", "runs", "real", "mutated"]


def table(classes: dict[str, int], n: int) -> Table:
    of = np.zeros(CODE_POINTS, np.uint8)
    for character, k in classes.items():
        of[ord(character)] = k
    matrix = np.zeros((n, n), np.uint8)
    matrix[1, 2] = 1
    return Table(of, matrix, np.ones(n, np.bool_), None)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_text_is_a_function_of_its_case(family: str) -> None:
    draw = qwen().texts.families[family]
    texts = [draw(random.Random(f"case {k}")) for k in range(40)]
    assert texts == [draw(random.Random(f"case {k}")) for k in range(40)]
    assert len(set(texts)) > 30
    for text in texts:
        text.encode()  # no lone surrogates


def test_these_are_all_families() -> None:
    assert [*qwen().texts.families] == FAMILIES


def test_every_class_and_every_border_is_drawn() -> None:
    texts = qwen().texts
    rng = random.Random(0)
    assert {texts.class_of(texts.char(rng)) for _ in range(2000)} == set(texts.classes)
    for k in texts.classes:
        assert {texts.class_of(texts.char(rng, k)) for _ in range(20)} == {k}


def test_borders_are_the_ends_of_runs() -> None:
    texts = Texts(table({"a": 1, "b": 1, "c": 1, "x": 2}, 3), [], [])
    rng = random.Random(1)
    drawn = {texts.border(rng) for _ in range(500)}
    assert {"a", "c", "x", "d", "y", "w", "`"} <= drawn
    assert "b" not in drawn
    assert not any(ord(c) in SURROGATES for c in drawn)


def test_certified_pairs_stand_side_by_side() -> None:
    texts = Texts(table({"a": 1, "x": 2}, 3), [], [])
    assert texts.pairs == [(1, 2)]
    assert texts.families["pairs"](random.Random(0)).count("ax") >= 6


def test_literals_come_whole_and_in_part() -> None:
    texts = qwen().texts
    rng = random.Random(2)
    seen = Counter(texts.fragment(rng) in texts.literals for _ in range(400))
    assert seen[True] > 100
    assert seen[False] > 50


def test_long_texts_have_the_length_asked_for_and_hold_real_text() -> None:
    text = qwen().texts.long(random.Random(3), 20_000)
    assert len(text) == 20_000
    assert any(qwen().texts.real[0][k : k + 40] in text for k in range(0, 400, 40))


def test_a_source_without_pairs_literals_or_real_text_still_draws() -> None:
    texts = Texts(Table(np.zeros(CODE_POINTS, np.uint8), np.zeros((1, 1), np.uint8), np.ones(1, np.bool_)), [], [])
    for draw in texts.families.values():
        assert draw(random.Random(0))
