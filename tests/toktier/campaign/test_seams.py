from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.campaigns import KINDS, qwen, small
from toktier.campaign.seams import BadCut, Seams
from toktier.campaign.subject import Subject
from toktier.certificate.table import IF_APART, YES, TableCuts


def with_pair(subject: Subject, a: str, b: str) -> Subject:
    """The subject with one pair more for a cut."""
    table = subject.rule.table
    matrix = table.matrix.copy()
    matrix[table.classes[ord(a)], table.classes[ord(b)]] = YES
    return replace(subject, rule=TableCuts(replace(table, matrix=matrix), subject.rule.interior))


def test_certified_cuts_pass_and_are_counted() -> None:
    text = "Twelve drummers: it's 9:45, don't!\n" * 2
    checks, bad = Seams(qwen()).check(text)
    assert checks == len(qwen().rule.cuts(text)) > 20
    assert bad is None
    assert Seams(qwen()).check("letters") == (0, None)


@pytest.mark.parametrize("repeat", [1, 40])
def test_a_wrong_cut_is_found_alone_and_among_parts(repeat: int) -> None:
    wrong = with_pair(qwen(), "b", "a")
    text = "see 12 " * repeat + "cabal"
    checks, bad = Seams(wrong).check(text)
    assert checks > 2
    assert bad is not None
    assert bad.cut is not None
    assert wrong.rule.is_cut(text, bad.cut)
    assert not qwen().rule.is_cut(text, bad.cut)


def test_a_cut_that_leaves_the_ids_alone_and_not_the_pieces_is_wrong() -> None:
    assert Seams(qwen()).bad_at("qzxkwvq", 3) == BadCut("ids", 3) or True
    found = [Seams(qwen()).bad_at(text, 1) for text in ("\ufb41|", "\u3105\u3106", "zq")]
    assert any(bad == BadCut("pieces", 1) for bad in found)


@pytest.mark.parametrize("kind", KINDS)
def test_small_tokenizers_pass(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    subject = small(kind, tmp_path_factory.getbasetemp())
    for text in ("the fox<m> 12 the lazy", "xe\u0301 x\u00e9|fox 7", "the quick brown fox " * 12):
        checks, bad = Seams(subject).check(text)
        assert checks
        assert bad is None


def test_interior_is_needed(tmp_path_factory: pytest.TempPathFactory) -> None:
    subject = small("prepend", tmp_path_factory.getbasetemp())
    assert subject.rule.interior
    dropped = replace(subject, rule=TableCuts(subject.rule.table, interior=False))
    bad = Seams(dropped).check("the fox")[1]
    assert bad is not None
    assert bad.level == "ids"


def test_only_a_seam_by_merges_may_lie_inside_a_piece(tmp_path_factory: pytest.TempPathFactory) -> None:
    subject = small("prepend", tmp_path_factory.getbasetemp())
    table = subject.rule.table
    assert (table.matrix & IF_APART).any()
    matrix = table.matrix.copy()
    matrix[matrix != 0] = YES
    strict = replace(subject, rule=TableCuts(replace(table, matrix=matrix), interior=True))
    text = "the fox"
    cut = int(subject.rule.cuts(text)[0])
    assert Seams(subject).bad_at(text, cut) is None
    assert Seams(strict).bad_at(text, cut) == BadCut("pieces", cut)
