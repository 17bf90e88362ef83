"""A small byte-level BPE whose cuts are obvious: white space stands alone, so a seam that touches it is a cut."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Regex, models, pre_tokenizers, trainers

from toktier.chunks import ChunkEncoder
from toktier.errors import InvalidText
from toktier.ids import EMPTY, Ids

TRAINING = (
    "the quick brown fox jumps over the lazy dog while other foxes were sleeping in the shadow of the old tree "
    "and nothing else happened until morning came with its ordinary noise of birds and distant trains "
)


class CountingEngine:
    """Engine over a `tokenizers.Tokenizer` that remembers what it was asked to encode."""

    name = "tokenizers"
    version = tokenizers.__version__

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.seen: list[str] = []

    def encode(self, text: str) -> Ids:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(error.start) from None
        self.seen.append(text)
        return np.array(self.tokenizer.encode(text, add_special_tokens=False).ids, np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        parts = [self.encode(text) for text in texts]
        return np.concatenate([EMPTY, *parts]), np.array([len(part) for part in parts], np.int64)


class SpaceRule:
    """A cut where either side is ASCII white space."""

    interior = False

    def is_cut(self, text: str, i: int) -> bool:
        return text[i - 1] in " \n" or text[i] in " \n"

    def cuts(self, text: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        last = len(text) - 1 if stop is None else min(stop, len(text) - 1)
        return np.array([i for i in range(max(start, 1), last + 1) if self.is_cut(text, i)], np.int64)


@cache
def small_tokenizer() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"[ \n]|[^ \n]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([TRAINING], trainer)
    return tokenizer


def small_encoder(*, certified: bool = True) -> ChunkEncoder:
    """A fresh encoder; its engines count what they see."""
    return ChunkEncoder(
        SpaceRule() if certified else None, CountingEngine(small_tokenizer()), CountingEngine(small_tokenizer())
    )


def truth(text: str) -> list[int]:
    return list(small_tokenizer().encode(text, add_special_tokens=False).ids)
