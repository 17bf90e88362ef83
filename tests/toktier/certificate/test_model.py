"""Which models are a function of the piece, and which may be asked for cuts inside one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from tokenizers import Tokenizer

from toktier.certificate.model import check_model, may_join, model_kind
from toktier.errors import Refusal

VOCAB = {"a": 0, "b": 1, "[UNK]": 2}
SCORES = [["a", -1.0], ["b", -1.5], ["[UNK]", -2.0]]
WORD_PIECE = {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}

MODELS = {
    "BPE": {"type": "BPE", "vocab": VOCAB, "merges": []},
    "BPE that is not named": {"vocab": VOCAB, "merges": []},
    "BPE with the fields of WordPiece": {"vocab": VOCAB, "merges": [], **WORD_PIECE},
    "BPE, dropout of nothing": {"type": "BPE", "vocab": VOCAB, "merges": [], "dropout": 0.0},
    "BPE of words": {"type": "BPE", "vocab": VOCAB, "merges": [], "end_of_word_suffix": "</w>", "ignore_merges": True},
    "WordPiece": {"type": "WordPiece", "vocab": VOCAB, **WORD_PIECE},
    "WordPiece that is not named": {"vocab": VOCAB, **WORD_PIECE},
    "WordLevel": {"type": "WordLevel", "vocab": VOCAB, "unk_token": "[UNK]"},
    "WordLevel that is not named": {"vocab": VOCAB, "unk_token": "[UNK]"},
    "WordLevel with a field of WordPiece": {"vocab": VOCAB, "unk_token": "[UNK]", "continuing_subword_prefix": "##"},
    "Unigram": {"type": "Unigram", "vocab": SCORES, "unk_id": 2, "byte_fallback": True},
    "Unigram that is not named": {"vocab": SCORES, "unk_id": 2},
}


def made(model: Mapping[str, Any]) -> tuple[dict[str, Any], Tokenizer]:
    spec = {"version": "1.0", "model": dict(model)}
    return spec, Tokenizer.from_str(json.dumps(spec))


@pytest.mark.parametrize(("name", "model"), MODELS.items(), ids=MODELS)
def test_the_type_is_what_the_engine_makes_of_the_file(name: str, model: dict[str, Any]) -> None:
    spec, reference = made(model)
    kind = check_model(spec, reference)
    assert kind == model_kind(model) == type(reference.model).__name__
    assert name.startswith(kind)
    assert may_join(model) == (kind == "BPE")


@pytest.mark.parametrize(
    "model", [{}, {"vocab": VOCAB}, {"merges": []}, {"type": None, "vocab": VOCAB, "merges": []}, {"type": "CharLM"}]
)
def test_what_no_model_fits_is_refused(model: dict[str, Any]) -> None:
    _, reference = made(MODELS["BPE"])
    with pytest.raises(Refusal, match=r"^model "):
        check_model({"model": model}, reference)
    assert not may_join(model)


def test_a_file_whose_fields_mislead_is_refused() -> None:
    """Merges that are none make the engine take the next type that fits."""
    spec, reference = made({"vocab": VOCAB, "merges": ["x"], "unk_token": "[UNK]"})
    with pytest.raises(Refusal, match="BPE that the engine reads as WordLevel"):
        check_model(spec, reference)


def test_what_draws_at_random_is_refused_in_the_file_and_on_the_object() -> None:
    spec, reference = made({**MODELS["BPE"], "dropout": 0.5})
    with pytest.raises(Refusal, match="BPE dropout"):
        check_model(spec, reference)
    spec, reference = made(MODELS["BPE"])
    check_model(spec, reference)
    reference.model.dropout = 0.5
    with pytest.raises(Refusal, match="BPE dropout"):
        check_model(spec, reference)
    for name, value in (("alpha", 0.1), ("nbest_size", 4)):
        spec, reference = made({**MODELS["Unigram"], name: value})
        with pytest.raises(Refusal, match="Unigram sampling"):
            check_model(spec, reference)
        spec, reference = made(MODELS["Unigram"])
        check_model(spec, reference)
        setattr(reference.model, name, value)
        with pytest.raises(Refusal, match="Unigram sampling"):
            check_model(spec, reference)


def test_truncation_and_padding_are_refused() -> None:
    spec, reference = made(MODELS["WordLevel"])
    reference.enable_truncation(10)
    with pytest.raises(Refusal, match="truncation"):
        check_model(spec, reference)
    reference.no_truncation()
    reference.enable_padding()
    with pytest.raises(Refusal, match="padding"):
        check_model(spec, reference)
