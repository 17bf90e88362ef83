"""A frozen tokenizer: what is loaded, what is switched off, what is refused, and what a missing part costs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.models import qwen3
from tests.support.tokenizer_files import CACHE, bpe, small_spec, write
from toktier import tokenizer as module
from toktier.engines import admission
from toktier.engines.fastokens import FastokensEngine
from toktier.engines.reference import ReferenceEngine
from toktier.errors import Refusal, UnusableFile
from toktier.tokenizer import FrozenTokenizer

TEXT = "<|im_start|>user\nit's 12 much longer words ſ than\n\n four<|im_end|>\n"

TRUNCATION = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
PADDING = {
    "strategy": {"Fixed": 64},
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "a",
}


@pytest.fixture(autouse=True)
def unhurried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates have tests of their own and cost seconds: only tests marked as slow derive one here."""

    def refuse(*_: Any, **__: Any) -> None:
        raise Refusal("not under test", "here")

    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(module, "certify", refuse)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    config = {"eos_token": "<|im_end|>"}
    return write(tmp_path / "small", small_spec(), tokenizer_config=config, config={"vocab_size": 9})


@pytest.mark.slow
def test_the_parts_of_a_loaded_tokenizer(small: Path) -> None:
    loaded = FrozenTokenizer.load(small, cache_dir=CACHE)
    assert loaded.source == str(small)
    assert loaded.revision is None
    model = {**small_spec()["model"], "vocab": {}, "merges": []}
    assert loaded.spec == {**small_spec(), "model": model, "truncation": None, "padding": None}
    assert loaded.config == {"eos_token": "<|im_end|>"}
    assert set(loaded.files) == {"config.json"}
    assert loaded.vocab_size == 425
    assert isinstance(loaded.reference, ReferenceEngine)
    assert isinstance(loaded.window, FastokensEngine)
    assert loaded.window_refusal is None
    assert (loaded.certificate is None) == (loaded.refusal is not None)
    assert loaded.window.encode(TEXT).tolist() == loaded.reference.encode(TEXT).tolist()
    assert loaded.decode(loaded.window.encode(TEXT)) == TEXT
    assert loaded.encoder.window is loaded.window
    assert loaded.encoder.reference is loaded.reference
    assert loaded.encoder.rule is loaded.certificate


def test_truncation_and_padding_are_ignored_and_said(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "admit", lambda *_: admission.Verdict(None))
    cut = write(tmp_path / "cut", {**small_spec(), "truncation": TRUNCATION, "padding": PADDING})
    with capture_logs() as logs:
        loaded = FrozenTokenizer.load(cut)
    plain = FrozenTokenizer.load(small, window=False)
    (said,) = [entry for entry in logs if entry["event"] == "tokenizer.truncation_disabled"]
    assert said["blocks"] == ["truncation", "padding"]
    assert (loaded.spec["truncation"], loaded.spec["padding"]) == (None, None)
    assert isinstance(loaded.window, FastokensEngine)
    for text in ("a", TEXT):
        expected = plain.reference.encode(text).tolist()
        assert loaded.reference.encode(text).tolist() == expected
        assert loaded.window.encode(text).tolist() == expected


def test_the_vocabulary_size_is_the_largest_id_of_the_engine(tmp_path: Path) -> None:
    specs = [small_spec(), {**small_spec(), "added_tokens": []}, bpe(["a", "b"], [])]
    unigram = {"type": "Unigram", "unk_id": 0, "vocab": [["a", 0.0], ["b", -1.0], ["c", -2.0]], "byte_fallback": False}
    specs.append({**small_spec(), "model": unigram, "added_tokens": []})
    for k, spec in enumerate(specs):
        loaded = FrozenTokenizer.load(write(tmp_path / str(k), spec), window=False)
        assert loaded.vocab_size == max(loaded.reference.tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def _blank_under_strip(spec: dict[str, Any]) -> None:
    """With a token "ab" that strips left beside it, tokenizers allocates without end on the text "a"."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}
    spec["normalizer"] = {"type": "Strip", "strip_left": True, "strip_right": True}
    spec["added_tokens"] = [{"id": 900, "content": " ", **flags}]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("model"), "has no model"),
        (lambda s: s.update(model=[]), "has no model"),
        (lambda s: s["model"].update(type="Nothing"), "not readable by tokenizers"),
        (lambda s: s["model"].update(vocab=1), "not readable"),
        (lambda s: s["model"].update(dropout=0.1), "dropout"),
        (lambda s: s.update(pre_tokenizer={"type": "Nothing"}), "not readable"),
        (_blank_under_strip, "the added token ' ' .* leaves nothing of it"),
    ],
)
def test_unusable_files(tmp_path: Path, change: Any, message: str) -> None:
    spec = small_spec()
    change(spec)
    with pytest.raises(UnusableFile, match=message):
        FrozenTokenizer.load(write(tmp_path, spec))


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]"])
def test_files_that_are_no_json(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(UnusableFile, match=r"tokenizer\.json of .* fetch it again"):
        FrozenTokenizer.load(tmp_path)


def test_without_the_window_engine(small: Path) -> None:
    loaded = FrozenTokenizer.load(small, window=False)
    assert loaded.window is loaded.reference
    assert loaded.window_refusal == "not asked for"


def test_a_refused_window_engine_costs_speed_only(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "admit", lambda *_: admission.Verdict("differs"))
    loaded = FrozenTokenizer.load(small)
    assert loaded.window is loaded.reference
    assert "differs" in str(loaded.window_refusal)


def test_a_window_engine_that_cannot_load(tmp_path: Path) -> None:
    spec = small_spec()
    spec["pre_tokenizer"]["pretokenizers"].insert(0, {"type": "UnicodeScripts"})
    loaded = FrozenTokenizer.load(write(tmp_path, spec))
    assert loaded.window is loaded.reference
    assert loaded.window_refusal


def test_the_verdict_is_taken_from_the_cache(small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = FrozenTokenizer.load(small, cache_dir=tmp_path / "cache")
    monkeypatch.setattr(admission, "admit", lambda *_: pytest.fail("the self-test ran again"))
    again = FrozenTokenizer.load(small, cache_dir=tmp_path / "cache")
    assert again.digest == first.digest
    assert isinstance(first.window, FastokensEngine)
    assert isinstance(again.window, FastokensEngine)
    assert again.window.unsafe == first.window.unsafe


@pytest.mark.parametrize("error", [Refusal("construct", "place"), KeyError("bug")])
def test_no_certificate_costs_speed_only(small: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(module, "certify", refuse)
    loaded = FrozenTokenizer.load(small, window=False)
    assert loaded.certificate is None
    assert isinstance(loaded.refusal, Refusal)
    assert loaded.encoder.rule is None


def test_where_a_certificate_is_needed_its_refusal_comes_before_the_window_engine(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_early(_: str) -> None:
        raise AssertionError

    monkeypatch.setattr(module.fastokens, "RawFastokens", too_early)
    with pytest.raises(Refusal, match="not under test"):
        FrozenTokenizer.load(small, certified_only=True)


@pytest.mark.slow
def test_where_a_certificate_is_needed_and_there_all_is_as_ever(small: Path) -> None:
    plain, needed = (FrozenTokenizer.load(small, cache_dir=CACHE, certified_only=only) for only in (False, True))
    assert plain.certificate is not None
    assert needed.certificate is not None
    assert needed.certificate.digest == plain.certificate.digest
    assert needed.certificate.from_cache
    assert isinstance(needed.window, FastokensEngine)
    assert (needed.digest, needed.vocab_size) == (plain.digest, plain.vocab_size)


def test_one_digest_holds_files_and_versions_and_one_the_files_alone(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = FrozenTokenizer.load(small, window=False)
    monkeypatch.setattr(ReferenceEngine, "version", "0.0.0")
    upgraded = FrozenTokenizer.load(small, window=False)
    (small / "tokenizer_config.json").write_text("{}")
    changed = FrozenTokenizer.load(small, window=False)
    assert len({before.digest, upgraded.digest, changed.digest}) == 3
    assert upgraded.digest_of_files == before.digest_of_files != changed.digest_of_files


def test_case_t09_ignore_merges_is_honoured(tmp_path: Path) -> None:
    vocab, merges = ["w", "h", "o", "l", "e", "ho", "le", "whole"], ["h o", "l e"]
    for flag, expected in ((True, [7]), (False, [0, 5, 6])):
        loaded = FrozenTokenizer.load(write(tmp_path / str(flag), bpe(vocab, merges, ignore_merges=flag)))
        assert loaded.reference.encode("whole").tolist() == expected
        assert loaded.window.encode("whole").tolist() == expected


def test_case_t09_an_unknown_field_means_the_reference(tmp_path: Path) -> None:
    spec = small_spec()
    spec["model"]["skip_merges_of_length"] = 3
    loaded = FrozenTokenizer.load(write(tmp_path, spec))
    assert loaded.window is loaded.reference
    assert loaded.window_refusal == "model BPE has the unknown field skip_merges_of_length"


def test_loads_and_encodes_in_threads(small: Path) -> None:
    FrozenTokenizer.load(small, cache_dir=CACHE)  # the window engine is tested once, not in each thread
    with ThreadPoolExecutor(4) as pool:
        loaded = list(pool.map(lambda _: FrozenTokenizer.load(small, cache_dir=CACHE), range(4)))
        rows = list(pool.map(lambda i: loaded[i % 4].window.encode(TEXT).tolist(), range(64)))
    assert len({one.digest for one in loaded}) == 1
    assert all(row == rows[0] for row in rows)


@pytest.mark.slow
def test_the_embedded_tokenizer() -> None:
    loaded = qwen3()
    assert loaded.vocab_size == 151_669
    assert "<|im_start|>" in str(loaded.config["chat_template"])
    assert isinstance(loaded.window, FastokensEngine)
    assert loaded.certificate is not None
    assert loaded.reference.encode("<|im_start|>user\nhi<|im_end|>").tolist() == [151644, 872, 198, 6023, 151645]
    assert loaded.decode(loaded.window.encode(TEXT)) == TEXT
    assert {"LICENSE", "NOTICE"} <= {path.name for path in loaded.folder.iterdir()}
    json.dumps(loaded.config)
