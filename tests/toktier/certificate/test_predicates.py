"""Predicates of pre-tokenizers, asked again in another way."""

from __future__ import annotations

import numpy as np
import pytest
from tokenizers import pre_tokenizers

from tests.support.tokenizers_data import shared_cache
from toktier.certificate import predicates
from toktier.certificate.classes import SURROGATES, Probe, all_code_points, contains, members
from toktier.certificate.images import mask_of
from toktier.certificate.predicates import held
from toktier.certificate.regex import Atom

SAMPLE = all_code_points()[:0x3100] + all_code_points()[0xF000:0x11000:3]


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def pieces(pre_tokenizer: pre_tokenizers.PreTokenizer, text: str) -> list[str]:
    return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]


@pytest.mark.parametrize(
    ("name", "pre_tokenizer", "shape"),
    [
        (predicates.NUMERIC, pre_tokenizers.Digits(individual_digits=False), ["x", "{}", "x"]),
        (predicates.PUNCTUATION, pre_tokenizers.Punctuation("merged_with_next"), ["x", "{}x"]),
        (predicates.WHITE_SPACE, pre_tokenizers.WhitespaceSplit(), ["x", "x"]),
        (predicates.BERT_WHITE_SPACE, pre_tokenizers.BertPreTokenizer(), ["x", "x"]),
        (predicates.BERT_PUNCTUATION, pre_tokenizers.BertPreTokenizer(), ["x", "{}", "x"]),
        (predicates.WORD, pre_tokenizers.Whitespace(), ["x{}x"]),
        (predicates.OTHER, pre_tokenizers.Whitespace(), ["x", "{}", "x"]),
    ],
)
def test_members_split_as_they_should(name: str, pre_tokenizer: pre_tokenizers.PreTokenizer, shape: list[str]) -> None:
    """Between two letters, one character at a time."""
    expected = "".join(c for c in SAMPLE if pieces(pre_tokenizer, f"x{c}x") == [s.format(c) for s in shape])
    assert held(name, SAMPLE)[name] == expected
    assert expected


def test_the_runs_of_whitespace_are_disjoint_and_leave_only_white_space(probe: Probe) -> None:
    names = (predicates.WORD, predicates.OTHER, predicates.WHITE_SPACE)
    kinds = np.sum([mask_of(probe.predicate(name)) for name in names], axis=0)
    assert (np.delete(kinds, SURROGATES) == 1).all()


def test_sets_hold_no_surrogate_and_no_other_name_is_known(probe: Probe) -> None:
    assert not contains(probe.predicate(predicates.OTHER), np.arange(0xD800, 0xE000)).any()
    with pytest.raises(KeyError):
        held("prime", "2")


def test_an_atom_may_be_a_predicate(probe: Probe) -> None:
    atoms = [Atom("p", "here", predicate=predicates.NUMERIC), Atom(r"\d", "here")]
    numeric, decimal = (set(members(flips).tolist()) for flips in probe.atoms(atoms))
    assert ord("²") in numeric
    assert ord("²") not in decimal
    assert decimal < numeric


def test_one_asking_tells_all_predicates_of_a_pre_tokenizer() -> None:
    probe = Probe()
    probe.predicate(predicates.BERT_PUNCTUATION)
    asked = probe.asked
    probe.predicate(predicates.BERT_WHITE_SPACE)
    assert probe.asked == asked
