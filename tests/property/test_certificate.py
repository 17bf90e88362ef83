"""Lemmas 1 and 2 by brute force: small random patterns, every behaviour, all short strings over three letters."""

from __future__ import annotations

import random

import pytest
from tokenizers import pre_tokenizers

from tests.support.split_cases import (
    ALL_SPLITS,
    broken_seams,
    certified_pairs,
    engine_split,
    one_stage,
    pieces_of,
    random_stage,
    split_spec,
    strings,
)
from toktier.certificate.classes import Probe
from toktier.certificate.stages import stages

ALPHABET = "abC"
TEXTS = strings(ALPHABET, 5)


@pytest.mark.parametrize("seed", range(4))
def test_one_stage(seed: int) -> None:
    rng = random.Random(f"one {seed}")
    certified = 0
    for _ in range(25):
        pattern = random_stage(rng, rng.choice((0, 1, 2, 3)))
        for behaviour, invert in ALL_SPLITS:
            pairs = certified_pairs(one_stage(pattern, behaviour, invert), ALPHABET)
            certified += len(pairs)
            if pairs:
                broken = list(broken_seams(pairs, TEXTS, pieces_of(engine_split(pattern, behaviour, invert))))
                assert not broken, (pattern, behaviour, invert, broken[:3])
    assert certified > 200


@pytest.mark.parametrize("seed", range(4))
def test_two_stages(seed: int) -> None:
    rng = random.Random(f"two {seed}")
    certified = 0
    for _ in range(60):
        chosen = [(random_stage(rng, rng.choice((0, 1, 2))), *rng.choice(ALL_SPLITS)) for _ in range(2)]
        spec = {"type": "Sequence", "pretokenizers": [split_spec(*c) for c in chosen]}
        pairs = certified_pairs(stages(spec, Probe()), ALPHABET)
        certified += len(pairs)
        if pairs:
            engine = pre_tokenizers.Sequence([engine_split(*c) for c in chosen])
            broken = list(broken_seams(pairs, TEXTS, pieces_of(engine)))
            assert not broken, (chosen, broken[:3])
    assert certified > 60
