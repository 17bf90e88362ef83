"""Replace: lemma 1 on its pattern, and what a seam shows; by brute force over small alphabets."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tests.support.normalizing import Seams, broken, random_texts, replace
from tests.support.tokenizers_data import shared_cache
from toktier.certificate.classes import Probe
from toktier.certificate.images import NO_SEAM
from toktier.certificate.normalizer import normalizer_rule
from toktier.errors import Refusal


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def all_texts(alphabet: str, longest: int) -> list[str]:
    return ["".join(t) for n in range(2, longest + 1) for t in product(alphabet, repeat=n)]


CASES = [
    ("String", " ", "▁"),
    ("String", "a", ""),
    ("String", "a", "ba"),
    ("String", "aa", "a"),
    ("String", "aa", "b"),
    ("String", "ab", "x"),
    ("String", "aba", ""),
    ("String", ".", "b"),
    ("Regex", "ab", "x"),
    ("Regex", "a|b", ""),
    ("Regex", "[ab]", "xy"),
    ("Regex", "a+", "b"),
    ("Regex", "a{2,}", "b"),
    ("Regex", "a{2,}", "a"),
    ("Regex", "a{2,}", "ab"),
    ("Regex", "a{2,}", "ba"),
    ("Regex", "a{2,}", ""),
    ("Regex", "a(?=b)", "x"),
    ("Regex", "a(?!b)", "x"),
    ("Regex", "a+(?=b)|b", "aa"),
    ("Regex", "ab|b", "a"),
    ("Regex", "a*+b", "a"),
    ("Regex", r"\s+", " "),
    ("Regex", r"\S", ""),
]


@pytest.mark.parametrize(("kind", "pattern", "content"), CASES, ids=str)
def test_promise(kind: str, pattern: str, content: str, probe: Probe) -> None:
    spec = replace(kind, pattern, content)
    rule = normalizer_rule(spec, probe)
    seams, bad = broken(rule, spec, all_texts("ab ", 6) + random_texts(f"{kind} {pattern} {content}", 200))
    assert seams > 400
    assert bad == []


def test_random_patterns(probe: Probe) -> None:
    rng = random.Random(8)
    texts = all_texts("abc", 5)
    seams = rules = 0
    while rules < 25:
        spec = replace("Regex", _pattern(rng), rng.choice(["", "a", "b", "cc", "ab", "x"]))
        try:
            rule = normalizer_rule(spec, probe)
        except Refusal:
            continue
        rules += 1
        count, bad = broken(rule, spec, rng.sample(texts, 200))
        seams += count
        assert bad == [], spec
    assert seams > 2000


def _pattern(rng: random.Random) -> str:
    def branch() -> str:
        ends = ["", "", "", "+", "?", "*", "{2}", "{2,}", "+?", "*+", "(?=b)", "(?!a)"]
        return "".join(rng.choice(["a", "b", "c", "[ab]", "[^a]"]) + rng.choice(ends) for _ in range(rng.randint(1, 3)))

    return "|".join(branch() for _ in range(rng.randint(1, 2)))


def test_counter_examples(probe: Probe) -> None:
    r"""facts: `ab` -> x and `\s+` -> " " span seams; an empty replacement joins its neighbours."""
    spanned = Seams(normalizer_rule(replace("Regex", "ab", "x"), probe))
    assert not spanned.good("ab", 1)
    assert not spanned.good("acb", 1), "a may have become an x by then, were it c's left neighbour: it stays only here"
    spaces = Seams(normalizer_rule(replace("Regex", r"\s+", " "), probe))
    assert not spaces.good("a \nb", 2)
    assert spaces.good("a\nb", 1)
    assert spaces.left[ord("\n")] == spaces.right[ord("\n")] == ord(" ")
    deleted = Seams(normalizer_rule(replace("String", "b", ""), probe))
    assert not deleted.good("abc", 1)
    assert not deleted.good("abc", 2)
    assert deleted.good("ac", 1)


def test_a_run_that_may_or_may_not_be_replaced(probe: Probe) -> None:
    """T5's spaces: one stays, two become a ▁. A space before a letter is one; what precedes a space is not known."""
    seams = Seams(normalizer_rule(replace("Regex", " {2,}", "▁"), probe))
    assert seams.good("a b", 1)
    assert not seams.good("a  b", 1)
    assert not seams.good("a b", 2)
    assert seams.left[ord(" ")] == NO_SEAM
    assert seams.right[ord(" ")] == ord(" ")
    kept = Seams(normalizer_rule(replace("Regex", " {2,}", " "), probe))
    assert kept.good("a b", 1)
    assert kept.good("a b", 2)
    assert not kept.good("a  b", 2)


@pytest.mark.parametrize(
    ("spec", "construct"),
    [
        (replace("Regex", "a*", "x"), "pattern that can match the empty string"),
        (replace("String", "", "x"), "pattern that can match the empty string"),
        (replace("Regex", r"\ba", "x"), "word boundary"),
        (replace("Regex", "^a", "x"), "anchor"),
        ({"type": "Replace", "pattern": "a", "content": "x"}, "Replace pattern of an unknown form"),
    ],
    ids=str,
)
def test_refusals(spec: dict[str, object], construct: str, probe: Probe) -> None:
    with pytest.raises(Refusal) as e:
        normalizer_rule(spec, probe)
    assert construct in e.value.construct
    assert e.value.place.startswith("normalizer")
