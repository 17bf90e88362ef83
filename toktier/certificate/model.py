"""Which models the lemmas may be asked about.

Lemmas 1 and 2 give pieces, and each piece is mapped to IDs on its own: so the model must be a *function of the piece*.
BPE, WordPiece, WordLevel and Unigram are, whatever their flags (prefixes and suffixes of words, `ignore_merges`, byte
fallback, fused unknowns, a longest word), except where they draw at random: BPE dropout and Unigram sampling.

Text that no stage splits needs more: lemma 3 (`joins`), which is about merges and so about BPE alone. The best path of
a Unigram, or the longest match of a WordPiece, may change at any distance from the seam.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import Tokenizer

from toktier.errors import Refusal

MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram")
_WORD_PIECE_KEYS = ("unk_token", "continuing_subword_prefix", "max_input_chars_per_word")


def model_kind(model: Mapping[str, Any]) -> str | None:
    """The type that a model has in the file; where it names none, what its fields make of it, as the engine reads them.

    `None` where the fields fit no model. Source: upstream `models/mod.rs`, the order of its untagged variants.
    """
    if "type" in model:
        kind = model["type"]
        return kind if isinstance(kind, str) else None
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    if "vocab" not in model:
        return None
    if "merges" in model:
        return "BPE"
    if all(key in model for key in _WORD_PIECE_KEYS):
        return "WordPiece"
    return "WordLevel" if "unk_token" in model else None


def check_model(spec: Mapping[str, Any], reference: Tokenizer) -> str:
    """The model's type, if it is a function of the piece. Raises `Refusal` otherwise.

    ``spec`` is the parsed tokenizer.json, ``reference`` the engine's object made from it: what can be changed on the
    object after it was made is asked of both.
    """
    model = spec.get("model") or {}
    kind = model_kind(model)
    if kind not in MODELS:
        raise Refusal(f"model {kind}", "model")
    held = reference.model
    if type(held).__name__ != kind:
        raise Refusal(f"model {kind} that the engine reads as {type(held).__name__}", "model")
    if model.get("dropout") or getattr(held, "dropout", None):
        raise Refusal("BPE dropout", "model.dropout")
    for name in ("alpha", "nbest_size"):
        if model.get(name) or getattr(held, name, None):
            raise Refusal("Unigram sampling", f"model.{name}")
    if reference.truncation is not None:
        raise Refusal("truncation", "truncation")
    if reference.padding is not None:
        raise Refusal("padding", "padding")
    return kind


def may_join(model: Mapping[str, Any]) -> bool:
    """Whether lemma 3 may be asked for cuts inside pieces. Other models have none there: only stages that split."""
    return model_kind(model) == "BPE"
