"""The reading of patterns, against the engine."""

from __future__ import annotations

import random

import pytest

from tests.support.regex_oracle import Oracle, engine_matches, repeats_empty
from tests.support.split_cases import (
    ALL_SPLITS,
    broken_seams,
    certified_pairs,
    engine_split,
    one_stage,
    pieces_of,
    random_stage,
    strings,
)
from toktier.certificate.regex import Alt, Atom, Look, Repeat, Seq, parse, parse_string
from toktier.errors import Refusal

SHORT = strings("abC", 5)
TEXTS = strings("ab \n", 5)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"\p{N}{1,3}+", "1234567"),  # {n,m}+ repeats the group
        ("a{1}+", "aaa"),
        ("a{2}+", "aaaaa"),
        ("a{2}?b|.", "aab ab"),  # {n}? is an optional group
        ("a{1,2}?b|.", "aab"),
        ("a{,2}", "aaaaa"),
        ("a(?i)b|c", "ABabc aC"),  # the option reaches over the alternative
        ("(?i:a)b", "AbAB"),
        ("(?i)a(?-i:b)", "AbaB"),
        ("(?m:.)|b", "\nb"),
        (".", "\na"),
        ("a*+b|a", "aaab aa"),
        ("a?+a|b", "aaba"),
        ("(?>a|ab)c|b", "abcac"),
        ("a+?|b", "aab"),
        ("[a[^b]]", "abc"),
        ("[a-c&&[^b]]+", "abcab"),
        (r"[\]\[a]+", "]a["),
        (r"[[:alpha:]_]+", "a_:"),
        (r"\x{61}\x62\u0063", "abc"),
        (r"\p{^L}+", "a12b"),
        (r"\h+", "a1fg"),
        (r"\t|\n|\e|\a|\v|\f|\r", "\t\n\x1b\x07\x0b\x0c\r"),
        ("]a}", "]a}"),
        ("(?<n>a)(b)", "abab"),
        ("(?=a|b).", "abcab"),
        ("(?!(?i:A)).", "aAb"),
        (r"\s+(?!\S)|\s+", "a  b \n"),
        (r"\s+$", "a  \n b  "),  # the end of a line, also before the last line feed and behind it
        (r"a$|\n$|(?im:A$)", "a\na\r\nA\n"),
        (r"a\z|\n\z", "a\na\n"),
        (r"(?m:.)\z", "ab\n"),
        ("[$a]b|[$]|[b$]$", "$ab$b"),
        ("(?x) a + | [b ] # text | c\n|d", "aab  c d#ex"),  # a blank in a class is one; the comment ends with its line
        ("(?x) a+ + b | a", "aaab aa"),  # no possessive: a+ repeated
        ("(?x) a{2} ? b | .", "aab ab b"),
        ("a (?x: b \t\n\r\f c ) d|(?x:\\ |\\#)", "a bc d#"),  # \ and \# are characters
        ("(?x: a (?-x: b) c )+", "a bca bc"),
        ("(?x)a\x0bb|c", "a\x0bbab"),  # a vertical tab is a character
        ("a (?x) b | c", "a b a bc"),
        ("(?ix) a (?= B ) | b $ # end", "aAbB"),
        ("a(?#c)+|b(?# [ )(?#)", "aaab"),
    ],
)
def test_reads_as_the_engine(pattern: str, text: str) -> None:
    assert Oracle(parse(pattern), text).matches(text) == engine_matches(pattern, text)


def test_random_patterns_read_as_the_engine() -> None:
    rng = random.Random(11)
    for _ in range(200):
        pattern = random_stage(rng, 2)
        node = parse(pattern)
        if repeats_empty(node):  # how often an empty iteration is tried depends on how the engine unrolls the loop
            continue
        oracle = Oracle(node, "abC")
        for text in rng.sample(SHORT, 40):
            engine = engine_matches(pattern, text)
            assert oracle.matches(text) == engine, (pattern, text)


@pytest.mark.parametrize("pattern", [r"\s+$", "a$|[ab]", r"ab$|[\s\S]", r"[ab]++\z|a", "(?:a|$)b|b$", r"a+?$|\n$"])
def test_the_end_of_a_line_keeps_seams_away(pattern: str) -> None:
    """Lemma 1 where an end is read as a lookahead: every pair that is a cut, on all texts of up to five characters."""
    for behaviour, invert in ALL_SPLITS:
        pairs = certified_pairs(one_stage(pattern, behaviour, invert), "ab \n")
        pieces = pieces_of(engine_split(pattern, behaviour, invert))
        assert list(broken_seams(pairs, TEXTS, pieces)) == []
    assert ("b", "\n") in certified_pairs(one_stage("b$|\n"), "b\n")
    assert ("b", "a") not in certified_pairs(one_stage("b$|[ab]"), "ab")


@pytest.mark.parametrize(
    ("pattern", "construct", "at"),
    [
        ("a(?<=b)", "look-behind", 1),
        ("a(?<!b)", "look-behind", 1),
        ("^a", "anchor ^", 0),
        (r"a\Z", r"anchor \Z", 1),
        ("a$+", "quantified lookahead", 3),
        (r"a\b", "word boundary", 1),
        (r"\Aa", r"anchor \A", 0),
        (r"\Ga", r"anchor \G", 0),
        (r"(a)\1", "back-reference, numeric or control escape", 3),
        (r"(?<n>a)\k<n>", "back-reference", 7),
        (r"\R|a", r"escape \R", 0),
        (r"\X|a", r"escape \X", 0),
        (r"a\Kb", r"escape \K", 1),
        (r"\x41\xe9", "back-reference, numeric or control escape", 4),
        (r"\x{41 42}", "back-reference, numeric or control escape", 0),
        (r"\o{101}", "back-reference, numeric or control escape", 0),
        (r"\cA", "back-reference, numeric or control escape", 0),
        (r"\pL", r"escape \p", 0),
        ("xa(?=b(?!c))", "lookahead that is not one character", 2),
        ("a(?!bc)", "lookahead that is not one character", 1),
        ("a(?!b+)", "lookahead that is not one character", 1),
        ("a(?!)", "lookahead that is not one character", 1),
        ("a(?=b)+", "quantified lookahead", 7),
        ("(?~a)", "group (?~a", 0),
        ("(?(1)a)", "group (?(1", 0),
        ("(?#c", "group (?#c", 0),
        ("(?#\\))a", "group (?#\\", 0),
        ("(?x)( ?:a)", "quantifier without a target", 6),
        ("(?W:a)", "group option 'W'", 0),
        ("*a", "quantifier without a target", 0),
        ("a|+", "quantifier without a target", 2),
        ("a{2,1}", "interval with its bounds swapped", 1),
        ("a{x}", "brace that is no quantifier", 1),
        ("{1}", "brace that is no quantifier", 0),
        ("a{", "brace that is no quantifier", 1),
        ("[]a]", "unescaped ] at the start of a class", 1),
        ("[^]a]", "unescaped ] at the start of a class", 2),
        ("[a", "class without an end", 0),
        (r"[\N]", r"escape \N in a class", 1),
        ("(a", "group without an end", 0),
        ("a)", "unmatched ')'", 1),
        ("a" + "{2}" * 5, "deeply stacked quantifiers", 16),
        ("a\\", "backslash at the end", 1),
        ("(" * 200 + "a" + ")" * 200, "deeply nested groups", 101),
    ],
)
def test_refuses_by_name_and_place(pattern: str, construct: str, at: int) -> None:
    with pytest.raises(Refusal) as e:
        parse(pattern, "pre_tokenizer[1]")
    assert (e.value.construct, e.value.place) == (construct, f"pre_tokenizer[1], character {at}")


def test_tree() -> None:
    node = parse("a(?!b|[cd])|x{2}?")
    assert isinstance(node, Alt)
    left, right = node.branches
    assert isinstance(left, Seq)
    assert isinstance(left.items[1], Look)
    assert [a.text for a in left.items[1].atoms] == [r"\x{62}", "[cd]"]
    assert isinstance(right, Repeat)
    assert (right.low, right.high) == (0, 1)
    assert isinstance(right.body, Repeat)
    assert (right.body.low, right.body.high) == (2, 2)


def test_string_pattern_is_its_characters() -> None:
    node = parse_string("a.\n")
    assert isinstance(node, Seq)
    assert [i.literal for i in node.items if isinstance(i, Atom)] == ["a", ".", "\n"]
