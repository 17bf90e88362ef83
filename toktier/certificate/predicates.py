"""Sets of characters that a pre-tokenizer splits by without a regex: what it takes as a digit, a punctuation mark...

They are asked of the pre-tokenizers themselves. All that is assumed is how each splits:

- Digits, Punctuation and WhitespaceSplit cut out or drop, one at a time, the characters that their predicate holds;
  other characters stay together. BertPreTokenizer drops white space and cuts out punctuation;
- Whitespace keeps the runs of two disjoint sets, ``\\w`` and ``[^\\w\\s]`` of the Rust regex crate, and drops the rest.

So a character c is told by what becomes of it in "cx": it stays with the x, or is cut off it, or is dropped; x being
a word character that no predicate holds.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tokenizers import pre_tokenizers

NUMERIC = "numeric"
PUNCTUATION = "punctuation"
WHITE_SPACE = "white space"
BERT_WHITE_SPACE = "white space (BERT)"
BERT_PUNCTUATION = "punctuation (BERT)"
WORD = "word character"
OTHER = "neither word character nor white space"

_JOINED, _CUT_OFF, _DROPPED = "joined", "cut off", "dropped"
_ASKED: tuple[tuple[Callable[[], pre_tokenizers.PreTokenizer], dict[str, str]], ...] = (
    (lambda: pre_tokenizers.Digits(individual_digits=True), {NUMERIC: _CUT_OFF}),
    (lambda: pre_tokenizers.Punctuation("isolated"), {PUNCTUATION: _CUT_OFF}),
    (pre_tokenizers.WhitespaceSplit, {WHITE_SPACE: _DROPPED}),
    (pre_tokenizers.BertPreTokenizer, {BERT_WHITE_SPACE: _DROPPED, BERT_PUNCTUATION: _CUT_OFF}),
    (pre_tokenizers.Whitespace, {WORD: _JOINED, OTHER: _CUT_OFF}),
)
"""Per pre-tokenizer: its predicates, each by what becomes of its members beside an x."""

_BLOCK = 512


def held(name: str, text: str) -> dict[str, str]:
    """The characters of ``text`` that predicate ``name`` holds, in order, and those of its pre-tokenizer's others.

    ``text`` holds no surrogate. Raises `KeyError` for a name that is none of this module's.
    """
    for make, fates in _ASKED:
        if name in fates:
            pre_tokenizer = make()
            told = [_fates(pre_tokenizer, text[i : i + _BLOCK]) for i in range(0, len(text), _BLOCK)]
            return {other: "".join(block.get(fate, "") for block in told) for other, fate in fates.items()}
    raise KeyError(name)


def _fates(pre_tokenizer: pre_tokenizers.PreTokenizer, block: str) -> dict[str, str]:
    """The characters of ``block``, not empty, by what becomes of them."""
    spans = [span for _, span in pre_tokenizer.pre_tokenize_str(block)]
    if spans == [(0, len(block))] and len(block) > 1:  # one piece: all share one fate
        return {_JOINED if len(pre_tokenizer.pre_tokenize_str(block[0] + "x")) == 1 else _CUT_OFF: block}
    text = "x".join(block) + "x"
    inner, covered = np.zeros(len(text), np.bool_), np.zeros(len(text), np.bool_)
    for _, (start, end) in pre_tokenizer.pre_tokenize_str(text):
        inner[start + 1 : end] = True
        covered[start:end] = True
    joined, kept = inner[1::2].tolist(), covered[::2].tolist()
    told: dict[str, str] = {_JOINED: "", _CUT_OFF: "", _DROPPED: ""}
    for c, with_x, there in zip(block, joined, kept, strict=True):
        told[_JOINED if with_x else _CUT_OFF if there else _DROPPED] += c
    return told
