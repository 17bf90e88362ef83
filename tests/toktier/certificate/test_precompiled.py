"""Precompiled: the engine's clusters, and charsmaps that are hard on the rule."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tokenizers import normalizers

from tests.support.normalizing import Seams, broken, engine, has, precompiled, random_texts
from tests.support.tokenizers_data import shared_cache
from toktier.certificate import precompiled as module
from toktier.certificate.classes import Flips, Probe
from toktier.certificate.images import NO_SEAM
from toktier.certificate.normalizer import normalizer_rule
from toktier.errors import Refusal

KEYS = {
    "e\u0301": "é",
    "e\u0323": "ẹx",
    "a": "A",
    "ﬁ": "fi",
    " \u0301": "´",
    "\u3000": " ",
    "\u200b": " ",
    "\x01": "",
    "z\u0301": "",
    "\u0915\u093c": "\u0958",
    "é\u0323": "ẹ́",
    "\u1100\u1161": "가",
    "\u2122": "TM",
}


@pytest.fixture(scope="module")
def probe(tmp_path_factory: pytest.TempPathFactory) -> Probe:
    return Probe(shared_cache(tmp_path_factory))


def test_clusters(probe: Probe) -> None:
    normalizer_rule(precompiled(KEYS), probe)

    def asked(key: str) -> Flips:
        return probe.cached(key, dict)

    breaks, prepend = asked("normalizer Precompiled breaks"), asked("normalizer Precompiled prepend")
    for c in "a \n\r\x01é中文가각。ｆ\u0915\U0001f468\U00020000\u2122":
        assert has(breaks, c), ascii(c)
    for c in "\u0301\u200d\u0903\u0600\u0d4e\u1100\u1161\u11a8\U000110bd\U0001f3fd\ufe0f":
        assert not has(breaks, c), ascii(c)
    assert [c for c in "\u0600\u06dd\u0d4e\U000110bd\u0301a\u1100" if has(prepend, c)] == list(
        "\u0600\u06dd\u0d4e\U000110bd"
    )


@pytest.mark.parametrize(
    "keys",
    [
        KEYS,
        {"\r": " ", "\n": " ", "\t": " "},
        {"\r": "", "x": ""},
        {"\r\n": "N"},
        {"\r\n": "\n", "\n": "N"},
        {"e\u0301": "", "e\u0323": " "},
    ],
    ids=lambda keys: ascii(next(iter(keys))),
)
def test_promise(keys: dict[str, str], probe: Probe) -> None:
    spec = precompiled(keys)
    rule = normalizer_rule(spec, probe)
    letters = "aezx \n\r\x01\u0301\u0323\u200bﬁé\u0600\u0915\u093c\u1100\u1161"
    texts = ["".join(t) for t in product("ae \r\n\u0301", repeat=4)]
    texts += random_texts(str(keys), 800) + random_texts(f"few {keys}", 1000, letters)
    seams, bad = broken(rule, spec, texts)
    assert seams > 3000
    assert bad == []


def test_what_a_seam_shows(probe: Probe) -> None:
    rule = normalizer_rule(precompiled(KEYS), probe)
    left, right = rule.sides.left, rule.sides.right
    assert (chr(left[ord("\u2122")]), chr(right[ord("\u2122")])) == ("M", "T")
    assert left[1] == right[1] == NO_SEAM, "deleted"
    seams = Seams(rule)
    assert seams.good("x ab", 1), "a space may be in a longer key, but not before a letter"
    assert not seams.good("x \u0301b", 1)
    assert seams.good("xa\u0301", 1), "a key of its own: the shortest"
    assert not seams.good("xe\u0301", 1)
    assert not seams.good("\r\nx", 1)
    assert seams.good("\r\nx", 2)


def test_line_ends(probe: Probe) -> None:
    """A line feed may be in one cluster with what stands before it."""
    assert normalizer_rule(precompiled({"\r": "", "x": ""}), probe).sides.left[ord("\n")] == NO_SEAM
    assert normalizer_rule(precompiled({"\r\n": "N"}), probe).sides.left[ord("\n")] == NO_SEAM
    assert normalizer_rule(precompiled({"\r\n": "N"}), probe).sides.right[ord("\r")] == NO_SEAM
    assert normalizer_rule(precompiled({"\r": " ", "\n": " "}), probe).sides.left[ord("\n")] == ord(" ")


def test_why_prepended_characters_are_refused(probe: Probe) -> None:
    """U+0600 joins to the a after it, and the engine replaces both: a is gone, whatever stands right of it."""
    spec = precompiled({"\u0600": "P"})
    assert engine(spec)("\u0600a!") == "P!"
    with pytest.raises(Refusal, match=r"U\+0600"):
        normalizer_rule(spec, probe)
    with pytest.raises(Refusal, match=r"U\+0600"):
        normalizer_rule(precompiled({"\u0600\u0d4e": "P"}), probe)


@pytest.mark.parametrize("spec", [{"type": "Precompiled"}, {"type": "Precompiled", "precompiled_charsmap": "AAA"}])
def test_unreadable(spec: dict[str, str], probe: Probe) -> None:
    with pytest.raises(Refusal, match="charsmap that cannot be read"):
        normalizer_rule(spec, probe)


def test_an_engine_that_applies_keys_otherwise_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = normalizers.Precompiled

    class Longest:
        def __init__(self, raw: bytes) -> None:
            self._inner = real(raw)

        def normalize_str(self, text: str) -> str:
            return self._inner.normalize_str(text).replace("bc", "X")

    monkeypatch.setattr(module.normalizers, "Precompiled", Longest)
    with pytest.raises(Refusal, match="shortest key of clusters"):
        normalizer_rule(precompiled(KEYS), Probe())


def test_a_map_that_the_engine_reads_otherwise_is_refused(probe: Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    read = module.read_keys

    def shifted(raw: bytes, place: str) -> module.Keys:
        keys = read(raw, place)
        return module.Keys(keys.first, keys.longer, np.roll(keys.value, 1), keys.blob)

    monkeypatch.setattr(module, "read_keys", shifted)
    with pytest.raises(Refusal, match="reads otherwise"):
        normalizer_rule(precompiled({"a": "1", "b": "2"}), probe)
