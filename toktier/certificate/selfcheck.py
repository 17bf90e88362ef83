"""The certificate against the engine, at load: proofs can be right and programs wrong.

For hostile texts x with certified cuts: T(x) is T of the first part and X of the others, one after the other (lemma 6;
X is T but for interior tokenizers), and, where every cut comes from a split, so are the pieces. Every pair of classes
that is a cut occurs, as far as the number of texts allows. A fraction of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from toktier.certificate.samples import TextSource
from toktier.certificate.table import TableCuts
from toktier.errors import Refusal
from toktier.ids import Ids

_TEXTS = 160
_PAIRS_PER_TEXT = 8


class Reference(Protocol):
    """What a certificate is checked against."""

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """T of each text, one after the other, and the counts."""
        ...

    def pieces(self, text: str) -> list[str]:
        """What the normalizer and the pre-tokenizer make of a text in which no literal is looked for."""
        ...


def self_check(
    certificate: TableCuts, reference: Reference, literals: Sequence[str], *, seed: str, texts: int = _TEXTS
) -> int:
    """The number of cuts checked. Raises `Refusal` ("self-check") where a text contradicts the certificate."""
    source = TextSource(certificate.table.classes, literals, seed=seed)
    pairs = [
        (int(a), int(b))
        for a, b in zip(*np.nonzero(certificate.table.matrix), strict=True)
        if int(a) in source.members and int(b) in source.members
    ]
    source.rng.shuffle(pairs)
    whole: list[str] = []
    for k in range(texts):
        at = k * _PAIRS_PER_TEXT
        whole.append(source.around(pairs[at : at + _PAIRS_PER_TEXT]) if at < len(pairs) else source.text(24))
    parts = [split_at_cuts(certificate, text) for text in whole]
    joined, bad = parts_differ(certificate, reference, whole, parts)
    if bad:
        raise Refusal("self-check", "IDs at a certified cut")
    if certificate.table.joins is None:
        for text, own in zip(whole, parts, strict=True):
            if reference.pieces(text) != _pieces_of_parts(certificate, reference, own):
                raise Refusal("self-check", "pieces at a certified cut")
    return joined


def split_at_cuts(certificate: TableCuts, text: str) -> list[str]:
    """The text's parts between all of its cuts."""
    edges = [0, *certificate.cuts(text).tolist(), len(text)]
    return [text[a:b] for a, b in pairwise(edges)]


def parts_differ(
    certificate: TableCuts, reference: Reference, whole: Sequence[str], parts: Sequence[Sequence[str]]
) -> tuple[int, list[int]]:
    """How many seams there are, and which texts' IDs are not those of their parts."""
    asked: dict[str, int] = {}
    rows = [_asked(certificate.interior, own) for own in parts]
    for text, own in zip(whole, rows, strict=True):
        for one in (text, *(t for context, t in own), *(context for context, _ in own if context)):
            asked.setdefault(one, len(asked))
    flat, counts = reference.encode_batch(list(asked))
    ids = [row.tolist() for row in np.split(flat, np.cumsum(counts)[:-1])]
    bad = []
    for k, (text, own) in enumerate(zip(whole, rows, strict=True)):
        found = [t for context, one in own for t in ids[asked[one]][len(ids[asked[context]]) if context else 0 :]]
        if found != ids[asked[text]]:
            bad.append(k)
    return sum(len(own) - 1 for own in parts), bad


def _asked(interior: bool, parts: Sequence[str]) -> list[tuple[str, str]]:
    """(context, context + part) of each part: X(part) is T of the second without T of the first."""
    if not interior:
        return [("", part) for part in parts]
    return [("", parts[0]), *((a[-1], a[-1] + b) for a, b in pairwise(parts))]


def _pieces_of_parts(certificate: TableCuts, reference: Reference, parts: Sequence[str]) -> list[str]:
    found: list[str] = []
    for context, text in _asked(certificate.interior, parts):
        found += reference.pieces(text)[len(reference.pieces(context)) if context else 0 :]
    return found
