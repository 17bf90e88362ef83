"""The engine of a rank file is tiktoken, ID for ID, and raises where tiktoken has no answer."""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

import numpy as np
import pytest
import tiktoken

from tests.support.hostile import Hostile
from tests.support.rank_data import PATTERNS, SIDECARS, SMALL, published, published_engine, small_engine
from tests.support.regex_oracle import tiktoken_matches
from tests.support.tokenizers_data import each
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.errors import CannotEncode, InvalidText, UnusableFile
from toktier.rank_files import Ranks


def rows(engine: TiktokenEngine, texts: Sequence[str]) -> list[list[int]]:
    ids, counts = engine.encode_batch(texts)
    assert ids.dtype == np.uint32
    assert counts.sum() == len(ids)
    return [row.tolist() for row in np.split(ids, np.cumsum(counts)[:-1])]


def plain(ranks: Ranks) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "plain",
        pat_str=ranks.pattern,
        mergeable_ranks=ranks.mergeable,
        special_tokens=dict(ranks.special_tokens),
    )


@pytest.mark.parametrize("name", each(SIDECARS))
def test_equals_tiktoken(name: str) -> None:
    engine, ranks = published_engine(name), published(name)
    encoding = plain(ranks)
    source = Hostile(name, list(ranks.special_tokens))
    texts = [source.text(n) for n in (0, 1, 7, 50, 400, 3000) for _ in range(8)] + ["x" * 20_000, " " * 30_000 + "x"]
    told = [encoding.encode(text, allowed_special="all") for text in texts]
    assert rows(engine, texts) == told
    assert [engine.encode(text).tolist() for text in texts] == told
    assert [engine.decode(np.array(row, np.uint32)) for row in told] == texts
    assert any(set(row) & set(ranks.special_tokens.values()) for row in told)


def test_special_tokens_end_a_segment() -> None:
    """The end of the text that the pattern sees is the special token: ``\\s++$`` takes both blanks before it."""
    engine = small_engine()
    assert engine.encode("ab  <|end|>  ab").tolist() == [256, 259, 300, 32, 32, 256]
    assert engine.encode("ab  x").tolist() == [256, 32, 32, 120]
    assert engine.encode("<|end|><|start|>").tolist() == [300, 301]


def test_unmatched_text_has_no_tokens() -> None:
    assert small_engine(pat_str=r"\p{L}+").encode("ab, abc!").tolist() == [256, 258]


def test_batches() -> None:
    engine = small_engine()
    assert rows(engine, ["ab"]) == [[256]]
    ids, counts = engine.encode_batch([])
    assert (len(ids), len(counts)) == (0, 0)
    source = Hostile(3, ["<|end|>"])
    texts = [source.text(n) for n in (0, 20_000, 3, 9_000, 0, 0, 40_000, 1)]
    assert rows(engine, texts) == [engine.encode(text).tolist() for text in texts]


def test_lone_surrogates_raise() -> None:
    engine = small_engine()
    with pytest.raises(InvalidText) as caught:
        engine.encode("ab\ud800c")
    assert caught.value.offset == 2
    with pytest.raises(InvalidText):
        engine.encode_batch(["ab", "\udc00"])
    with pytest.raises(InvalidText):  # tiktoken itself joins these two to one character
        engine.encode("\ud83d\ude00")
    assert engine._encoding.encode("\ud800") == engine.encode("\ufffd").tolist()  # what it would have done


def test_decode_leaves_unknown_ids_out() -> None:
    engine = small_engine()
    assert engine.decode(np.array([256, 299, 300, 999_999, 97], np.uint32)) == "ab<|end|>a"
    assert engine.decode(np.array([0xC3], np.uint32)) == "\ufffd"
    assert engine.decode(np.array([], np.uint32)) == ""


@pytest.mark.parametrize("text", [" " * 1_100_000 + "x", " \t" * 600_000 + "x"])
def test_a_run_too_long_for_the_regex_engine_raises(text: str) -> None:
    engine = small_engine()
    for ask in (engine.encode, lambda one: engine.encode_batch(["ab", one])):
        with pytest.raises(CannotEncode, match=r"tiktoken .* cannot encode the text \(ValueError\)"):
            ask(text)
    assert engine.encode(text[:900_000] + "x")[-1] == ord("x")  # a shorter one is no trouble


def test_a_panic_raises() -> None:
    engine = small_engine(pat_str="a|(?=b)")
    with pytest.raises(CannotEncode, match="PanicException"):
        engine.encode("b")
    assert engine.encode("aa").tolist() == [97, 97]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [("a|", "matches the empty string"), ("(a", "does not take the encoding"), (r"\X", "does not take")],
)
def test_patterns_that_tiktoken_does_not_take(pattern: str, message: str) -> None:
    with pytest.raises(UnusableFile, match=message):
        small_engine(pat_str=pattern)


def test_the_gil_is_released() -> None:
    """Another thread has turns during a call, although nothing takes the GIL away."""
    engine = small_engine()
    text = "some words " * 150_000
    turns = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.wait(0.0005):
            turns[0] += 1

    interval = sys.getswitchinterval()
    thread = threading.Thread(target=count)
    sys.setswitchinterval(30)
    try:
        thread.start()
        before = turns[0]
        engine.encode(text)
        after = turns[0]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    assert after - before > 5


@pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)
def test_pieces_are_the_matches(pattern: str) -> None:
    engine = small_engine(pat_str=pattern)
    source = Hostile(5, ["<|end|>"])
    for n in (0, 1, 5, 30, 60):
        text = source.text(n)
        assert engine.pieces(text) == tiktoken_matches(pattern, text)
    assert "".join(engine.pieces(text)) == text


def test_pieces_leave_out_what_is_not_matched() -> None:
    engine = small_engine(pat_str=r"\p{L}+$|\p{L}|\p{N}{2}")
    assert engine.pieces("1ab 22é3, xyz") == ["a", "b", "22", "é", "xyz"]


def test_pieces_of_text_that_has_none() -> None:
    with pytest.raises(InvalidText):
        small_engine().pieces("a\ud800")
    with pytest.raises(CannotEncode):
        small_engine().pieces(" " * 1_100_000 + "x")


def test_ranks_are_kept() -> None:
    assert small_engine().ranks.mergeable == SMALL
