"""Texts around tokens for whole pieces only: what they are made of."""

from __future__ import annotations

import random

import pytest

from tests.support.gpu import reference, tables
from tests.support.tokenizers_data import each
from tools.kernels.seams import seam, whole_only


@pytest.mark.parametrize("name", each(("llama3_1", "gpt2_tiktoken")))
def test_whole_only_tokens_are_those_that_no_merges_make(name: str) -> None:
    tokens = whole_only(tables(name))
    assert (len(tokens) > 500) == (name == "llama3_1")
    for token in tokens[::10]:
        alone, behind = reference(name).encode(token).tolist(), reference(name).encode(token + token).tolist()
        assert len(alone) == 1 or len(behind) > 2, token


def test_a_seam_has_a_token_of_each_length_of_letters() -> None:
    rng = random.Random(1)
    texts = [seam(["\ud1a0\ud1a0"], rng) for _ in range(300)]
    assert all("\ud1a0\ud1a0" in text for text in texts)
    assert len({len(text) for text in texts}) > 30
