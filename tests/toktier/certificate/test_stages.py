"""Pre-tokenizer blocks as stages, and refusals by place."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import pre_tokenizers

from tests.support.regex_oracle import engine_matches
from tests.support.split_cases import pieces_of, split_spec
from toktier.certificate.stages import BYTE_LEVEL_PATTERN, stages
from toktier.errors import Refusal


def byte_level(**flags: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False, **flags}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "pretokenizers": list(parts)}


def test_nested_sequences_keep_their_order() -> None:
    found = stages(sequence(split_spec("a"), sequence(split_spec("b", "Removed", True), byte_level(use_regex=True))))
    assert [(s.pattern, s.behaviour, s.invert, s.place) for s in found] == [
        ("a", "Isolated", False, "pre_tokenizer[0]"),
        ("b", "Removed", True, "pre_tokenizer[1][0]"),
        (BYTE_LEVEL_PATTERN, "Isolated", False, "pre_tokenizer[1][1]"),
    ]


def test_byte_level_pattern_is_the_engines() -> None:
    text = "I'll say 'twas 12 times,  ok?\n\n It's é中 \t x"
    pieces = pieces_of(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    lengths = [len(text[a:b].encode()) for a, b in engine_matches(BYTE_LEVEL_PATTERN, text)]
    assert [len(p) for p in pieces(text)] == lengths


@pytest.mark.parametrize(
    ("spec", "construct", "place"),
    [
        (None, "no pre-tokenizer", "pre_tokenizer"),
        (byte_level(), "pre-tokenizer that does not split", "pre_tokenizer"),
        (byte_level(add_prefix_space=True), "ByteLevel with add_prefix_space", "pre_tokenizer"),
        (sequence(byte_level(), split_spec("a")), "pre-tokenizer after ByteLevel", "pre_tokenizer[1]"),
        (sequence({"type": "Metaspace"}), "pre-tokenizer Metaspace", "pre_tokenizer[0]"),
        (split_spec("a", "Sideways"), "split behaviour Sideways", "pre_tokenizer"),
        (split_spec("a*"), "pattern that can match the empty string", "pre_tokenizer"),
        (split_spec("a|^b"), "anchor ^", "pre_tokenizer, character 2"),
        ({**split_spec("a"), "pattern": "a"}, "split pattern of an unknown form", "pre_tokenizer"),
        ({**split_spec("a"), "pattern": {"String": ""}}, "pattern that can match the empty string", "pre_tokenizer"),
    ],
)
def test_refusals(spec: dict[str, Any] | None, construct: str, place: str) -> None:
    with pytest.raises(Refusal) as e:
        stages(spec)
    assert (e.value.construct, e.value.place) == (construct, place)
