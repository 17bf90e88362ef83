"""Splits as one machine, beside the engine: random patterns, rows of two splits, and what is refused."""

from __future__ import annotations

import itertools
import random

import pytest
from tokenizers import Regex, pre_tokenizers

from tests.support.regex_oracle import random_pattern
from tests.support.tokenizer_files import CACHE
from toktier.certificate.classes import ONIGURUMA, Probe
from toktier.certificate.follow import positions
from toktier.certificate.ops import Op, Prefix, Split
from toktier.certificate.regex import Dialect, parse
from toktier.certificate.stages import stages
from toktier.errors import Refusal
from toktier.gpu.splits import Splits, splits_of
from toktier.gpu.tables import splits_of_pattern
from toktier.gpu.transducer import starts

PROBE = Probe(CACHE)
ALPHABET = "abcx"


def split(pattern: str, behaviour: str = "Isolated", invert: bool = False) -> Split:
    node = parse(pattern, "test", Dialect.ONIGURUMA)
    return Split("test", pattern, node, positions(node, "test"), behaviour, invert)


def folded(pattern: str) -> Op:
    (op,) = stages({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}, PROBE)
    return op


def told(splits: Splits, text: str) -> list[int]:
    return starts(splits.machine, [int(splits.of_point[ord(c)]) for c in text])


def engine(patterns: list[str], text: str) -> list[int]:
    row = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])
    return [start for _, (start, _) in row.pre_tokenize_str(text)]


def texts(rng: random.Random) -> list[str]:
    return ["".join(rng.choices(ALPHABET, k=rng.randint(1, 14))) for _ in range(25)]


def test_random_patterns_are_told_as_the_engine_splits() -> None:
    rng = random.Random("transducer")
    accepted = 0
    for _ in range(160):
        pattern = random_pattern(rng, 2)
        if not ONIGURUMA.accepts(pattern):
            continue
        try:
            splits = splits_of([split(pattern)], PROBE)
        except Refusal:
            continue
        accepted += 1
        for text in texts(rng):
            assert told(splits, text) == engine([pattern], text), (pattern, text)
    assert accepted > 35


def test_rows_of_splits_are_told_as_the_engine_splits() -> None:
    rng = random.Random("rows")
    accepted = 0
    for _ in range(120):
        patterns = [rng.choice(("a+", "b{1,3}", "[ab]", "x", "c|b")), random_pattern(rng, 1)]
        if not ONIGURUMA.accepts(patterns[1]):
            continue
        try:
            splits = splits_of([split(p) for p in patterns], PROBE)
        except Refusal:
            continue
        accepted += 1
        for text in texts(rng):
            assert told(splits, text) == engine(patterns, text), (patterns, text)
    assert accepted > 30


def test_every_short_text_of_a_pattern_that_goes_back() -> None:
    pattern = "abc|a|x+"  # "ab" is tried for "abc" and given up
    splits = splits_of([split(pattern)], PROBE)
    for size in range(1, 7):
        for chars in itertools.product(ALPHABET, repeat=size):
            text = "".join(chars)
            assert told(splits, text) == engine([pattern], text)


@pytest.mark.parametrize(
    ("op", "construct"),
    [
        (split("a", "MergedWithNext"), "split behaviour MergedWithNext"),
        (split("a", "Removed"), "split behaviour Removed"),
        (split("a+", "Removed", invert=True), "text that no match covers and that is dropped"),
        (folded("(?i:ss)|a"), "case folding of several characters to one"),
        (split("(?>a|ab)c"), "atomic group of more than one repeated character"),
        (split("(?:ab)*+c|a"), "possessive repeat of more than one character"),
        (split("a{1,200}"), "repeat of more than 64 times"),
        (Prefix("test", "always"), "text put before pieces (always)"),
    ],
)
def test_what_has_no_rule_is_refused_by_name(op: Op, construct: str) -> None:
    with pytest.raises(Refusal) as refused:
        splits_of([op] if isinstance(op, Split) else [op, split("a")], PROBE)
    assert refused.value.construct == construct


def test_a_condition_on_a_match_under_way_is_refused() -> None:
    # while "a...ax" is tried for, single a are matches: how many there are is told only when it fails
    with pytest.raises(Refusal):
        splits_of([split("a+x|a")], PROBE)


def test_a_pattern_of_tiktoken_covers_every_text_or_is_refused() -> None:
    with pytest.raises(Refusal) as refused:
        splits_of_pattern(r"\p{L}+", PROBE)
    assert refused.value.construct == "text that no match covers and that is dropped"
