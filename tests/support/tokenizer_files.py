"""Tokenizer files for tests: the given small ones, and variants of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, data_path
from toktier.tokenizer import EMBEDDED

CACHE = ROOT / ".cache" / "toktier"
"""Verdicts and probed sets between runs; their keys hold the files and the engine versions."""


def small_spec(name: str = "tok_qwenlike") -> dict[str, Any]:
    """A given synthetic ``tokenizer.json``, parsed."""
    spec: dict[str, Any] = json.loads(data_path("cases", f"{name}.json").read_bytes())
    return spec


def write(folder: Path, spec: dict[str, Any], **small: Any) -> Path:
    """A tokenizer folder; ``small`` are further files by name without ``.json``."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    for name, content in small.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def small_qwen3(folder: Path) -> Path:
    """Qwen3's chat template on a small tokenizer: a proxy and its checks load it in a moment."""
    config = json.loads((EMBEDDED / "tokenizer_config.json").read_text("utf-8"))
    return write(folder, small_spec(), tokenizer_config={"chat_template": config["chat_template"]})


def bpe(vocab: list[str], merges: list[str], **model: Any) -> dict[str, Any]:
    """A BPE without normalizer or splits."""
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": None,
            "vocab": {token: i for i, token in enumerate(vocab)},
            "merges": merges,
            **model,
        },
    }
