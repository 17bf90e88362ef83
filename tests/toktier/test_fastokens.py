"""The window engine's wrapper: what goes to the reference, and what is never given to fastokens."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import pytest
import tokenizers
from structlog.testing import capture_logs

from tests.support.tokenizer_files import small_spec
from toktier.engines import fastokens
from toktier.engines.fastokens import FastokensEngine, RawFastokens, static_refusal
from toktier.engines.reference import ReferenceEngine
from toktier.errors import InvalidText

TEXTS = ["", "one", "two words\n", "<|im_start|>user\n12 <|im_end|>", "e\u0301 中文 \0 😀", "it'ſ"]


class PanicException(BaseException):
    """Named as pyo3 names a panic of native code."""


class Broken:
    """Stands for fastokens: raises on every call, or fails the test where it must not be called."""

    version = "0"

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.calls = 0

    def encode(self, _: Any) -> Any:
        self.calls += 1
        if self.error is None:
            pytest.fail("fastokens was called")
        raise self.error

    encode_batch = encode_bytes = encode_in_turn = encode


@pytest.fixture(scope="module")
def reference() -> ReferenceEngine:
    return ReferenceEngine(tokenizers.Tokenizer.from_str(json.dumps(small_spec())))


@pytest.fixture(scope="module")
def engine(reference: ReferenceEngine) -> FastokensEngine:
    return FastokensEngine(RawFastokens(json.dumps(small_spec())), reference, frozenset("ſ"))


def test_ids_are_the_references(engine: FastokensEngine, reference: ReferenceEngine) -> None:
    for text in TEXTS:
        ids = engine.encode(text)
        assert ids.dtype == np.uint32
        assert ids.tolist() == reference.encode(text).tolist()
    for texts in (TEXTS, TEXTS[:-1], []):
        got, expected = engine.encode_batch(texts), reference.encode_batch(texts)
        assert got[0].tolist() == expected[0].tolist()
        assert got[1].tolist() == expected[1].tolist()
        assert got[1].dtype == np.int64
        assert [list(one) for one in engine.encode_in_turn(texts)] == [one.tolist() for one in expected]
    assert engine.failures == 0


def test_an_unsafe_text_goes_to_the_reference(reference: ReferenceEngine) -> None:
    engine = FastokensEngine(Broken(), reference, frozenset("ſ\u180e"))  # type: ignore[arg-type]
    for text in ("ſ", "a\u180eb"):
        assert engine.encode(text).tolist() == reference.encode(text).tolist()
    for call in (engine.encode_batch, engine.encode_in_turn):
        assert list(call(["ſ", "ſx"])[1]) == reference.encode_batch(["ſ", "ſx"])[1].tolist()  # type: ignore[operator]


@pytest.mark.parametrize("error", [PanicException("secret"), RuntimeError("secret")])
def test_a_failed_call_goes_to_the_reference(reference: ReferenceEngine, error: BaseException) -> None:
    engine = FastokensEngine(Broken(error), reference)  # type: ignore[arg-type]
    with capture_logs() as logs:
        assert engine.encode("two words").tolist() == reference.encode("two words").tolist()
        assert engine.encode_batch(["a", "bc"])[0].tolist() == reference.encode_batch(["a", "bc"])[0].tolist()
        assert engine.encode_in_turn(["a", "bc"])[0].tolist() == reference.encode_batch(["a", "bc"])[0].tolist()
    assert engine.failures == 3
    assert [entry["event"] for entry in logs] == ["window.failed"] * 3
    assert logs[1]["chars"] == 3
    assert "secret" not in str(logs)
    assert "two words" not in str(logs)


def test_an_interrupt_is_passed_on(reference: ReferenceEngine) -> None:
    engine = FastokensEngine(Broken(KeyboardInterrupt()), reference)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        engine.encode("x")
    assert engine.failures == 0


def test_a_lone_surrogate_has_its_place(engine: FastokensEngine) -> None:
    texts = ["fine", "ab\ud800"]
    for call in (
        lambda: engine.encode(texts[1]),
        lambda: engine.encode_batch(texts),
        lambda: engine.encode_in_turn(texts),
    ):
        with pytest.raises(InvalidText) as caught:
            call()
        assert caught.value.offset == 2
    assert engine.failures == 0


def test_the_segment_cache_is_off_whatever_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTOKENS_SEGMENT_CACHE", "8")
    raw = RawFastokens(json.dumps(small_spec()))
    assert raw._tokenizer.segment_cache_stats() is None


def test_truncation_and_padding_are_off() -> None:
    spec = small_spec()
    spec["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    spec["padding"] = {
        "strategy": {"Fixed": 64},
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "a",
    }
    text = json.dumps(spec)
    plain = ReferenceEngine(tokenizers.Tokenizer.from_str(json.dumps(small_spec())))
    sample = "a much longer text than four tokens"
    for engine in (RawFastokens(text), ReferenceEngine(tokenizers.Tokenizer.from_str(text))):
        assert engine.encode(sample).tolist() == plain.encode(sample).tolist()
        assert engine.encode_batch(["a", sample])[1].tolist() == plain.encode_batch(["a", sample])[1].tolist()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s["model"].update(new_flag=True), "model BPE has the unknown field new_flag"),
        (lambda s: s["model"].update(type="Unigram"), "model Unigram is not known"),
        (lambda s: s["normalizer"].update(form="x"), "normalizer NFC has the unknown field form"),
        (lambda s: s.update(normalizer={"type": "New"}), "normalizer New is not known"),
        (lambda s: s["pre_tokenizer"]["pretokenizers"][1].update(z=1), "ByteLevel has the unknown field z"),
        (lambda s: s["pre_tokenizer"]["pretokenizers"].append({"type": "New"}), "pre_tokenizer New is not known"),
        (lambda s: s["added_tokens"][0].update(z=1), "an added token has the unknown field z"),
    ],
)
def test_an_unknown_field_is_refused_not_ignored(change: Any, message: str) -> None:
    spec = small_spec()
    assert static_refusal(spec) is None
    change(spec)
    assert message in str(static_refusal(spec))


@pytest.mark.parametrize(
    ("version", "usable"), [("0.3.5", True), ("0.3.10", True), ("1.0", True), ("0.3.2", False), ("", False)]
)
def test_old_versions_are_refused(monkeypatch: pytest.MonkeyPatch, version: str, usable: bool) -> None:
    monkeypatch.setattr(fastokens, "installed_version", lambda: version)
    assert fastokens.usable_version() is usable
    assert (static_refusal(small_spec()) is None) is usable


def test_every_thread_begins_with_a_text_during_which_others_run() -> None:
    raw = RawFastokens(json.dumps(small_spec()))
    asked: list[tuple[int, str]] = []
    encode = raw._tokenizer.encode_batch_flat

    class Noted:
        @staticmethod
        def encode_batch_flat(texts: list[str]) -> Any:
            asked.extend((threading.get_ident(), text) for text in texts)
            return encode(texts)

    raw._tokenizer = Noted()
    engine = FastokensEngine(raw, ReferenceEngine(tokenizers.Tokenizer.from_str(json.dumps(small_spec()))))
    begun = [engine.begun]

    def work() -> None:
        begun.append(engine.begun)
        engine.encode("one")
        begun.append(engine.begun)
        engine.encode_batch(["two", "three"])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    engine.begin()
    engine.encode("four")
    assert begun == [True, False, True]
    assert [text for _, text in asked] == [fastokens._FIRST, "one", "two", "three", "four"]
    assert len({ident for ident, _ in asked[:4]}) == 1
    assert len(fastokens._FIRST.encode()) >= 16 << 10
