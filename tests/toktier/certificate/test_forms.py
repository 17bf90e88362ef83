"""Lemma 4 for the four forms: the sets against what they promise, and the characters that shaped its wording."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.support.normalizing import Seams, broken, engine, has
from tests.support.tokenizers_data import shared_cache
from toktier.certificate.classes import Probe, all_code_points, members
from toktier.certificate.forms import FORMS, form_step
from toktier.certificate.images import NO_SEAM
from toktier.certificate.normalizer import NormalizerRule, normalizer_rule


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def rule_of(form: str, probe: Probe) -> NormalizerRule:
    return normalizer_rule({"type": form}, probe)


def test_nfc_sets(probe: Probe) -> None:
    rule = rule_of("NFC", probe)
    for c in "aé中。!\n \uac00한":
        assert rule.sides.left[ord(c)] == rule.sides.right[ord(c)] == ord(c), c
    never = {
        "\u0344": "two marks in one",
        "\u0301": "non-starter",
        "\u0323": "non-starter",
        "\u0345": "the highest combining class",
        "\u0334": "combining class 1",
        "\u1161": "Hangul vowel, composes backwards",
        "\u11a8": "Hangul final, composes backwards",
        "\u09be": "starter that composes backwards",
        "\ud800": "surrogate",
    }
    for c, why in never.items():
        assert rule.sides.left[ord(c)] == rule.sides.right[ord(c)] == NO_SEAM, why
    ascii_active = "".join(c for c in map(chr, range(128)) if has(rule.active, c))
    assert ascii_active == "<=>ABCDEFGHIJKLMNOPRSTUVWXYZabcdefghijklmnoprstuvwxyz"
    for c in "é\u1100가각":
        assert has(rule.active, c), c
    for c in "中。Q ":
        assert not has(rule.active, c), c


def test_counter_examples(probe: Probe) -> None:
    """facts: a and b count as what they become. U+0958 and U+09DF end in a mark, ™ under NFKC in a letter."""
    nfc, nfkc = rule_of("NFC", probe), rule_of("NFKC", probe)
    for c, (first, last) in {"\u0958": "\u0915\u093c", "\u09df": "\u09af\u09bc", "\ufb1d": "\u05d9\u05b4"}.items():
        assert (nfc.sides.left[ord(c)], nfc.sides.right[ord(c)]) == (ord(last), ord(first))
    assert (chr(nfkc.sides.left[ord("\u2122")]), chr(nfkc.sides.right[ord("\u2122")])) == ("M", "T")
    assert chr(nfkc.sides.left[ord("\u20a8")]) == "s"
    seams = Seams(nfc)
    assert seams.good("e!i", 1)
    assert not seams.good("\u0301!i", 1), "what the mark composes with lies outside the pair"
    assert seams.good("ab=c", 2)
    assert not seams.good("a=\u0338", 1), "the next character composes with b"
    assert not seams.good("ab", 1), "b may be composed with what is appended"


@pytest.mark.parametrize("form", FORMS)
def test_promise(form: str, probe: Probe) -> None:
    """Every composite, every mark and every character that a form changes is drawn from."""
    rule = rule_of(form, probe)
    assert bool(len(rule.active)) == (form in ("NFC", "NFKC"))
    step = form_step(form, probe, "normalizer")
    changed = [chr(c) for c in step.tail.points if not 0xD800 <= c < 0xE000]
    odd = [chr(c) for c in members(rule.active)] + changed
    rng = random.Random(form)
    texts = [
        "".join(
            rng.choice(odd) if rng.random() < 0.6 else rng.choice("aeo<=!中가각ᄀ\u0301\u0323\u0327") for _ in range(6)
        )
        for _ in range(3000)
    ]
    seams, bad = broken(rule, {"type": form}, texts)
    assert seams > 1000
    assert bad == []


@pytest.mark.parametrize("form", ["NFC", "NFKC"])
def test_kinds(form: str, probe: Probe) -> None:
    """(4): whatever follows an active character, its kind holds what it begins with."""
    step = form_step(form, probe, "normalizer")
    assert step.kinds is not None
    heads: dict[int, set[int]] = {}
    for kind, head in zip(step.kinds.kind.tolist(), step.kinds.head.tolist(), strict=True):
        heads.setdefault(kind, set()).add(head)
    normalize = engine({"type": form})
    rng = random.Random(form)
    active = np.flatnonzero(step.kinds.active() & (step.head.first() != NO_SEAM)).tolist()
    marks = [chr(c) for c in step.tail.points if 0x300 <= c < 0x370] + list("\u1161\u11a8\u3099\u0338\u093c")
    changed = 0
    for c in rng.sample(active, 1500):
        for _ in range(8):
            first = normalize(chr(c) + "".join(rng.choice(marks) for _ in range(3)))[0]
            assert ord(first) in heads[int(step.kinds.of[c])], ascii(chr(c))
            changed += ord(first) != c
    assert changed > 500


def test_fixed_points_are_the_engines(probe: Probe) -> None:
    """What a character becomes alone, asked for one by one, without the block shortcut."""
    for form in FORMS:
        rule, normalize = rule_of(form, probe), engine({"type": form})
        for c in all_code_points()[::37]:
            if rule.sides.left[ord(c)] != NO_SEAM:
                assert normalize(c)[-1] == chr(rule.sides.left[ord(c)])
                assert normalize(c)[0] == chr(rule.sides.right[ord(c)])
