"""What a campaign is about: a rule of cuts, the rope over it, and the reference that judges both.

A planted fault is a `Subject` like any other with one thing wrong in it, so that the checks cannot know.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from toktier.campaign.texts import Texts
from toktier.certificate.table import TableCuts
from toktier.chunks import ChunkEncoder
from toktier.engines.base import Reference
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


def subject_of(tokenizer: FrozenTokenizer, real: Sequence[str]) -> Subject:
    """The tokenizer as it is served. Raises its `Refusal` where it has no certificate."""
    if tokenizer.certificate is None:
        assert tokenizer.refusal is not None
        raise tokenizer.refusal
    literals = [token["content"] for token in tokenizer.spec.get("added_tokens") or ()]
    texts = Texts(tokenizer.certificate.table, literals, real)
    return Subject(tokenizer.certificate, tokenizer.reference, tokenizer.encoder, texts)
