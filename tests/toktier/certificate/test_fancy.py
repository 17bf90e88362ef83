"""The reading of patterns in the fancy dialect, against tiktoken."""

from __future__ import annotations

import random
from itertools import product

import numpy as np
import pytest
import tiktoken

from tests.support.regex_oracle import Oracle, nullable, random_pattern, repeats_empty, tiktoken_matches
from toktier.certificate.classes import FANCY, Probe, all_code_points, members
from toktier.certificate.follow import positions, stage_rule
from toktier.certificate.regex import POSSESSIVE, Dialect, Look, Node, Repeat, Seq, parse
from toktier.errors import Refusal
from toktier.rank_files import BYTE_RANKS

SHORT = ["".join(t) for n in range(1, 7) for t in product("abC", repeat=n)]


def fancy(pattern: str) -> Node:
    return parse(pattern, "pattern", Dialect.FANCY)


def told(pattern: str, text: str) -> list[str]:
    matches = Oracle(fancy(pattern), text, FANCY).matches(text)
    return [text[a:b] for a, b in matches]


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        (r"\p{N}{1,3}+", "1234567", ["123", "456", "7"]),  # possessive, not a repeated group
        ("a{2}+", "aaaaa", ["aa", "aa"]),
        ("a{1,2}+a|b", "aaab", ["aaa", "b"]),
        ("a{1,2}+a|a", "aa", ["a", "a"]),  # two are taken and none is given back
        ("a{2}?b|c", "aab ab b c", ["aab", "c"]),  # lazy, not an optional group
        ("a{1,3}?b?", "aaab", ["a", "a", "ab"]),
        ("a{,2}b", "b ab aab aaab", ["b", "ab", "aab", "aab"]),
        ("a{2,}", "a aa aaa", ["aa", "aaa"]),
        ("a(?i)b|c", "aB AB C c Ab", ["aB", "C", "c"]),  # holds in the next alternative, which stays one
        ("(?:a(?i)b|c)d|C", "aBd Cd CD C", ["aBd", "Cd", "C", "C"]),  # d and the last C stand outside the group
        ("(?i:a(?-i)b|c)d", "abd Abd ABd Cd cd", ["abd", "Abd", "cd"]),
        ("(?:(?i)a)b", "Ab AB", ["Ab"]),
        ("(?i-s)a", "aA", ["a", "A"]),
        (".", "\na\r", ["a", "\r"]),
        ("(?s:.)", "\na", ["\n", "a"]),
        ("(?s).(?-s).", "\na\n\n", ["\na"]),
        ("(?is:a.)", "A\n", ["A\n"]),
        ("a$", "aba", ["a"]),
        ("a$", "a\n", []),  # the very end only
        (r"a\z|b", "aba", ["b", "a"]),
        (r"\s++$|\s+(?!\S)|\s", "  a   b  \n", [" ", " ", "  ", " ", "  \n"]),
        (r"\s++$|x", "  a  ", ["  "]),
        ("a*+b|a", "aaab aa", ["aaab", "a", "a"]),
        ("a?+a|b", "aaba", ["aa", "b"]),
        ("(?>a|ab)c|b", "abcac", ["b", "ac"]),
        ("[a[^b]]+", "abc", ["a", "c"]),
        ("[a-c&&[^b]]+", "abca", ["a", "ca"]),
        ("[a-d--b]+", "abcd-", ["a", "cd"]),
        ("[a-c~~b-d]+", "abcd~", ["a", "d"]),
        (r"[\]\[a]+", "]a[", ["]a["]),
        (r"[[:alpha:]_]+", "a_:é", ["a_"]),  # POSIX classes are ASCII
        (r"[[:^alpha:]]+", "a1é", ["1é"]),
        (r"[\x{41}-\u{43}]+", "ABCD", ["ABC"]),
        (r"[a\-b]+", "a-b", ["a-b"]),
        (r"\x41\xe9\x{e9}\u00e9\u{e9}\U000000e9\U{e9}", "Aéééééé", ["Aéééééé"]),
        (r"\pL+", "a12é", ["a", "é"]),
        (r"\p{^L}+|\PN", "a12é", ["a", "12", "é"]),
        (r"\p{Script=Han}+|\p{gc=Lu}", "中aA", ["中", "A"]),
        (r"\h+", "1aFg", ["1aF"]),
        (r"\N+", "a\nb", ["a", "b"]),
        (r"\O+", "a\nb", ["a\nb"]),
        (r"\t|\n|\e|\a|\v|\f|\r", "\t\n\x1b\x07\x0b\x0c\r", ["\t", "\n", "\x1b", "\x07", "\x0b", "\x0c", "\r"]),
        (r"\ \-\"\'\_\@\/", " -\"'_@/", [" -\"'_@/"]),
        ("]a}", "]a}", ["]a}"]),
        ("(?<n>a)(?P<m>b)(?'o'c)(d)", "abcd", ["abcd"]),
        ("(?=a|b).", "abcab", ["a", "b", "a", "b"]),
        ("(?!(?i:A)).", "aAb", ["b"]),
        ("a(?:)b()c", "abc", ["abc"]),
        ("(?x) a + | b c # text | d\n|e", "aabc d b ce", ["aa", "bc", "e"]),
        ("a (?x: b \t\n\r c ) d|(?x:\\ |\\#)", "a bc d #", ["a bc d", " ", "#"]),
        ("(?:a (?x) b | c)d", "a bd a b d cd", ["a bd", "cd"]),
        ("(?x: a (?-x: b) c )+", "a bca bc", ["a bca bc"]),
        ("(?ix) a (?= B ) | b $ # end", "aAbB", ["A", "B"]),
        ("(?x) a (?! b ) | [ab]", "aab", ["a", "a", "b"]),
        ("a(?#c)+|b(?# [ )(?#)", "aaab", ["aaa", "b"]),
    ],
)
def test_reads_as_tiktoken(pattern: str, text: str, matches: list[str]) -> None:
    assert tiktoken_matches(pattern, text) == matches
    assert told(pattern, text) == matches


@pytest.mark.slow
def test_random_patterns_read_as_tiktoken() -> None:
    rng = random.Random(7)
    tried = 0
    refused = set()
    for _ in range(600):
        pattern = random_pattern(rng, 2)
        try:
            node = fancy(pattern)
        except Refusal as refusal:
            refused.add(refusal.construct)
            continue
        if nullable(node) or repeats_empty(node):  # an empty match has no token: tiktoken panics
            continue
        tried += 1
        for text in rng.sample(SHORT, 12):
            matches = Oracle(node, "abC", FANCY).matches(text)
            assert [text[a:b] for a, b in matches] == tiktoken_matches(pattern, text), (pattern, text)
    assert tried > 200
    assert refused <= {"quantified lookahead or anchor", "option that holds behind its group"}


def transparent(pattern: str) -> set[tuple[str, str]]:
    """Pairs of "abC" at which lemma 1 has the matches of the sides as those of the whole."""
    node = fancy(pattern)
    p = positions(node, "pattern")
    holds = np.array([[FANCY.matched(a.text, "abC")[ord(c)] for c in "abC"] for a in p.atoms])
    rule = stage_rule(node, p, holds, holds, "Removed", invert=True)
    return {("abC"[i], "abC"[j]) for i, j in np.argwhere(rule.strict)}


def test_lemma_1_holds_for_tiktoken() -> None:
    """Random patterns, many with an end in them, on all texts of up to five letters: every pair that is a cut."""
    rng = random.Random(3)
    texts = [t for t in SHORT if len(t) <= 5]
    vocabulary = {text.encode(): 256 + k for k, text in enumerate(t for t in SHORT if len(t) > 1)}
    patterns = seams = 0
    while patterns < 120:
        pattern = random_pattern(rng, 2) + rng.choice(("", "", "|a$", "|b+$|b", r"|[ab]++\z|C", "$|a", "(?:b|$)"))
        try:
            pairs = transparent(pattern)
        except Refusal:
            continue
        patterns += 1
        ranks = BYTE_RANKS | vocabulary
        encoding = tiktoken.Encoding("test", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
        told = {text: encoding.encode(text, disallowed_special=()) for text in texts}
        for text in texts:
            for i in range(1, len(text)):
                if (text[i - 1], text[i]) in pairs:
                    seams += 1
                    assert told[text] == told[text[:i]] + told[text[i:]], (pattern, text, i)
    assert seams > 10_000


@pytest.mark.parametrize("pattern", ["aa$|[ab]", r"aa\z|[ab]", "aa(?!b)|[ab]"])
def test_why_an_end_keeps_seams_away(pattern: str) -> None:
    """Condition (ii): what is asked for right after a must not tell b from the end."""
    assert tiktoken_matches(pattern, "aa") == ["aa"]
    assert tiktoken_matches(pattern, "aab") == ["a", "a", "b"]
    assert ("a", "b") not in transparent(pattern)
    assert ("b", "a") in transparent(pattern)


@pytest.mark.parametrize(
    ("pattern", "construct", "at"),
    [
        ("a(?<=b)", "look-behind", 1),
        ("^a", "anchor ^", 0),
        (r"a\Z", r"anchor \Z", 1),
        (r"\Aa", r"anchor \A", 0),
        (r"\Ga", r"anchor \G", 0),
        (r"a\b", "word boundary", 1),
        (r"\b{start}a", "word boundary", 0),
        (r"\<a", r"escape \<", 0),
        (r"a\>", r"escape \>", 1),
        (r"(a)\1", "back-reference, numeric or control escape", 3),
        (r"(?<n>a)\k<n>", "back-reference", 7),
        ("(?<n>a)(?P=n)", "group (?P=", 7),
        (r"\R|a", r"escape \R", 0),
        (r"\X|a", r"escape \X", 0),
        (r"a\Kb", r"escape \K", 1),
        ("(?m)a$", "group option 'm'", 0),
        ("(?x)[a b]", "blank or # in a class under (?x)", 4),
        ("(?x)[a#]", "blank or # in a class under (?x)", 4),
        ("(?x)a\x0b", "white space that the two crates read in two ways", 5),
        ("(?x) a+ +", "stacked quantifiers", 8),
        ("(?x) a+ ?", "stacked quantifiers", 8),
        ("(?U)a+", "group option 'U'", 0),
        ("(?u)a", "group option 'u'", 0),
        ("(?R)a", "group option 'R'", 0),
        ("(?~a)", "group (?~a", 0),
        ("(?(1)a)", "group (?(1", 0),
        ("(?#c", "group (?#c", 0),
        ("a**", "stacked quantifiers", 2),
        ("a+?+", "stacked quantifiers", 3),
        ("a{2}{3}", "stacked quantifiers", 4),  # to tiktoken, {3} is text here
        ("$*a", "quantified lookahead or anchor", 2),
        ("(?=a)+a", "quantified lookahead or anchor", 6),
        ("((?i)a)b", "option that holds behind its group", 1),
        ("(?>(?i)a)b", "option that holds behind its group", 3),
        ("(?=(?i)a)b", "option that holds behind its group", 3),
        ("(?:(?<n>(?i)a)b)c", "option that holds behind its group", 8),
        ("a(?=$)", "lookahead that is not one character", 1),
        ("a(?!bc)", "lookahead that is not one character", 1),
        ("a{x}", "brace that is no quantifier", 1),
        ("[]a]", "unescaped ] at the start of a class", 1),
        ("a)", "unmatched ')'", 1),
    ],
)
def test_refuses_by_name_and_place(pattern: str, construct: str, at: int) -> None:
    with pytest.raises(Refusal) as e:
        parse(pattern, "pat_str", Dialect.FANCY)
    assert (e.value.construct, e.value.place) == (construct, f"pat_str, character {at}")


def test_an_option_holds_behind_a_group() -> None:
    """Why it is refused: ``(?:(?i)a)b`` does not match this."""
    assert tiktoken_matches("((?i)a)b", "AB") == ["AB"]
    assert tiktoken_matches("(?:(?i)a)b", "AB") == []


def test_the_end_is_a_negative_lookahead_of_any_character() -> None:
    node = fancy(r"\s++$")
    assert isinstance(node, Seq)
    blank, end = node.items
    assert isinstance(blank, Repeat)
    assert blank.kind == POSSESSIVE
    assert isinstance(end, Look)
    assert end.negative
    every = Probe(engine=FANCY).atoms(end.atoms)[0]
    assert len(members(every)) == 0x110000 - 0x800


def test_case_is_folded_one_to_one() -> None:
    """No single character is matched by several of a pattern, or matches several: there is nothing for `fold` to do."""
    every = all_code_points()
    apart = "\n".join(every)
    runs = "ss|ff|fi|fl|ffi|ffl|st|\u02bcn|i\u0307|\u03b9\u0308\u0301"
    assert not FANCY.matched(f"(?i:{runs})", apart).any()
    expanding = [c for c in map(chr, range(0x250)) if len(c.casefold()) > 1] + ["\ufb00", "\ufb05", "\u1e9e"]
    for char in expanding:
        held = np.flatnonzero(FANCY.matched(f"(?i:{char})", every))
        assert ord(char) in held
        assert told(f"(?i:{char})", f"ss{char}st") == tiktoken_matches(f"(?i:{char})", f"ss{char}st") == [char]
    assert "".join(map(chr, np.flatnonzero(FANCY.matched("(?i:[sk])", every)))) == "KSks\u017f\u212a"
    atoms = fancy("(?i:ss)")
    assert isinstance(atoms, Seq)
    assert all(a.unfolded is None for a in atoms.items)  # type: ignore[union-attr]
