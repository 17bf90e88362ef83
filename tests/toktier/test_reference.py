"""The reference engine: T by its definition, with truncation and padding off."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any
from unittest.mock import create_autospec

import numpy as np
import pytest
import tokenizers
from tokenizers import AddedToken, Regex, models, pre_tokenizers

from tests.support.tokenizer_files import small_spec
from toktier.engines.reference import ReferenceEngine, _memoryless
from toktier.errors import CannotEncode, InvalidText

TEXTS = ["", "one", "two words\n", "<|im_start|>user\n12 <|im_end|>", "e\u0301 中文 \0 😀"]


@pytest.fixture(scope="module")
def engine() -> ReferenceEngine:
    return ReferenceEngine(tokenizers.Tokenizer.from_str(json.dumps(small_spec())))


def test_ids_are_those_of_encode(engine: ReferenceEngine) -> None:
    for text in TEXTS:
        ids = engine.encode(text)
        assert ids.dtype == np.uint32
        assert ids.flags.c_contiguous
        assert ids.tolist() == engine.tokenizer.encode(text, add_special_tokens=False).ids


def test_a_batch_is_the_single_texts_in_order(engine: ReferenceEngine) -> None:
    ids, counts = engine.encode_batch(TEXTS)
    singles = [engine.encode(text) for text in TEXTS]
    assert counts.tolist() == [len(row) for row in singles]
    assert ids.tolist() == np.concatenate(singles).tolist()
    ids, counts = engine.encode_batch([])
    assert (len(ids), len(counts)) == (0, 0)


def test_no_post_processor() -> None:
    spec = small_spec()
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [424], "tokens": ["<|bos|>"]}},
    }
    engine = ReferenceEngine(tokenizers.Tokenizer.from_str(json.dumps(spec)))
    assert engine.tokenizer.encode("<|bos|>hi").ids.count(424) == 2
    assert engine.encode("<|bos|>hi").tolist().count(424) == 1


@pytest.mark.parametrize(("text", "offset"), [("\ud83d", 0), ("bad \ud83d end", 4), ("😀x\udc00", 2)])
def test_a_lone_surrogate_has_its_place(engine: ReferenceEngine, text: str, offset: int) -> None:
    with pytest.raises(InvalidText) as caught:
        engine.encode(text)
    assert caught.value.offset == offset
    with pytest.raises(InvalidText) as caught:
        engine.encode_batch(["fine", text])
    assert caught.value.offset == offset


def test_a_text_that_the_library_gives_up_on_has_no_ids() -> None:
    tokenizer = tokenizers.Tokenizer(models.WordPiece({"a": 0}, unk_token="[UNK]"))
    engine = ReferenceEngine(tokenizer)
    assert engine.encode("a").tolist() == [0]
    with pytest.raises(CannotEncode, match="cannot encode the text"):
        engine.encode("b")
    with pytest.raises(CannotEncode):
        engine.encode_batch(["a", "b"])


def test_a_panic_of_the_library_is_an_error_like_any_other() -> None:
    """A literal that strips left, behind white space that another has stripped and that is a literal itself."""
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    for content, flag in (("<m>", "rstrip"), (" ", "lstrip"), ("\n", "single_word")):
        tokenizer.add_tokens([AddedToken(content, normalized=False, **{flag: True})])
    engine = ReferenceEngine(tokenizer)
    with pytest.raises(CannotEncode, match="PanicException"):
        engine.encode("<m>    x")


def test_a_pattern_that_backtracks_too_far() -> None:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?:a|aa)+$"), "isolated")
    engine = ReferenceEngine(tokenizer)
    for ask in (engine.encode, engine.pieces):
        with pytest.raises(CannotEncode, match="PanicException"):
            ask("a" * 60 + "b")
    with pytest.raises(InvalidText):
        engine.pieces("a\ud800")


def test_decoding_is_the_inverse(engine: ReferenceEngine) -> None:
    text = "<|im_start|>user\nsome 12 words<|im_end|>"
    assert engine.decode(engine.encode(text)) == text
    assert engine.decode(np.array([99_999_999], np.uint32)) == ""


@pytest.mark.parametrize(("kind", "asked"), [(models.BPE, ["_resize_cache"]), (models.Unigram, 2 * ["_clear_cache"])])
def test_no_word_is_remembered_from_one_call_to_the_next(kind: type[Any], asked: list[str]) -> None:
    model = create_autospec(kind, instance=True)  # fails where this version has other names for it
    forget = _memoryless(model)
    forget()
    forget()
    assert [name for name, *_ in model.method_calls] == asked
    assert all(call.args in ((), (0,)) for call in model.method_calls)


def test_words_that_never_come_again_leave_no_memory_behind() -> None:
    """Under `_clear_cache` each of these batches left 0.5 MB."""
    script = """
import random, string
from tokenizers import Tokenizer, models, pre_tokenizers
from toktier.engines.reference import ReferenceEngine

letters = string.ascii_lowercase
pairs = [(a, b) for a in letters for b in letters]
vocab = {word: i for i, word in enumerate([*letters, *map("".join, pairs)])}
tokenizer = Tokenizer(models.BPE(vocab, pairs))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
engine = ReferenceEngine(tokenizer)
rng = random.Random(1)

def kib():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4

for number in range(150):
    engine.encode(" ".join("".join(rng.choices(letters, k=9)) for _ in range(1000)))
    if number == 49:
        before = kib()
print(kib() - before)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 10_000
