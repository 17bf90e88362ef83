"""Lemma 1: each condition by the counter-example that shows why it is needed, and a worked example."""

from __future__ import annotations

import pytest

from tests.support.split_cases import (
    ALL_SPLITS,
    broken_seams,
    certified_pairs,
    engine_split,
    one_stage,
    pieces_of,
    strings,
)
from toktier.errors import Refusal


def is_certified(pattern: str, a: str, b: str, behaviour: str = "Isolated", invert: bool = False) -> bool:
    return (a, b) in certified_pairs(one_stage(pattern, behaviour, invert), "".join(dict.fromkeys(a + b)))


@pytest.mark.parametrize(
    ("pattern", "left", "right", "behaviour", "invert"),
    [
        ("b(?!a)", "ab", "a", "Isolated", False),  # a is matched alone, but only through a lookahead
        ("a{2}", "a", "b", "Isolated", False),  # lower bound of two
        ("b*+b", "a", "b", "Isolated", False),  # possessive skip: b is never matched alone
        ("(?>b?)b", "a", "b", "Isolated", False),  # the same, atomic
        ("a", "b", "a", "MergedWithPrevious", False),
        ("a", "a", "b", "MergedWithPrevious", True),
        ("a", "a", "b", "MergedWithNext", False),
        ("a", "b", "a", "MergedWithNext", True),
        ("a", "a", "a", "Contiguous", False),
        ("c", "a", "b", "Isolated", False),  # neither is ever matched: one gap
        ("ab", "a", "b", "Isolated", False),  # (i)
        ("a+", "a", "a", "Isolated", False),  # (i), a loop
        ("a{1}+", "a", "a", "Isolated", False),  # {n,m}+ repeats the group
        (r"\p{N}{1,3}+", "1", "2", "Isolated", False),
        ("a(?!b)|a|b", "a", "b", "Removed", True),  # (ii); here only the list of matches would show it
        ("xa(?=b)|x|a|b", "xa", "b", "Isolated", False),  # (ii): [xa][b] against [x][a] [b]
    ],
)
def test_counter_examples(pattern: str, left: str, right: str, behaviour: str, invert: bool) -> None:
    assert not is_certified(pattern, left[-1], right[0], behaviour, invert)


@pytest.mark.parametrize(
    ("pattern", "left", "right", "behaviour"),
    [
        ("b(?!a)", "ab", "a", "Isolated"),
        ("a{2}", "a", "b", "Isolated"),
        ("b*+b", "a", "b", "Isolated"),
        ("a", "b", "a", "MergedWithPrevious"),
        ("a", "a", "b", "MergedWithNext"),
        ("a", "a", "a", "Contiguous"),
        ("a{1}+", "a", "a", "Isolated"),
        (r"\p{N}{1,3}+", "123", "4567", "Isolated"),
        ("xa(?=b)|x|a|b", "xa", "b", "Isolated"),
    ],
)
def test_the_counter_examples_are_real(pattern: str, left: str, right: str, behaviour: str) -> None:
    pieces = pieces_of(engine_split(pattern, behaviour))
    assert pieces(left + right) != pieces(left) + pieces(right)


def test_worked_example() -> None:
    """As in docs/proof.md: a word may take one space before it, so "b " is a cut and " b" is none."""
    pattern = r" ?[a-c]+|\s+(?!\S)|\s"
    assert is_certified(pattern, "b", " ")
    assert not is_certified(pattern, " ", "b")
    assert not is_certified(pattern, " ", " ")
    pieces = pieces_of(engine_split(pattern))
    assert pieces("ab  ba ") == ["ab", " ", " ba", " "]


def test_what_keeps_cuts() -> None:
    """Constructs that do not weaken cov: optional neighbours, possessive ones that cannot begin with c."""
    assert is_certified("[^ab]?+a++|b", "b", "a")
    assert is_certified(r"(?!b)a|b", "b", "a")
    assert is_certified("(?>a)|b", "a", "b")
    assert is_certified("a{1,3}b*+", "b", "a")


@pytest.mark.parametrize("pattern", ["a*", "a?|b", "", "(?=a)", "(a|)", "a{0}", "a{2}?", "a*+", "(?>a*)"])
def test_nullable_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(Refusal, match="empty string"):
        one_stage(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a|b+", "a+(?!b)|b", "(?:ab)+|c", "a?b|c", "b*+a|b", "(?>ab?)|c", "a+?b|b", "(?i:c)a|b", "a{2}|b", "a(?=b|c)|b"],
)
def test_all_behaviours_by_brute_force(pattern: str) -> None:
    texts = strings("abC", 6)
    for behaviour, invert in ALL_SPLITS:
        pairs = certified_pairs(one_stage(pattern, behaviour, invert), "abC")
        assert not list(broken_seams(pairs, texts, pieces_of(engine_split(pattern, behaviour, invert))))
