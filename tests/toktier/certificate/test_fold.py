"""Case folds that match one code point by several, or several by one."""

from __future__ import annotations

import random
import unicodedata

import pytest

from tests.support.op_cases import broken_seams, certified_pairs, engine_of
from tests.support.regex_oracle import engine_matches
from tests.support.split_cases import BEHAVIOURS, split_spec
from tests.support.tokenizers_data import shared_cache
from toktier.certificate.classes import Probe, members
from toktier.certificate.fold import fold_strings, widened
from toktier.certificate.follow import positions
from toktier.certificate.regex import parse
from toktier.certificate.stages import stages
from toktier.errors import Refusal

ALPHABET = "sSßtﬆfiﬁx j\u030cǰıİ\u0307ſ1é"
GPT2_IN_ANY_CASE = r"(?i)'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def pairs_of(pattern: str, probe: Probe, alphabet: str = ALPHABET) -> set[str]:
    return {a + b for a, b in certified_pairs(stages(split_spec(pattern), probe), alphabet)}


def test_strings_are_all_of_unicodes(probe: Probe) -> None:
    """The candidates are complete: Python's data, which the product does not use, has no other full folds."""
    folds = {chr(c): chr(c).casefold() for c in range(0x110000) if len(chr(c).casefold()) > 1}
    fold_strings(probe)
    sources = {chr(c) for c in members(probe.cached("long folds", dict))}
    assert sources == set(folds)
    assert all(unicodedata.category(c)[0] == "L" for c in sources)
    strings = {"".join(c.casefold() for c in s) for s in fold_strings(probe)}
    assert strings == set(folds.values())


@pytest.mark.parametrize(
    ("pattern", "text", "match"),
    [
        ("(?i:ß)", "ss", "ss"),
        ("(?i:[ß])", "sS", "sS"),
        (r"(?i:[\p{L}])x", "j\u030cx", "j\u030cx"),
        (r"(?i:\p{L})x", "j\u030cx", None),  # a property by itself is not opened
        ("(?i:[^1])x", "ssx", "sx"),  # nor is a negated class
        ("(?i:[[^1]])x", "ssx", "ssx"),  # but one inside another
        ("(?i:ss)", "ß", "ß"),
        ("(?i:s(?:s))", "ß", "ß"),  # across a group
        ("(?i:s[s])", "ß", None),
    ],
)
def test_what_the_engine_does(pattern: str, text: str, match: str | None) -> None:
    assert [text[a:b] for a, b in engine_matches(pattern, text)] == ([match] if match else [])


@pytest.mark.parametrize(
    ("pattern", "left", "right"),
    [
        ("(?i:ss)x|x", "ß", "x"),  # a run may match one code point
        ("(?i:s(?:s))x|x", "ß", "x"),
        ("(?i:fi)x|x", "ﬁ", "x"),
        ("(?i:ß)|s", "s", "s"),  # an atom may match a string
        ("(?i:[ß])|s", "s", "s"),
        (r"(?i:[\p{L}])1|\p{L}|\u030c|1", "j", "\u030c1"),
    ],
)
def test_counter_examples(pattern: str, left: str, right: str, probe: Probe) -> None:
    """Of lemma 1 read as if case were nothing: the pieces of the whole are not those of the sides."""
    text = left + right
    whole = engine_matches(pattern, text)
    sides = engine_matches(pattern, left) + [(a + len(left), b + len(left)) for a, b in engine_matches(pattern, right)]
    assert whole != sides
    assert left[-1] + right[0] not in pairs_of(pattern, probe)


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        ("(?i:(?:ss)+)", "case fold of several characters across a group or a repeat"),
        ("(?i:(?:s|t)s)", "case fold of several characters across a group or a repeat"),
        ("(?i)s{2}|x", "case fold of several characters across a group or a repeat"),
        ("(?i:straße)", "case fold of several characters beside another letter"),
        ("(?i)(?!ß).", "lookahead at a case fold of several characters"),
    ],
)
def test_refusals(pattern: str, construct: str, probe: Probe) -> None:
    with pytest.raises(Refusal) as e:
        widened(parse(pattern, "here"), probe, "here")
    assert e.value.construct == construct
    assert e.value.place.startswith("here, character ")


@pytest.mark.parametrize(
    "pattern",
    ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", "['’](?i:[sdmt]|ll|ve|re)", "ss|ß", r"(?i:\s+|'d)", r"(?i)(?!\p{L})x", "(?i)да"],
)
def test_nothing_is_added_where_nothing_folds_to_more(pattern: str, probe: Probe) -> None:
    node = parse(pattern)
    assert positions(widened(node, probe, "p"), "p").follow == positions(node, "p").follow


def test_a_pattern_that_ignores_case_altogether(probe: Probe) -> None:
    alphabet = "aSßﬆ 1.'\n\u030c中"
    plain, folded = (pairs_of(p, probe, alphabet) for p in (GPT2_IN_ANY_CASE.removeprefix("(?i)"), GPT2_IN_ANY_CASE))
    assert {"a ", "ß ", "a1", "1a", "a.", "中1", "a\u030c"} <= folded
    assert plain - folded == {"'S"}  # now a contraction, too
    assert folded < plain
    opened = pairs_of(GPT2_IN_ANY_CASE.replace(r"\p{L}+", r"[\p{L}]+"), probe, alphabet)
    lost = folded - opened
    assert "a\u030c" in lost  # a may begin a string, U+030C may end one
    assert all("\u030c" in pair for pair in lost)
    assert {"a ", "ß ", "a1", "1a", "a."} <= opened


ATOMS = ("s", "t", "f", "i", "ß", "ﬆ", "x", "[s]", "[ß]", "[st]", "[^s]", "[^ß]", r"\p{L}", r"[\p{L}]", "j", "[ǰ]",
         "İ", "\u030c", r"\p{Lu}", "[[^s]]", "1", r"\s")  # fmt: skip
QUANTIFIERS = ("",) * 7 + ("+", "?", "++", "?+", "+?", "{1,2}")


def random_pattern(rng: random.Random, depth: int = 1) -> str:
    def item() -> str:
        if depth and rng.random() < 0.2:
            group = rng.choice(("(?:{})", "({})", "(?>{})", "(?-i:{})"))
            return group.format(random_pattern(rng, depth - 1)) + rng.choice(QUANTIFIERS)
        if rng.random() < 0.08:
            return rng.choice(("(?!{})", "(?={})")).format(rng.choice(ATOMS))
        return rng.choice(ATOMS) + rng.choice(QUANTIFIERS)

    return "|".join("".join(item() for _ in range(rng.choice((1, 1, 2, 3)))) for _ in range(rng.choice((1, 2, 2))))


def test_random_patterns_against_the_engine(probe: Probe) -> None:
    rng = random.Random(11)
    judged = 0
    for _ in range(40):
        pattern = (
            f"(?i:{random_pattern(rng)})|{random_pattern(rng)}" if rng.random() < 0.3 else f"(?i){random_pattern(rng)}"
        )
        spec = split_spec(pattern, rng.choice(list(BEHAVIOURS)), rng.random() < 0.4)
        try:
            pairs = certified_pairs(stages(spec, probe), ALPHABET)
        except Refusal:
            continue
        judged += bool(pairs)
        some = rng.sample(sorted(pairs), min(len(pairs), 40))
        sides = [tuple("".join(rng.choices(ALPHABET, k=rng.randint(0, 3))) for _ in range(2)) for _ in range(6)]
        assert not broken_seams(engine_of(spec), some, sides), spec
    assert judged > 8
