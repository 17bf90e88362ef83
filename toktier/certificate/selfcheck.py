"""The certificate against the engine, at load: proofs can be right and programs wrong.

For hostile texts x with certified cuts: T(x) is the concatenation of the T of the parts (lemma 6), and so are the
pieces. Every pair of classes that is a cut occurs, as far as the number of texts allows. A fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from tokenizers import Tokenizer

from toktier.certificate.samples import TextSource
from toktier.errors import Refusal

if TYPE_CHECKING:
    from toktier.certificate.certificate import Certificate

_TEXTS = 160
_PAIRS_PER_TEXT = 8


def self_check(certificate: Certificate, reference: Tokenizer, literals: Sequence[str], *, texts: int = _TEXTS) -> int:
    """The number of cuts checked. Raises `Refusal` ("self-check") where a text contradicts the certificate."""
    source = TextSource(certificate.table.classes, literals, seed=certificate.digest)
    pairs = [
        (int(a), int(b))
        for a, b in zip(*np.nonzero(certificate.table.matrix), strict=True)
        if int(a) in source.members and int(b) in source.members
    ]
    source.rng.shuffle(pairs)
    checked = 0
    whole: list[str] = []
    for k in range(texts):
        at = k * _PAIRS_PER_TEXT
        whole.append(source.around(pairs[at : at + _PAIRS_PER_TEXT]) if at < len(pairs) else source.text(24))
    parts = [split_at_cuts(certificate, text) for text in whole]
    encodings = iter(reference.encode_batch_fast([*whole, *(p for ps in parts for p in ps)], add_special_tokens=False))
    ids = [next(encodings).ids for _ in whole]
    for text, full, ps in zip(whole, ids, parts, strict=True):
        if full != [t for _ in ps for t in next(encodings).ids]:
            raise Refusal("self-check", "IDs at a certified cut")
        if _pieces(reference, text) != [piece for p in ps for piece in _pieces(reference, p)]:
            raise Refusal("self-check", "pieces at a certified cut")
        checked += len(ps) - 1
    return checked


def split_at_cuts(certificate: Certificate, text: str) -> list[str]:
    """The text's parts between all of its cuts."""
    edges = [0, *certificate.cuts(text).tolist(), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def _pieces(reference: Tokenizer, text: str) -> list[str]:
    """What the normalizer and the pre-tokenizer make of a text in which no literal is looked for."""
    if reference.normalizer:
        text = reference.normalizer.normalize_str(text)
    return [piece for piece, _ in reference.pre_tokenizer.pre_tokenize_str(text)] if reference.pre_tokenizer else [text]
