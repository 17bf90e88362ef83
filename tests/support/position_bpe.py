"""Small tokenizers that put something before the text, or before each segment of it, and cuts of theirs by hand."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers

from tests.support.small_bpe import TRAINING, CountingEngine
from toktier.chunks import ChunkEncoder

KINDS = ("prepend", "metaspace_first", "byte_level")
LITERAL = "<m>"


class WordRule:
    """A cut between an ASCII letter and the blank or digit after it; a literal's end is none."""

    interior = True

    def __init__(self, right: str) -> None:
        self._right = right

    def is_cut(self, text: str, i: int) -> bool:
        return text[i - 1].isascii() and text[i - 1].isalpha() and text[i] in self._right

    def cuts(self, text: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        last = len(text) - 1 if stop is None else min(stop, len(text) - 1)
        return np.array([i for i in range(max(start, 1), last + 1) if self.is_cut(text, i)], np.int64)


@cache
def position_tokenizer(kind: str) -> tokenizers.Tokenizer:
    """One of `KINDS`. No merge has a letter before a blank or beside a digit, so the cuts of `position_rule` hold."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    alphabet = sorted({*"abcdefghijklmnopqrstuvwxyz0123456789<>|\n▁", *pre_tokenizers.ByteLevel.alphabet()})
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=["<unk>"], show_progress=False
    )
    byte_level = kind == "byte_level"
    words = pre_tokenizers.ByteLevel(add_prefix_space=True) if byte_level else pre_tokenizers.Metaspace()
    tokenizer.pre_tokenizer = words
    tokenizer.train_from_iterator([TRAINING + "1 2 12 21 " * 3], trainer)
    if kind == "prepend":
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        tokenizer.pre_tokenizer = None
    elif kind == "metaspace_first":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Metaspace(prepend_scheme="first")]
        )
    tokenizer.add_special_tokens([AddedToken(LITERAL, normalized=False)])
    return tokenizer


def position_rule(kind: str) -> WordRule:
    return WordRule(" " if kind == "prepend" else " 0123456789")


def position_encoder(kind: str) -> ChunkEncoder:
    """A fresh encoder; its engines count what they see."""
    engines = CountingEngine(position_tokenizer(kind)), CountingEngine(position_tokenizer(kind))
    return ChunkEncoder(position_rule(kind), *engines, marker="<m")


def position_truth(kind: str, text: str) -> list[int]:
    return list(position_tokenizer(kind).encode(text, add_special_tokens=False).ids)
