"""Which merges are ever made, beside a BPE that tries them all."""

from __future__ import annotations

import random

import pytest

from tests.support.small_ranks import plain, random_ranks
from toktier.errors import Refusal
from toktier.gpu.merges import UTF8_BYTES, bpe, file_merges, rank_merges, rules
from toktier.rank_files import BYTE_RANKS


def test_the_rules_left_give_the_same_tokens() -> None:
    rng = random.Random("merges")
    left_out = dips = 0
    for _ in range(60):
        ranks = random_ranks(rng, rng.randint(2, 40))
        merges = rank_merges(ranks)
        found = rules(list(ranks.items()), merges)
        left_out += len(merges) - len(found.rank)
        dips += int(found.dip.sum())
        for _ in range(40):
            text = bytes(rng.choices(b"abc", k=rng.randint(1, 30)))
            assert bpe(text, found) == plain(text, ranks, merges), text
    assert left_out > 100
    assert dips > 2


def test_a_token_that_its_text_does_not_give_is_not_whole() -> None:
    # "ab" is merged first, so "abc" is never made of "a" and "bc"
    ranks = BYTE_RANKS | {b"ab": 300, b"bc": 301, b"abc": 302}
    merges = rank_merges(ranks)
    del merges[300, ord("c")]
    found = rules(list(ranks.items()), merges)
    whole = dict(zip(ranks, found.whole.tolist(), strict=True))
    assert whole[b"ab"]
    assert whole[b"bc"]
    assert not whole[b"abc"]
    assert 302 not in found.product


def test_a_rule_that_makes_a_lower_pair_is_a_dip() -> None:
    merges = {(97, 98): (5, 300), (300, 99): (1, 301), (99, 100): (9, 302)}
    found = rules([*BYTE_RANKS.items(), (b"ab", 300), (b"abc", 301), (b"cd", 302)], merges)
    assert found.product.tolist() == [301, 300, 302]
    assert found.dip.tolist() == [False, True, False]


def test_a_missing_byte_is_refused() -> None:
    tokens = [(text, token) for text, token in BYTE_RANKS.items() if text != b"q"]
    with pytest.raises(Refusal, match="1 bytes without a token, 0x71"):
        rules(tokens, {})


def test_bytes_that_no_utf8_has_need_no_token() -> None:
    found = rules([(bytes([b]), b) for b in UTF8_BYTES], {})
    assert bpe("é".encode(), found) == [0xC3, 0xA9]


def test_merges_of_a_file_in_both_spellings() -> None:
    vocab = {"a": 0, "b": 1, "ab": 2, "aba": 3}
    assert file_merges(["a b", "ab a"], vocab) == {(0, 1): (0, 2), (2, 0): (1, 3)}
    assert file_merges([["a", "b"], ["a", "b"]], vocab) == {(0, 1): (1, 2)}
    with pytest.raises(Refusal):
        file_merges(["a c"], vocab)
