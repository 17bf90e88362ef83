"""The admitted window engine against the reference on real tokenizers: real text, hostile text, history.

One test a tokenizer: loading and admitting one costs far more than all checks together.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.conftest import ROOT, data_path
from tests.support.hostile import Hostile
from tests.support.tokenizers_data import each, real
from toktier.engines.fastokens import FastokensEngine
from toktier.engines.reference import ReferenceEngine

Engines = tuple[FastokensEngine, ReferenceEngine]


@pytest.mark.slow
@pytest.mark.parametrize("name", each(["qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "llama2"]))
def test_the_window_engine_is_the_reference(name: str) -> None:
    window, reference = real(name).window, real(name).reference
    assert isinstance(window, FastokensEngine)
    assert isinstance(reference, ReferenceEngine)
    pair, failures = (window, reference), window.failures
    assert window.unsafe == (frozenset("ſ") if name in ("qwen3", "llama3_1", "gpt_oss") else frozenset())
    real_text(pair)
    hostile_text(pair)
    any_text(pair)
    long_s(pair)
    history(pair)
    long_runs(pair)
    assert window.failures == failures
    if name == "gpt_oss":
        # The difference that the self-test found is real, and it is routed.
        assert window._raw.encode(" I'ſ").tolist() != reference.encode(" I'ſ").tolist()


def real_text(pair: Engines) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    paths = [library / name for name in ("argparse.py", "json/decoder.py", "html/entities.py", "tokenize.py")]
    paths += [ROOT / "README.md", data_path("facts", "lemmas.md"), data_path("cases", "cases.jsonl")]
    equal(pair, [path.read_text(encoding="utf-8")[:60_000] for path in paths])


def hostile_text(pair: Engines) -> None:
    literals = [token.content for token in pair[1].tokenizer.get_added_tokens_decoder().values()]
    source = Hostile(17, literals)
    equal(pair, [source.text(size) for size in (1, 3, 9, 40, 200) for _ in range(60)] + [source.text(20_000)])


def any_text(pair: Engines) -> None:
    window, reference = pair

    @given(st.text(st.one_of(st.sampled_from("'ſsStT \n\r\t1aA\u0301\u180e中<|"), st.characters(codec="utf-8"))))
    @settings(max_examples=200, deadline=None, database=None)
    def check(text: str) -> None:
        assert window.encode(text).tolist() == reference.encode(text).tolist()

    check()


def long_s(pair: Engines) -> None:
    """fastokens' known weak spot: U+017F after an apostrophe."""
    equal(pair, [" I'ſ", "a I'ſt", " I'ſve I'ſ I'd", "x'ſy", "ſ", "'\u212a", " I'ſ" * 9])


def history(pair: Engines) -> None:
    """Older versions reuse matches over a common prefix of 4,096 bytes or more, and keep one match too many."""
    texts = ["abcdefgh " * 600 + tail for tail in ("\n  ", "\n  \n", "\n  \nx", "\n  ", " ", "  x", "\n  \n")]
    equal(pair, texts)
    equal(pair, texts[::-1])


def long_runs(pair: Engines) -> None:
    units = ("x", "^", " ", "\n", "1", "aB", "中", "e\u0301", "A1+/")
    equal(pair, [unit * (30_000 // len(unit)) for unit in units])


def equal(pair: Engines, texts: list[str]) -> None:
    window, reference = pair
    ids, counts = window.encode_batch(texts)
    expected, expected_counts = reference.encode_batch(texts)
    assert counts.tolist() == expected_counts.tolist()
    assert np.array_equal(ids, expected)
    for text, row in zip(texts, np.split(expected, np.cumsum(expected_counts)[:-1]), strict=True):
        assert np.array_equal(window.encode(text), row), ascii(text[:200])
