"""Rows of steps: what a later step may assume of a seam, each with the text that shows why."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.normalizing import Seams, Spec, engine, precompiled, replace, sequence, strip
from tests.support.tokenizers_data import shared_cache
from toktier.certificate.classes import CODE_POINTS, Probe
from toktier.certificate.images import NO_SEAM
from toktier.certificate.normalizer import normalizer_rule
from toktier.certificate.step import UNKNOWN, Kinds

NFC = {"type": "NFC"}


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def test_kinds() -> None:
    """Which active characters can only begin with members of a set; an unknown head is in no set."""
    kinds = Kinds.of_sets({5: {97, 98}, 7: {97}, 9: {97, UNKNOWN}}, {100: 5, 101: 7, 102: 9})
    inside = np.zeros(CODE_POINTS, np.bool_)
    inside[97] = inside[-1] = True
    assert np.flatnonzero(kinds.within(inside)).tolist() == [101]
    inside[98] = True
    assert np.flatnonzero(kinds.within(inside)).tolist() == [100, 101]
    assert np.flatnonzero(kinds.active()).tolist() == [100, 101, 102]


def test_kinds_packed() -> None:
    kinds = Kinds.of_sets({5: {97, 98}, 7: {97, UNKNOWN}}, {100: 5, 101: 7})
    again = Kinds.unpacked(kinds.packed())
    assert all(np.array_equal(a, b) for a, b in zip(vars(kinds).values(), vars(again).values(), strict=True))


def test_a_later_step_asks_for_the_next_character_behind_the_earlier_ones(probe: Probe) -> None:
    """x needs a next character that is no é behind NFC; an e may become one."""
    spec = sequence(NFC, replace("String", "xé", "q"))
    assert engine(spec)("axe\u0301") == "aq"
    seams = Seams(normalizer_rule(spec, probe))
    assert not seams.good("axe", 1)
    assert seams.good("axb", 1), "b may become ḃ, not é"
    assert seams.good("ax!", 1)
    assert not seams.good("xé", 1)
    assert not seams.good("xe", 1), "the seam before e needs to know what follows e"


@pytest.mark.parametrize(
    ("spec", "text", "becomes"),
    [
        (sequence({"type": "NFKC"}, replace("String", "TM", "w")), "a\u2122!", "aw!"),
        (sequence(replace("Regex", "(?!z)q", "TM"), replace("String", "TM", "w")), "aq!", "aw!"),
        (sequence(replace("String", "xy", "x"), replace("String", "xz", "w")), "axyz", "aw"),
        (sequence(precompiled({"\r": " "}), replace("String", " !", "w")), "a\r\n!", "aw"),
    ],
    ids=["two characters of a form", "two of a content", "a match with the next", "a cluster with the next"],
)
def test_what_is_no_lead(spec: Spec, text: str, becomes: str, probe: Probe) -> None:
    """Behind the first step, what follows the first character of b is not what the next character became."""
    assert engine(spec)(text) == becomes
    assert not Seams(normalizer_rule(spec, probe)).good(text, 1)


@pytest.mark.parametrize(
    "first", [{"type": "NFKC"}, replace("Regex", "q+", "T"), precompiled({"q": "T", "q\u0301": "t"})]
)
def test_what_is_a_lead(first: Spec, probe: Probe) -> None:
    seams = Seams(normalizer_rule(sequence(first, replace("String", "TM", "w")), probe))
    assert seams.good("aT!", 1)
    assert not seams.good("aTM", 1)


def test_kinds_of_a_charsmap(probe: Probe) -> None:
    """As with NFC: an e may become é, and then x is gone."""
    spec = sequence(precompiled({"e\u0301": "é"}), replace("String", "xé", "q"))
    assert engine(spec)("axe\u0301") == "aq"
    seams = Seams(normalizer_rule(spec, probe))
    assert not seams.good("axe", 1)
    assert seams.good("axb", 1)


def test_a_character_that_is_active_twice_is_no_good_next_one(probe: Probe) -> None:
    """An e may become é, and é may become q."""
    spec = sequence(NFC, replace("String", "éx", "q"), replace("String", "zq", "w"))
    assert engine(spec)("aze\u0301x") == "aw"
    seams = Seams(normalizer_rule(spec, probe))
    assert not seams.good("aze", 1)
    assert not seams.good("azé", 1)
    assert seams.good("azb", 1)


def test_an_active_character_must_become_one(probe: Probe) -> None:
    """İ is i and a mark in lower case, which NFC sees between i and what follows."""
    seams = Seams(normalizer_rule(sequence({"type": "Lowercase"}, NFC), probe))
    assert seams.right[ord("İ")] == NO_SEAM
    assert seams.right[ord("I")] == ord("i")
    assert not seams.good("aI\u0301", 1)
    assert seams.good("aI!", 1)


def test_apart_is_judged_on_what_stands_there(probe: Probe) -> None:
    """A is an a by then: neither (A, b) nor (a, B) is a seam where "ab" is replaced."""
    seams = Seams(normalizer_rule(sequence({"type": "Lowercase"}, replace("String", "ab", "x")), probe))
    assert not any(seams.good(f"{pair}!", 1) for pair in ("ab", "Ab", "aB", "AB"))
    assert seams.good("!A!", 1)


def test_the_whole_of_a_known_end_is_mapped(probe: Probe) -> None:
    """é is e and a mark behind NFD; the mark is deleted, the e in front of it is what stands at the seam."""
    rule = normalizer_rule(sequence({"type": "NFD"}, {"type": "StripAccents"}), probe)
    assert chr(rule.sides.left[ord("é")]) == chr(rule.sides.right[ord("é")]) == "e"
    assert rule.sides.left[0x301] == NO_SEAM


def test_white_space_that_may_be_stripped_is_followed_up(probe: Probe) -> None:
    """Behind Strip a space is followed by what followed it, or nothing is left of either."""
    seams = Seams(normalizer_rule(sequence(strip(True, True), replace("String", "  ", "")), probe))
    assert seams.good("a b", 1)
    assert not seams.good("a  b", 1)
    assert not seams.good("a b", 2)
