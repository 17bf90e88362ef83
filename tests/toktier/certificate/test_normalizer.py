"""Lemma 4 for whole normalizers: Prepend, Strip, rows of steps, and the engine on hostile text."""

from __future__ import annotations

import random
from itertools import product

import pytest

from tests.support.normalizing import (
    Seams,
    bert,
    broken,
    engine,
    interior,
    precompiled,
    prepend,
    random_texts,
    replace,
    sequence,
    strip,
)
from tests.support.tokenizers_data import each, shared_cache, spec_of
from toktier.certificate.classes import Probe
from toktier.certificate.images import NO_SEAM
from toktier.certificate.normalizer import NO_NORMALIZER, normalizer_rule
from toktier.errors import Refusal

CHARSMAP = precompiled(
    {"e\u0301": "é", "a": "A", " \u0301": "´", "\r": " ", "\n": " ", "\u200b": "", "ﬁ": "fi", "\u3000": " "}
)
T5 = sequence(CHARSMAP, strip(False, True), replace("Regex", " {2,}", "▁"))
ALBERT = sequence(
    replace("String", "``", '"'),
    {"type": "NFKD"},
    {"type": "StripAccents"},
    {"type": "Lowercase"},
    CHARSMAP,
)


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def test_none(probe: Probe) -> None:
    assert normalizer_rule(None, probe) is NO_NORMALIZER
    assert normalizer_rule({"type": "Sequence", "normalizers": []}, probe) is NO_NORMALIZER
    assert not len(NO_NORMALIZER.active)
    assert NO_NORMALIZER.sides.left[0xD800] == NO_SEAM
    assert NO_NORMALIZER.sides.left[ord("a")] == ord("a")


@pytest.mark.parametrize(
    ("spec", "construct", "place"),
    [
        ({"type": "Upper"}, "normalizer Upper", "normalizer"),
        (sequence({"type": "NFC"}, sequence({"type": "Odd"})), "normalizer Odd", "normalizer[1][0]"),
        (sequence(replace("Regex", "a*", "b")), "pattern that can match the empty string", "normalizer[0]"),
    ],
)
def test_refusals(spec: dict[str, object], construct: str, place: str, probe: Probe) -> None:
    with pytest.raises(Refusal) as e:
        normalizer_rule(spec, probe)
    assert (e.value.construct, e.value.place) == (construct, place)


WHOLE = [
    prepend("▁"),
    strip(True, False),
    strip(False, True),
    strip(True, True),
    sequence(prepend("▁"), replace("String", " ", "▁")),
    sequence(strip(True, True), prepend(" "), replace("Regex", r"\s+", "_")),
    sequence(prepend("a"), replace("String", "ab", "x")),
    sequence(prepend("e"), {"type": "NFC"}),
    sequence(replace("String", "b", ""), prepend("▁"), strip(True, True)),
    sequence({"type": "NFD"}, {"type": "StripAccents"}, {"type": "NFC"}),
    sequence({"type": "NFKC"}, replace("Regex", " {2,}", " ")),
    sequence({"type": "Nmt"}, {"type": "NFKC"}, replace("Regex", " {2,}", " "), {"type": "Lowercase"}),
    sequence({"type": "NFC"}, sequence(bert(), {"type": "ByteLevel"})),
    T5,
    ALBERT,
]


@pytest.mark.parametrize("spec", WHOLE, ids=lambda spec: str(spec)[:60])
def test_promise(spec: dict[str, object], probe: Probe) -> None:
    rule = normalizer_rule(spec, probe)
    texts = ["".join(t) for t in product("ab \u0301", repeat=5)] + random_texts(rule.name, 400)
    seams, bad = broken(rule, spec, texts)
    assert seams > 1000
    assert bad == []
    assert rule.segment_prefix == (interior(spec) != spec)
    assert rule.conditions


def test_promise_of_random_rows(probe: Probe) -> None:
    """Rows of one to four steps, nested ones too."""
    pool = [
        *({"type": kind} for kind in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")),
        *(strip(left, right) for left, right in ((True, False), (False, True), (True, True))),
        *(prepend(text) for text in ("▁", " e", "a")),
        *(bert(), bert(strip_accents=True, lowercase=False), bert(strip_accents=False)),
        *(replace("String", text, to) for text, to in ((" ", "▁"), ("  ", " "), ("ab", ""), ("e", "é"), ("b", "ab"))),
        *(
            replace("Regex", text, to)
            for text, to in ((" {2,}", "▁"), (r"\s+", " "), ("a{2,}|b", "e"), ("[^a]e", "\u0301"))
        ),
        *(CHARSMAP, T5),
    ]
    rng = random.Random(9)
    seams = 0
    for k in range(24):
        spec = sequence(*rng.choices(pool, k=rng.randint(1, 4)))
        texts = random_texts(f"hostile {k}", 60) + random_texts(f"few {k}", 100, "abe \u0301\nEﬁ")
        count, bad = broken(normalizer_rule(spec, probe), spec, texts)
        seams += count
        assert bad == [], spec
    assert seams > 5000


def test_strip(probe: Probe) -> None:
    """facts: at white space Strip tears texts apart. What is stripped at the start belongs to N and not to N°."""
    both = normalizer_rule(strip(True, True), probe)
    seams = Seams(both)
    assert engine(strip(True, True))("a ") + engine(strip(True, True))("b") != engine(strip(True, True))("a b")
    assert not seams.good("a b", 2)
    assert seams.good("a b", 1)
    assert both.segment_prefix
    assert not normalizer_rule(strip(False, True), probe).segment_prefix


def test_word_starts(probe: Probe) -> None:
    """What the files of known models are: the seam before a word's space is good in each."""
    for spec in (T5, ALBERT, bert(), sequence(prepend("▁"), replace("String", " ", "▁"))):
        seams = Seams(normalizer_rule(spec, probe))
        assert seams.good("the cat", 3)
        assert seams.good("caf\u00e9 au", 4)
    assert not Seams(normalizer_rule(T5, probe)).good("the  cat", 3), "the second space may make the first a ▁"


@pytest.mark.parametrize("name", each(["llama2", "gemma3", "qwen3"]))
def test_real_files(name: str, probe: Probe) -> None:
    spec = spec_of(name)["normalizer"]
    rule = normalizer_rule(spec, probe)
    seams, bad = broken(rule, spec, random_texts(name, 1000))
    assert seams > 1000
    assert bad == []
    assert rule.segment_prefix == (name == "llama2")
    assert chr(rule.sides.right[ord(" ")]) == (" " if name == "qwen3" else "▁")
