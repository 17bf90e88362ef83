"""Lemma 4: the sets against what they promise, and the characters that shaped its wording."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tokenizers import normalizers

from toktier.certificate.classes import Probe, all_code_points, contains, members
from toktier.certificate.normalizer import NO_NORMALIZER, NormalizerRule, normalizer_rule
from toktier.errors import Refusal


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe()


def has(flips: np.ndarray, char: str) -> bool:
    return bool(contains(flips, np.array([ord(char)]))[0])


def test_nfc_sets(probe: Probe) -> None:
    rule = normalizer_rule({"type": "NFC"}, probe)
    for c in "aé中。!\n \uac00한":
        assert has(rule.sides, c), c
    never = {
        "\u0958": "composition exclusion, changed by N",
        "\u09df": "composition exclusion in everyday Bengali",
        "\u0344": "two marks in one",
        "\u0301": "non-starter",
        "\u0323": "non-starter",
        "\u0345": "the highest combining class",
        "\u0334": "combining class 1",
        "\u1161": "Hangul vowel, composes backwards",
        "\u11a8": "Hangul final, composes backwards",
        "\u09be": "starter that composes backwards",
        "\u212b": "singleton",
        "\ufb1d": "Hebrew exclusion",
    }
    for c, why in never.items():
        assert not has(rule.sides, c), why
    ascii_active = "".join(c for c in map(chr, range(128)) if has(rule.active, c))
    assert ascii_active == "<=>ABCDEFGHIJKLMNOPRSTUVWXYZabcdefghijklmnoprstuvwxyz"
    for c in "é\u1100가각":
        assert has(rule.active, c), c
    for c in "中。Q ":
        assert not has(rule.active, c), c


@pytest.mark.parametrize("form", ["NFC", "NFD", "NFKC", "NFKD"])
def test_promise(form: str, probe: Probe) -> None:
    """N(u a b v) = N(u a) N(b v), a last on the left, b first on the right; every composite and mark is drawn from."""
    rule = normalizer_rule({"type": form}, probe)
    normalize = getattr(normalizers, form)().normalize_str
    assert bool(len(rule.active)) == (form in ("NFC", "NFKC"))
    rng = random.Random(form)
    every = all_code_points()
    odd = [chr(c) for c in members(rule.active)] + [c for c in every[:0x20000] if not has_fast(rule, c)]
    seams = 0
    for _ in range(1500):
        text = "".join(
            rng.choice(odd) if rng.random() < 0.6 else rng.choice("aeo<=!中가각ᄀ\u0301\u0323\u0327") for _ in range(6)
        )
        for i in range(1, len(text)):
            a, b = text[i - 1], text[i]
            if not (has(rule.sides, a) and has(rule.sides, b)):
                continue
            if has(rule.active, b) and not (i + 1 < len(text) and has(rule.boundary, text[i + 1])):
                continue
            left, right = normalize(text[:i]), normalize(text[i:])
            assert normalize(text) == left + right, (form, text, i)
            assert left[-1] == a
            assert right[0] == b
            seams += 1
    assert seams > 100


_SIDES: dict[str, np.ndarray] = {}


def has_fast(rule: NormalizerRule, c: str) -> bool:
    if rule.name not in _SIDES:
        _SIDES[rule.name] = contains(rule.sides, np.arange(0x110000))
    return bool(_SIDES[rule.name][ord(c)])


def test_fixed_points_are_the_engines(probe: Probe) -> None:
    """Each side character is its own normal form: asked for one by one, without the block shortcut."""
    rule = normalizer_rule({"type": "NFC"}, probe)
    normalize = normalizers.NFC().normalize_str
    for c in members(rule.sides)[::37]:
        assert normalize(chr(c)) == chr(c)


def test_none(probe: Probe) -> None:
    assert normalizer_rule(None, probe) is NO_NORMALIZER
    assert normalizer_rule({"type": "Sequence", "normalizers": []}, probe) is NO_NORMALIZER
    assert not len(NO_NORMALIZER.active)
    assert not has(NO_NORMALIZER.sides, "\ud800")


@pytest.mark.parametrize(
    ("spec", "construct", "place"),
    [
        ({"type": "Lowercase"}, "normalizer Lowercase", "normalizer"),
        ({"type": "Sequence", "normalizers": [{"type": "Strip"}]}, "normalizer Strip", "normalizer[0]"),
        (
            {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "NFC"}]},
            "sequence of normalizers",
            "normalizer",
        ),
    ],
)
def test_refusals(spec: dict[str, object], construct: str, place: str, probe: Probe) -> None:
    with pytest.raises(Refusal) as e:
        normalizer_rule(spec, probe)
    assert (e.value.construct, e.value.place) == (construct, place)
