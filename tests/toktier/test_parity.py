"""Raw tokenizer.json against AutoTokenizer (case T15): what agrees, and what must be noticed."""

from __future__ import annotations

import importlib.util
import json
import lzma
import os
import subprocess
import sys
import threading
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from tests.conftest import data_path
from tests.support.tokenizer_files import small_spec, write
from toktier import files, kept, parity
from toktier.engines.reference import ReferenceEngine
from toktier.parity import Comparison, Outcome, Parity
from toktier.parity_texts import PROBES, probes
from toktier.postprocessor import SpecialTokens, special_tokens
from toktier.tokenizer import EMBEDDED

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")

CONFIG: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}


def compare(path: Path, **options: Any) -> Parity:
    """The comparison on the files at ``path``, without the certificate and the window engine, which have no part."""
    read = files.read(path)
    with Comparison(read, read.digest(["v1"]), **options) as comparison:
        reference = ReferenceEngine(Tokenizer.from_str(read.tokenizer.decode()))
        return comparison.result(reference, special_tokens(json.loads(read.tokenizer), reference))


def texts_of(path: Path) -> list[str]:
    return list(probes(files.read(path)))


def added(content: str, **flags: bool) -> dict[str, Any]:
    names = ("single_word", "lstrip", "rstrip", "normalized", "special")
    return {"content": content, **{name: flags.get(name, False) for name in names}}


def test_the_embedded_tokenizer_agrees() -> None:
    found = compare(EMBEDDED)
    assert found.outcome is Outcome.EQUAL, found
    assert found.different == ()
    assert found.special


BOS = {
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [422], "tokens": ["<|im_start|>"]}},
}


def test_special_tokens_are_compared_apart(tmp_path: Path) -> None:
    """Here transformers takes the file's post-processor; it is ours that is another one, or that is not known."""
    read = files.read(write(tmp_path, {**small_spec(), "post_processor": BOS}, tokenizer_config=CONFIG))
    reference = ReferenceEngine(Tokenizer.from_str(read.tokenizer.decode()))
    with Comparison(read, read.digest(["v1"])) as comparison:
        for prefix in ([422], [423], [], None):
            comparison._known = None  # its process has answered once for all
            special = None
            if prefix is not None:
                special = SpecialTokens(np.array(prefix, np.uint32), np.array([], np.uint32))
            found = comparison.result(reference, special)
            alike = prefix == [422]
            assert (found.outcome, found.different, found.special) == (Outcome.EQUAL, (), alike)
            assert ("not with special tokens" in found.detail) is not alike


def test_llama_2_differs() -> None:
    """transformers builds its own normalizer for this class and does not put a space before a segment."""
    path = data_path("tokenizers", "llama2")
    found = compare(path)
    assert found.outcome is Outcome.DIFFERENT
    texts = texts_of(path)
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
    path = write(tmp_path, small_spec(), tokenizer_config=config, **small)
    found = compare(path)
    assert found.outcome is Outcome.DIFFERENT, found
    assert found.different
    assert all("<|" in texts_of(path)[i] for i in found.different)


def test_truncation_and_padding_in_the_file_make_no_difference(tmp_path: Path) -> None:
    spec = small_spec()
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    packed = write(tmp_path, spec, tokenizer_config=CONFIG)
    (packed / "tokenizer.json.xz").write_bytes(lzma.compress((packed / "tokenizer.json").read_bytes()))
    (packed / "tokenizer.json").unlink()
    found = compare(packed)
    assert found.outcome is Outcome.EQUAL, found


def test_what_transformers_cannot_load(tmp_path: Path) -> None:
    config = {"auto_map": {"AutoTokenizer": ["custom.Tokenizer", None]}}
    found = compare(write(tmp_path, small_spec(), tokenizer_config=config), cache_dir=tmp_path / "cache")
    assert found.outcome is Outcome.FAILED
    assert "AutoTokenizer could not be used" in found.detail
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("added", [5, None, "x", [5, {}, {"content": 5}]])
def test_malformed_added_tokens_only_cost_probes(tmp_path: Path, added: Any) -> None:
    read = files.read(str(write(tmp_path, {**small_spec(), "added_tokens": added})))
    assert list(probes(read))[: len(PROBES)] == list(PROBES)


def test_a_worker_that_does_not_end(tmp_path: Path) -> None:
    found = compare(write(tmp_path, small_spec(), tokenizer_config=CONFIG), timeout_s=0.05, cache_dir=tmp_path / "c")
    assert found.outcome is Outcome.FAILED
    assert not (tmp_path / "c").exists()


def test_a_worker_that_is_stopped_or_left(tmp_path: Path) -> None:
    read = files.read(write(tmp_path, small_spec(), tokenizer_config=CONFIG))
    with Comparison(read, "d") as comparison:
        process = comparison._process
        assert process is not None
        threading.Timer(0.2, comparison.stop).start()
        found = comparison.result(ReferenceEngine(Tokenizer.from_str(read.tokenizer.decode())), None)
    assert (found.outcome, found.detail) == (Outcome.FAILED, "it was stopped")
    with Comparison(read, "d") as comparison:
        process = comparison._process
        scratch = comparison._scratch
        assert process is not None
        assert scratch is not None
    assert process.returncode is not None
    assert not Path(scratch.name).exists()


def test_the_worker_ends_with_who_asked(tmp_path: Path) -> None:
    """Even where nothing could tell it: the other end of its standard input closes."""
    command = [sys.executable, "-P", str(parity.WORKER), "no-folder", os.devnull, str(tmp_path / "ids.json")]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE)
    assert worker.stdin is not None
    worker.stdin.close()
    assert worker.wait(30) == 1
    assert not (tmp_path / "ids.json").exists()


def test_without_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> str:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "version", absent)
    found = compare(write(tmp_path, small_spec(), tokenizer_config=CONFIG), cache_dir=tmp_path / "cache")
    assert found.outcome is Outcome.NOT_INSTALLED
    assert not (tmp_path / "cache").exists()


def no_process(*_: Any, **__: Any) -> None:
    raise OSError("a process is needed")


@pytest.mark.parametrize("config", [CONFIG, {**CONFIG, "eos_token": "<|end|>"}], ids=["equal", "different"])
def test_a_verdict_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: dict[str, Any]) -> None:
    path = write(tmp_path / "model", small_spec(), tokenizer_config=config)
    cache = tmp_path / "cache"
    first = compare(path, cache_dir=cache)
    assert not first.from_cache
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", None)  # no process is needed
        again = compare(path, cache_dir=cache)
    assert again == replace(first, from_cache=True)

    (path / "vocab.json").write_text("{}")  # read by transformers only
    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "Popen", no_process)
        assert compare(path, cache_dir=cache).detail == "OSError: a process is needed"
    (path / "vocab.json").unlink()
    for file in cache.iterdir():
        kept.store(cache, file.stem, {"outcome": "failed", "detail": "", "different": []})
    assert compare(path, cache_dir=cache) == first


@pytest.mark.parametrize("different", [[float("inf")], [float("nan")], ["x"], 5, None])
def test_a_verdict_that_makes_no_sense_is_none(different: Any) -> None:
    value = {"outcome": "equal", "detail": "", "different": different, "special": True}
    assert parity._kept(value) is None
    assert parity._kept({**value, "different": [1]}) is not None


def test_a_verdict_is_of_one_version_of_everything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = files.read(write(tmp_path, small_spec(), tokenizer_config=CONFIG))
    keys = {parity._key(read, "d", "1"), parity._key(read, "e", "1"), parity._key(read, "d", "2")}
    monkeypatch.setattr(parity, "REVISION", parity.REVISION + 1)
    keys.add(parity._key(read, "d", "1"))
    assert len(keys) == 4


def test_the_probe_set_covers_every_literal_of_every_file(tmp_path: Path) -> None:
    config = {"added_tokens_decoder": {"1": added("<A>")}, "eos_token": added("<B>"), "extra_special_tokens": ["<C>"]}
    small = {"special_tokens_map": {"x_token": "<D>"}, "added_tokens": {"<E>": 9}}
    text = "".join(texts_of(write(tmp_path, small_spec(), tokenizer_config=config, **small)))
    assert all(literal in text for literal in ("<A>", "<B>", "<C>", "<D>", "<E>", "<|im_start|>"))
    assert len(PROBES) >= 50
