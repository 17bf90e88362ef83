"""The self-test that admits a window engine: what it finds, what it excuses, what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import tokenizers

from tests.support.tokenizer_files import small_spec
from toktier import kept
from toktier.engines import admission
from toktier.engines.admission import REVISION, Pair, Verdict, admit, load_verdict, split_probe, store_verdict
from toktier.engines.admission_texts import code_point_blocks
from toktier.engines.fastokens import RawFastokens, window_engine
from toktier.engines.reference import ReferenceEngine
from toktier.ids import Ids


class PanicException(BaseException):
    """Named as pyo3 names a panic of native code."""


class CodePoints:
    """An engine whose IDs are the code points, changed by ``fault``."""

    def __init__(self, fault: Callable[[str], str] = str) -> None:
        self.fault = fault

    def encode(self, text: str) -> Ids:
        return np.frombuffer(self.fault(text).encode("utf-32-le"), np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        rows = [self.encode(text) for text in texts]
        return np.concatenate(rows), np.array([len(row) for row in rows], np.int64)


LITERALS = ["<|a|>", "<tool_call>"]


def verdict(fault: Callable[[str], str]) -> Verdict:
    return admit(Pair(CodePoints(fault), CodePoints()), LITERALS, None)


def test_an_equal_engine_is_admitted() -> None:
    assert verdict(str) == Verdict(None)


def test_differing_characters_are_found_and_excused() -> None:
    found = verdict(lambda text: text.replace("'ſ", "'s").replace("\u180e", " "))
    assert found == Verdict(None, frozenset("ſ\u180e"))


def test_a_range_of_differing_characters_is_refused() -> None:
    found = verdict(lambda text: text.translate(dict.fromkeys(range(67904, 67968), "?")))
    assert found.refusal is not None
    assert "more than 16 characters, the first U+109" in found.refusal


@pytest.mark.parametrize("base", [0x3400, 0xAC00, 0xF000, 0x17000])
def test_in_a_sampled_range_the_characters_between_the_samples_are_found(base: int) -> None:
    differing = [base + 4, base + 5, base + 7]
    found = verdict(lambda text: text.translate(dict.fromkeys(differing, "?")))
    assert found == Verdict(None, frozenset(map(chr, differing)))


def test_a_difference_of_no_single_character_is_refused() -> None:
    found = verdict(lambda text: text.replace("0\n \n", "0\n\n"))
    assert found.refusal is not None
    assert found.refusal.startswith("differs on self-test text")


def test_an_ascii_character_is_never_excused() -> None:
    found = verdict(lambda text: text.replace("\n  \n", "\n \n"))
    assert found == Verdict("differs on U+000A, which nearly every text holds")


def test_a_difference_between_neighbours_is_refused() -> None:
    found = verdict(lambda text: text.replace(".x'\u0101", ".x\u0101"))
    assert found.refusal is not None
    assert "on none of them alone" in found.refusal


def test_dependence_on_history_is_refused() -> None:
    seen: set[str] = set()

    def fault(text: str) -> str:
        known = text in seen
        seen.add(text)
        return text + "!" if known and text.endswith("\n  \nx") else text

    found = verdict(fault)
    assert found.refusal is not None
    assert "depends on history" in found.refusal


@pytest.mark.parametrize("error", [PanicException, ValueError])
def test_a_failure_is_a_refusal(error: type[BaseException]) -> None:
    def fault(text: str) -> str:
        if "<tool_call>" in text:
            raise error
        return text

    assert verdict(fault).refusal == f"the self-test ended with {error.__name__}"


def test_an_interrupt_is_none() -> None:
    def fault(text: str) -> str:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verdict(fault)


def test_the_texts_are_always_the_same() -> None:
    assert list(admission.texts(LITERALS)) == list(admission.texts(LITERALS))
    assert any("<tool_call>" in text for text in admission.texts(LITERALS))


def test_every_code_point_of_the_basic_planes_is_looked_at_or_lies_between_two_that_are() -> None:
    blocks = list(code_point_blocks())
    candidates = {c for block in blocks for c in block.candidates}
    assert candidates.issuperset({*range(0x20000)} - {*range(0xD800, 0xE000)})
    for block in blocks:
        assert set(block.points) <= set(block.candidates)
        gaps = np.diff([*block.points, block.candidates[-1] + 1])
        assert block.points == block.candidates or gaps.max() <= 4
        assert block.text() == "".join(map(block.single, block.points))
    everything = "".join(block.text() for block in blocks)
    for around in ("'@y", ".@'", "1@ ", " @\n", "  @\n", "\n@."):
        assert around.replace("@", "\u0101") in everything
    for around in ("x@ ", " @"):
        assert around.replace("@", "\U00010101") in everything


def test_the_probe_shows_splits() -> None:
    spec = small_spec()
    probe = split_probe(spec)
    assert probe is not None
    engine = tokenizers.Tokenizer.from_str(probe)
    real = tokenizers.Tokenizer.from_str(json.dumps(spec))
    # Two bytes of one piece with a context sign merge, two of different pieces do not.
    assert len(engine.encode(" x").ids) == 1
    assert len(engine.encode("x ").ids) == 2
    for text in ("x'ſy.", "1ſ", " \u180e", "é\n\n x"):
        assert engine.pre_tokenizer.pre_tokenize_str(text) == real.pre_tokenizer.pre_tokenize_str(text)  # type: ignore[union-attr]


def test_no_probe_without_byte_level_splits() -> None:
    assert split_probe({**small_spec(), "pre_tokenizer": None}) is None
    assert split_probe({**small_spec(), "model": {"type": "Unigram", "vocab": []}}) is None


def test_a_pattern_outside_the_fast_path(tmp_path: Path) -> None:
    """fastokens runs other patterns through PCRE2, whose white space includes U+180E; the reference's does not."""
    spec = small_spec()
    spec["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = r"\s?\p{L}+|\s+|[^\s\p{L}]+"
    text = json.dumps(spec)
    reference = ReferenceEngine(tokenizers.Tokenizer.from_str(text))
    engine = window_engine(RawFastokens(text), reference, spec, "d", tmp_path)
    assert not isinstance(engine, str), engine
    assert "\u180e" in engine.unsafe
    for sample in ("\u180ea", "x\u180ey \u180e 中", "'ſ\u180e\n"):
        assert engine.encode(sample).tolist() == reference.encode(sample).tolist()
    assert load_verdict(tmp_path, "d") == Verdict(None, engine.unsafe)


# --- verdicts on disk


@pytest.mark.parametrize("verdict", [Verdict(None), Verdict(None, frozenset("ſ\U0010ffff")), Verdict("because")])
def test_verdicts_are_kept_by_digest(tmp_path: Path, verdict: Verdict) -> None:
    store_verdict(tmp_path / "new", "d1", verdict)
    assert load_verdict(tmp_path / "new", "d1") == verdict
    assert load_verdict(tmp_path / "new", "d2") is None
    assert load_verdict(None, "d1") is None


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"revision": 0, "digest": "d", "refusal": null, "unsafe": []}'])
def test_an_unreadable_verdict_is_none(tmp_path: Path, content: str) -> None:
    store_verdict(tmp_path, "d", Verdict(None))
    (file,) = tmp_path.iterdir()
    file.write_text(content)
    assert load_verdict(tmp_path, "d") is None


@pytest.mark.parametrize("unsafe", [[2**33], [2**70], [-1], ["a"], 5, [1.5], [float("inf")]])
def test_a_verdict_with_impossible_characters_is_none(tmp_path: Path, unsafe: object) -> None:
    kept.store(tmp_path, "window-d", {"revision": REVISION, "digest": "d", "refusal": None, "unsafe": unsafe})
    assert load_verdict(tmp_path, "d") is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store_verdict(tmp_path / "file", "d", Verdict(None))
    assert load_verdict(tmp_path / "file", "d") is None
