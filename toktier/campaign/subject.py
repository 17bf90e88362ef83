"""What a campaign is about: a rule of cuts, the rope over it, and the reference that judges both.

A planted fault is a `Subject` like any other with one thing wrong in it, so that the checks cannot know.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from toktier.campaign.texts import Texts
from toktier.certificate.table import TableCuts
from toktier.chunks import ChunkEncoder, GpuPath
from toktier.engines.base import Reference
from toktier.engines.reference import ReferenceEngine
from toktier.rope import Rope
from toktier.tokenizer import FrozenTokenizer


@dataclass(frozen=True)
class Subject:
    """``encoder``: what ropes use; its rule is ``rule`` unless a fault was planted there."""

    rule: TableCuts
    reference: Reference
    encoder: ChunkEncoder
    texts: Texts
    rope: type[Rope] = Rope


def subject_of(tokenizer: FrozenTokenizer, real: Sequence[str], gpu: GpuPath | None = None) -> Subject:
    """The tokenizer as it is served, with its GPU path if one is given. Raises its `Refusal` where it has no
    certificate."""
    if tokenizer.certificate is None:
        assert tokenizer.refusal is not None
        raise tokenizer.refusal
    literals = [token["content"] for token in tokenizer.spec.get("added_tokens") or ()]
    merged: list[str] = []
    if tokenizer.certificate.table.joins is not None and isinstance(tokenizer.reference, ReferenceEngine):
        merged = merged_texts(tokenizer.reference.tokenizer.get_vocab(with_added_tokens=False))
    texts = Texts(tokenizer.certificate.table, literals, real, merged)
    encoder = replace(tokenizer.encoder, gpu=gpu)
    return Subject(tokenizer.certificate, tokenizer.reference, encoder, texts)


def merged_texts(vocabulary: Iterable[str]) -> list[str]:
    """For every two characters side by side in an entry the shortest such entry, each once, sorted.

    Merges made the entry, so one of them crosses every seam inside it. ``▁`` is what most such models make of a blank.
    """
    found: dict[tuple[str, str], str] = {}
    for entry in sorted(vocabulary, key=lambda entry: (-len(entry), entry)):
        for pair in pairwise(entry):
            found[pair] = entry
    return sorted({entry.replace("\u2581", " ") for entry in found.values()})
