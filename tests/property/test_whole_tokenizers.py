"""Lemmas 1 to 5 together by brute force: random tokenizer files, every seam of short strings, IDs of the engine."""

from __future__ import annotations

import itertools
import random

import pytest

from tests.support.random_tokenizers import engine_of, random_spec
from tests.support.tokenizers_data import shared_cache
from toktier.certificate import certify
from toktier.certificate.selfcheck import parts_differ
from toktier.engines.reference import ReferenceEngine
from toktier.errors import Refusal

LETTERS = "aB1 .<\u2581\u00e9\u0301"


def texts(rng: random.Random, count: int) -> list[str]:
    short = ["".join(t) for t in itertools.product("aB1 ", repeat=4)]
    return short + ["".join(rng.choice(LETTERS) for _ in range(rng.choice((3, 5, 6)))) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_every_certified_seam_adds_up(seed: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    cache_dir = shared_cache(tmp_path_factory)
    rng = random.Random(f"whole tokenizers {seed}")
    certified = seams = 0
    refused: list[str] = []
    for _ in range(25):
        spec = random_spec(rng)
        tokenizer = engine_of(spec)
        if tokenizer is None:
            continue
        try:
            certificate = certify(spec, tokenizer, cache_dir=cache_dir)
        except Refusal as refusal:
            if "engine fails" not in refusal.place:  # some literals that strip, beside white space that is one
                refused.append(refusal.construct)
            continue
        certified += 1
        whole = texts(rng, 400)
        # every seam alone, and all seams of a text at once
        cuts = [certificate.cuts(text).tolist() for text in whole]
        pairs = [(text, [text[:i], text[i:]]) for text, own in zip(whole, cuts, strict=True) for i in own]
        pairs += [
            (text, [text[a:b] for a, b in itertools.pairwise([0, *own, len(text)])])
            for text, own in zip(whole, cuts, strict=True)
            if len(own) > 1
        ]
        if not pairs:
            continue
        count, bad = parts_differ(certificate, ReferenceEngine(tokenizer), [p[0] for p in pairs], [p[1] for p in pairs])
        seams += count
        assert not bad, (spec | {"model": "..."}, [pairs[k] for k in bad[:3]])
    assert "self-check" not in refused
    assert certified >= 5
    assert seams > 1000
