"""The part of a file that `tokenizers` does not know is named, with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from toktier.components import unknown_component
from toktier.errors import UnusableFile
from toktier.tokenizer import FrozenTokenizer

MODEL = {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}
NEW = {"type": "FancyNew"}


def nested(key: str) -> dict[str, Any]:
    known = {"normalizers": {"type": "NFC"}, "pretokenizers": {"type": "Whitespace"}, "decoders": {"type": "Fuse"}}
    return {"type": "Sequence", key: [known[key], {"type": "Sequence", key: [NEW]}]}


@pytest.mark.parametrize(
    ("part", "value", "told"),
    [
        ("normalizer", NEW, "unknown normalizer 'FancyNew', at normalizer"),
        ("normalizer", nested("normalizers"), "unknown normalizer 'FancyNew', at normalizer[1][0]"),
        ("pre_tokenizer", nested("pretokenizers"), "unknown pre_tokenizer 'FancyNew', at pre_tokenizer[1][0]"),
        ("post_processor", NEW, "unknown post_processor 'FancyNew', at post_processor"),
        ("decoder", nested("decoders"), "unknown decoder 'FancyNew', at decoder[1][0]"),
        ("model", MODEL | NEW, "unknown model 'FancyNew', at model"),
    ],
)
def test_it_is_named_with_its_place(part: str, value: Any, told: str, tmp_path: Path) -> None:
    spec = {"version": "1.0", "added_tokens": [], "model": MODEL, part: value}
    assert unknown_component(spec) == told
    (tmp_path / "tokenizer.json").write_text(json.dumps(spec))
    with pytest.raises(UnusableFile) as caught:
        FrozenTokenizer.load(tmp_path)
    assert told in str(caught.value)


def test_what_is_known_is_not_named() -> None:
    assert unknown_component({"model": MODEL, "normalizer": None, "decoder": {"type": "ByteLevel"}}) is None
    assert unknown_component({"model": {"vocab": {}}, "normalizer": 5, "pre_tokenizer": {"type": 5}}) is None
