"""Post-processors as constants around T: what is read, what is refused, and that the engine has the last word."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.support.tokenizer_files import small_spec
from tests.support.tokenizers_data import each, spec_of, tokenizer_of
from toktier.engines.reference import ReferenceEngine
from toktier.errors import Refusal
from toktier.postprocessor import SpecialTokens, special_tokens

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
BERT = {"type": "BertProcessing", "sep": ["<|im_end|>", 7], "cls": ["<|im_start|>", 3]}
ROBERTA = {**BERT, "type": "RobertaProcessing", "trim_offsets": True, "add_prefix_space": True}
TEXTS = ("", "x", " the  fox", "a\n\n1", "<|im_end|>", "é中😀")


def template(*single: str, ids: dict[str, list[int]] | None = None) -> dict[str, Any]:
    """``$A`` and the like are texts, all else special tokens."""
    table = {"<x>": [5], "<y>": [6, 9], **(ids or {})}
    return {
        "type": "TemplateProcessing",
        "single": [
            {"Sequence": {"id": one[1:], "type_id": 0}}
            if one[0] == "$"
            else {"SpecialToken": {"id": one, "type_id": 0}}
            for one in single
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {
            name: {"id": name, "ids": values, "tokens": [name] * len(values)} for name, values in table.items()
        },
    }


def sequence(*processors: Any) -> dict[str, Any]:
    return {"type": "Sequence", "processors": list(processors)}


def engine_of(processor: Any) -> tuple[dict[str, Any], ReferenceEngine]:
    spec = {**small_spec(), "post_processor": processor}
    return spec, ReferenceEngine(Tokenizer.from_str(json.dumps(spec)))


@pytest.mark.parametrize(
    ("processor", "prefix", "suffix"),
    [
        (None, [], []),
        (BYTE_LEVEL, [], []),
        (BERT, [3], [7]),
        (ROBERTA, [3], [7]),
        (template("$A"), [], []),
        (template("<x>", "$A"), [5], []),
        (template("<x>", "<y>", "$A", "<y>", "<x>"), [5, 6, 9], [6, 9, 5]),
        (sequence(), [], []),
        (sequence(BYTE_LEVEL, template("<x>", "$A")), [5], []),
        (sequence(template("<x>", "$A"), BYTE_LEVEL), [5], []),
        (sequence(BERT, ROBERTA, sequence(template("<x>", "$A", "<y>"))), [5, 3, 3], [7, 7, 6, 9]),
    ],
)
def test_what_stands_around_a_text(processor: Any, prefix: list[int], suffix: list[int]) -> None:
    spec, reference = engine_of(processor)
    special = special_tokens(spec, reference)
    assert (special.prefix.tolist(), special.suffix.tolist()) == (prefix, suffix)
    for text in TEXTS:
        ids = special.around(reference.encode(text))
        assert ids.dtype == np.uint32
        assert ids.tolist() == reference.tokenizer.encode(text, add_special_tokens=True).ids


@pytest.mark.parametrize(
    ("processor", "construct", "place"),
    [
        (template("<x>"), "template without the text", "post_processor.single"),
        (template("$A", "<x>", "$A"), "template with the text more than once", "post_processor.single"),
        (template("$A", "$B"), "template with $B for a single text", "post_processor.single"),
        (
            sequence(BYTE_LEVEL, template("$B")),
            "template with $B for a single text",
            "post_processor.processors[1].single",
        ),
        (sequence({"type": "Odd"}), "post-processor Odd", "post_processor.processors[0]"),
        ({"type": "BertProcessing"}, "malformed post-processor", "post_processor"),
        ({"type": "BertProcessing", "cls": ["a", -1], "sep": ["b", 1]}, "malformed post-processor", "post_processor"),
        (template("<z>", "$A"), "malformed post-processor", "post_processor"),
        ([], "malformed post-processor", "post_processor"),
    ],
)
def test_what_is_no_constant_is_refused_by_name(processor: Any, construct: str, place: str) -> None:
    _, plain = engine_of(None)  # the engine itself may not load such a file
    with pytest.raises(Refusal) as refused:
        special_tokens({"post_processor": processor}, plain)
    assert (refused.value.construct, refused.value.place) == (construct, place)


@pytest.mark.parametrize(
    ("first", "second", "how"),
    [
        (template("<x>", "$A"), template("$A", "<y>"), "applies differently"),  # the second is taken for a pair
        (template("<x>", "$A", "<x>"), BERT, "applies differently"),
        (template("<x>", "$A", "<x>"), template("$A", "<y>"), "the engine fails"),
    ],
)
def test_what_the_engine_makes_of_two_templates_is_refused(first: Any, second: Any, how: str) -> None:
    with pytest.raises(Refusal, match=how):
        special_tokens(*engine_of(sequence(first, second)))


def test_the_engine_has_the_last_word() -> None:
    spec, _ = engine_of(BERT)
    _, other = engine_of(template("<x>", "$A"))
    with pytest.raises(Refusal, match="applies differently"):
        special_tokens(spec, other)


PREFIXES = {"qwen3": [], "llama3_1": [128000], "gemma3": [2], "llama2": [1], "deepseek_v3": [], "tekken": []}


@pytest.mark.parametrize("name", each(PREFIXES))
def test_real_files(name: str) -> None:
    prefix = PREFIXES[name]
    special = special_tokens(spec_of(name), ReferenceEngine(tokenizer_of(name)))
    assert (special.prefix.tolist(), special.suffix.tolist()) == (prefix, [])


def test_nothing_is_shared_with_what_stands_inside() -> None:
    ids = np.array([1, 2], np.uint32)
    around = SpecialTokens(np.array([], np.uint32), np.array([], np.uint32)).around(ids)
    around[0] = 9
    assert ids.tolist() == [1, 2]
