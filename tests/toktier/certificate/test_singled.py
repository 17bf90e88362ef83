"""Tables without what literals forbid: against the plain reading of the rule, pair by pair."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import normalizers

from toktier.certificate import singled
from toktier.certificate.charmaps import byte_level
from toktier.certificate.classes import CODE_POINTS, flips_of, flips_of_points, partition
from toktier.certificate.images import NO_SEAM, identity
from toktier.certificate.literals import Literal, LiteralRule, literal_rule
from toktier.certificate.singled import Pass, without_literals
from toktier.certificate.table import NO
from toktier.errors import Refusal

CHARS = range(40)


def random_pass(rng: random.Random, *, raw: bool) -> Pass:
    left, right = identity(), identity()
    if not raw:
        for image in (left, right):
            for c in CHARS:
                image[c] = rng.choice((c, c, rng.choice(CHARS), NO_SEAM))

    def some(odds: float) -> set[int]:
        return {c for c in CHARS if rng.random() < odds}

    rule = LiteralRule(
        pairs={(rng.choice(CHARS), rng.choice(CHARS)) for _ in range(rng.choice((0, 3, 20)))},
        never_left=some(0.05),
        never_right=some(0.05),
        before_space=some(0.05),
        after_space=some(0.05),
    )
    return Pass(rule, left, right, flips_of_points(some(0.2)), flips_of_points(some(0.2)))


def forbidden(one: Pass, a: int, b: int) -> bool:
    x, y = int(one.left[a]), int(one.right[b])
    rule = one.rule
    space_a = bool(np.searchsorted(one.space_left, a, side="right") & 1)
    space_b = bool(np.searchsorted(one.space_right, b, side="right") & 1)
    return (
        (x, y) in rule.pairs
        or x in rule.never_left
        or y in rule.never_right
        or (x in rule.before_space and space_b)
        or (y in rule.after_space and space_a)
    )


@pytest.mark.parametrize("seed", range(12))
def test_every_pair_is_as_the_rule_says(seed: int) -> None:
    rng = random.Random(seed)
    passes = (random_pass(rng, raw=True), random_pass(rng, raw=False))
    sets = [flips_of_points({c for c in CHARS if rng.random() < 0.3}) for _ in range(3)]
    classes, _ = partition([*sets, *(flips for one in passes for flips in (one.space_left, one.space_right))])
    n = int(classes.max()) + 1
    given = np.random.default_rng(seed)
    matrix = given.integers(0, 3, (n, n)).astype(np.uint8)
    boundary = given.random(n) < 0.5
    table = without_literals(classes, matrix, boundary, None, passes)
    for a in CHARS:
        assert table.boundary[table.classes[a]] == boundary[classes[a]]
        for b in CHARS:
            told = table.matrix[table.classes[a], table.classes[b]]
            gone = any(forbidden(one, a, b) for one in passes)
            assert told == (NO if gone else matrix[classes[a], classes[b]]), (a, b)
    assert len(table.matrix) <= n + len(CHARS)


def test_what_is_seen_alike_stays_together() -> None:
    """Under ByteLevel a literal's last byte is that of every 64th code point."""
    normalize = normalizers.ByteLevel().normalize_str
    step = byte_level("normalizer")
    rule = literal_rule([Literal("\u00e9!", normalized=True, single_word=True)], normalize)
    every = flips_of(np.ones(CODE_POINTS, np.bool_))
    one = Pass(rule, step.tail.last(), step.head.first(), every[:0], every[:0])
    classes, _ = partition([every])
    table = without_literals(classes, np.ones((1, 1), np.uint8), np.ones(1, np.bool_), None, [one])
    assert len(table.matrix) < 8
    kinds = [int(table.matrix[table.classes[ord(a)], table.classes[ord("x")]]) for a in "x!\u00e9\u0129\u4e2d"]
    assert kinds == [1, 0, 1, 1, 1]


def test_many_literals() -> None:
    """A vocabulary extended by ten thousand characters of their own."""
    rule = literal_rule([Literal(chr(0x4E00 + i) + "x") for i in range(10_000)], str)
    classes, _ = partition([flips_of_points([ord("x")])])
    one = Pass(rule, identity(), identity(), classes[:0].astype(np.uint32), classes[:0].astype(np.uint32))
    table = without_literals(classes, np.ones((2, 2), np.uint8), np.ones(2, np.bool_), None, [one])
    assert len(table.matrix) == 3
    assert table.matrix[table.classes[0x4E00], table.classes[ord("x")]] == NO


def test_very_many_classes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(singled, "MOST_CLASSES", 50)
    rule = literal_rule([Literal(chr(0x4E00 + 2 * i) + chr(0x4E01 + 2 * i)) for i in range(60)], str)
    classes, _ = partition([])
    one = Pass(rule, identity(), identity(), classes[:0].astype(np.uint32), classes[:0].astype(np.uint32))
    with pytest.raises(Refusal, match="more than 50 character classes"):
        without_literals(classes, np.ones((1, 1), np.uint8), np.ones(1, np.bool_), None, [one])
