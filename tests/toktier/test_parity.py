"""Raw tokenizer.json against AutoTokenizer (case T15): what agrees, and what must be noticed."""

from __future__ import annotations

import importlib.util
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import data_path
from tests.support.tokenizer_files import CACHE, small_spec, write
from toktier import parity
from toktier import tokenizer as tokenizer_module
from toktier.errors import Refusal
from toktier.parity import Outcome, compare_with_transformers, probes
from toktier.tokenizer import EMBEDDED, FrozenTokenizer

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")

CONFIG: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}


@pytest.fixture(autouse=True)
def uncertified(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate costs seconds and has no part in this."""

    def refuse(*_: Any, **__: Any) -> None:
        raise Refusal("not under test", "here")

    monkeypatch.setattr(tokenizer_module, "certify", refuse)


def load(path: Path) -> FrozenTokenizer:
    return FrozenTokenizer.load(path, cache_dir=CACHE, window=False)


def added(content: str, **flags: bool) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": content, **{name: flags.get(name, False) for name in names}}


def test_the_embedded_tokenizer_agrees() -> None:
    found = compare_with_transformers(load(EMBEDDED))
    assert found.outcome is Outcome.EQUAL, found
    assert found.different == ()


def test_llama_2_differs() -> None:
    """transformers builds its own normalizer for this class and does not put a space before a segment."""
    tokenizer = load(data_path("tokenizers", "llama2"))
    found = compare_with_transformers(tokenizer)
    assert found.outcome is Outcome.DIFFERENT
    texts = list(probes(tokenizer))
    assert " leading space" in [texts[i] for i in found.different]


@pytest.mark.parametrize(
    ("config", "small"),
    [
        ({**CONFIG, "added_tokens_decoder": {"425": added("<|new|>", special=True)}}, {}),
        ({**CONFIG, "eos_token": "<|end|>"}, {}),
        ({**CONFIG, "added_tokens_decoder": {"423": added("<|im_end|>", rstrip=True, special=True)}}, {}),
        (CONFIG, {"special_tokens_map": {"additional_special_tokens": ["<|other|>"]}}),
    ],
    ids=["token that tokenizer.json lacks", "named token", "other flags", "special_tokens_map.json"],
)
def test_added_tokens_outside_tokenizer_json_are_noticed(tmp_path: Path, config: Any, small: Any) -> None:
    tokenizer = load(write(tmp_path, small_spec(), tokenizer_config=config, **small))
    found = compare_with_transformers(tokenizer)
    assert found.outcome is Outcome.DIFFERENT, found
    assert found.different
    assert all("<|" in list(probes(tokenizer))[i] for i in found.different)


def test_truncation_and_padding_in_the_file_make_no_difference(tmp_path: Path) -> None:
    spec = small_spec()
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    packed = write(tmp_path, spec, tokenizer_config=CONFIG)
    (packed / "tokenizer.json.xz").write_bytes(lzma.compress((packed / "tokenizer.json").read_bytes()))
    (packed / "tokenizer.json").unlink()
    found = compare_with_transformers(load(packed))
    assert found.outcome is Outcome.EQUAL, found


def test_what_transformers_cannot_load(tmp_path: Path) -> None:
    config = {"auto_map": {"AutoTokenizer": ["custom.Tokenizer", None]}}
    found = compare_with_transformers(load(write(tmp_path, small_spec(), tokenizer_config=config)))
    assert found.outcome is Outcome.FAILED
    assert "AutoTokenizer could not be used" in found.detail


def test_files_that_changed_since_the_load(tmp_path: Path) -> None:
    tokenizer = load(write(tmp_path, small_spec(), tokenizer_config=CONFIG))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**CONFIG, "x": 1}))
    found = compare_with_transformers(tokenizer)
    assert found.outcome is Outcome.FAILED
    assert "have changed" in found.detail


def test_a_worker_that_does_not_end(tmp_path: Path) -> None:
    tokenizer = load(write(tmp_path, small_spec(), tokenizer_config=CONFIG))
    assert compare_with_transformers(tokenizer, timeout_s=0.05).outcome is Outcome.FAILED


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load(write(tmp_path, small_spec(), tokenizer_config=CONFIG))
    monkeypatch.setattr(parity.importlib.util, "find_spec", lambda _: None)
    assert compare_with_transformers(tokenizer).outcome is Outcome.NOT_INSTALLED


def test_the_probe_set_covers_every_literal_of_every_file(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"1": added("<A>")}, "eos_token": added("<B>"), "extra_special_tokens": ["<C>"]}
    small = {"special_tokens_map": {"x_token": "<D>"}, "added_tokens": {"<E>": 9}}
    tokenizer = load(write(tmp_path, small_spec(), tokenizer_config=config, **small))
    text = "".join(probes(tokenizer))
    assert all(literal in text for literal in ("<A>", "<B>", "<C>", "<D>", "<E>", "<|im_start|>"))
    assert len(parity.PROBES) >= 50
