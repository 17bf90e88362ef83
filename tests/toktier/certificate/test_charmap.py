"""Maps of characters against dictionaries."""

from __future__ import annotations

import random

import numpy as np

from toktier.certificate.charmap import SAME, CharMap
from toktier.certificate.images import NO_SEAM

ALPHABET = "abcdef\U0010ffff"


def random_map(rng: random.Random) -> dict[int, str]:
    return {
        ord(c): "".join(rng.choice(ALPHABET) for _ in range(rng.randint(0, 3))) for c in ALPHABET if rng.random() < 0.6
    }


def as_dict(mapping: CharMap) -> dict[int, str]:
    ends = mapping.starts
    return {int(p): "".join(map(chr, mapping.units[ends[k] : ends[k + 1]])) for k, p in enumerate(mapping.points)}


def test_one_map_after_another() -> None:
    rng = random.Random(4)
    for _ in range(200):
        f, g = random_map(rng), random_map(rng)
        both = as_dict(CharMap.of(f).then(CharMap.of(g)))
        for c in map(ord, ALPHABET):
            assert both.get(c, chr(c)) == "".join(g.get(ord(d), d) for d in f.get(c, chr(c)))
        assert sorted(both) == list(both)


def test_ends_lengths_and_packing() -> None:
    rng = random.Random(5)
    for _ in range(50):
        f = random_map(rng)
        mapping = CharMap.of(f)
        assert as_dict(CharMap.unpacked(mapping.packed())) == f
        first, last, single = mapping.first(), mapping.last(), mapping.single()
        for c in map(ord, ALPHABET + "xyz"):
            text = f.get(c, chr(c))
            assert first[c] == (ord(text[0]) if text else NO_SEAM)
            assert last[c] == (ord(text[-1]) if text else NO_SEAM)
            assert single[c] == (len(text) == 1)
        assert as_dict(mapping.ends(last)) == {c: text[-1:] for c, text in f.items()}


def test_without() -> None:
    forbidden = np.zeros(0x110000, np.bool_)
    forbidden[[ord("a"), ord("x")]] = True
    mapping = CharMap.of({ord("a"): "1", ord("b"): "23"}).without(forbidden)
    assert as_dict(mapping) == {ord("a"): "", ord("b"): "23", ord("x"): ""}
    assert as_dict(SAME.without(forbidden)) == {ord("a"): "", ord("x"): ""}


def test_all_to_one_string() -> None:
    assert as_dict(CharMap.all_to(np.array([97, 99]), "xy")) == {97: "xy", 99: "xy"}
    assert as_dict(CharMap.all_to(np.array([97, 99]), "")) == {97: "", 99: ""}
