"""The tokenizers that people serve: each is certified with cuts that are of use, or refused by name; and its IDs at
every cut of hostile and real text are those of the parts."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from tokenizers import Tokenizer

from tests.conftest import ROOT
from tests.support.families import FAMILIES, Family
from tests.support.hostile import Hostile
from tests.support.tokenizer_files import CACHE
from toktier.certificate import Certificate, certify
from toktier.certificate.samples import TextSource
from toktier.certificate.selfcheck import parts_differ, split_at_cuts
from toktier.engines.reference import ReferenceEngine
from toktier.errors import Refusal
from toktier.postprocessor import special_tokens

CERTIFIED = [family for family in FAMILIES if family.refused is None]
REFUSED = [family for family in FAMILIES if family.refused is not None]
PROSE = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of foolishness, it "
    "was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season of "
    "Darkness, it was the spring of hope, it was the winter of despair."
)
SHARE, DISTANCE = 0.15, 7.0


def named(families: list[Family]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("family", families, ids=[family.name for family in families])


@named(CERTIFIED)
def test_words_are_cut_apart_and_parts_add_up(family: Family) -> None:
    spec = family.spec()
    reference = ReferenceEngine(Tokenizer.from_str(json.dumps(spec)))
    certificate = certify(spec, reference.tokenizer, cache_dir=CACHE)
    if family.words:
        assert_words_are_cut_apart(certificate)
    special_tokens(spec, reference)
    contents = [token["content"] for token in family.added]
    source = TextSource(certificate.table.classes, contents, seed=family.name)
    hostile = Hostile(family.name, contents)
    texts = [source.text(source.rng.choice((6, 12, 40))) for _ in range(80)]
    texts += [hostile.text(300) for _ in range(12)]
    texts += [
        PROSE,
        (ROOT / "README.md").read_text("utf-8")[:4000],
        (ROOT / "toktier/rope.py").read_text("utf-8")[:4000],
    ]
    parts = [split_at_cuts(certificate, text) for text in texts]
    seams, bad = parts_differ(certificate, reference, texts, parts)
    assert not bad, ascii(texts[bad[0]][:200])
    assert seams > 1500


def assert_words_are_cut_apart(certificate: Certificate) -> None:
    cuts = set(certificate.cuts(PROSE).tolist())
    starts = [i for i, (a, b) in enumerate(pairwise(PROSE), 1) if a.isalpha() and b == " "]
    assert len(cuts.intersection(starts)) + len(cuts.intersection(i + 1 for i in starts)) >= len(starts)
    assert len(cuts) / len(PROSE) > SHARE
    assert len(PROSE) / (len(cuts) + 1) < DISTANCE


@named(REFUSED)
def test_a_refusal_names_the_construct(family: Family) -> None:
    spec = family.spec()
    with pytest.raises(Refusal) as refused:
        certify(spec, Tokenizer.from_str(json.dumps(spec)), cache_dir=CACHE)
    assert refused.value.construct == family.refused
    assert refused.value.place.startswith("pre_tokenizer[")


def test_families_are_many_and_have_names_of_their_own() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES) > 40
    assert len(REFUSED) <= 2
