"""A rank file as a frozen tokenizer: engines, certificate, cuts on hostile text, rope, and what cannot be known."""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.support.hostile import Hostile
from tests.support.rank_data import (
    KIMI,
    PATTERNS,
    SIDECARS,
    SMALL_SIDECAR,
    folder_with_sidecar,
    published,
    small_engine,
    write_ranks,
)
from tests.support.tokenizer_files import CACHE
from tests.support.tokenizers_data import each
from toktier import files
from toktier.certificate import Certificate, certify_ranks
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.errors import Refusal, UnusableFile
from toktier.ids import EMPTY
from toktier.parity import Comparison, Outcome
from toktier.rank_files import Ranks
from toktier.reference_of import engine_versions
from toktier.rope import Rope
from toktier.tier import control_pattern
from toktier.tokenizer import FrozenTokenizer


def checked_cuts(certificate: Certificate, engine: TiktokenEngine, seed: str, texts: int, chars: int = 400) -> int:
    """The number of cuts at which the IDs of the parts were found to be those of the whole."""
    source = Hostile(seed, list(engine.ranks.special_tokens))
    whole = [source.text(chars) for _ in range(texts)]
    parts = []
    for text in whole:
        edges = [0, *certificate.cuts(text).tolist(), len(text)]
        parts.append([text[a:b] for a, b in pairwise(edges)])
    for text, own in zip(whole, parts, strict=True):
        assert np.concatenate([engine.encode(part) for part in own]).tolist() == engine.encode(text).tolist(), text
    return sum(map(len, parts)) - len(parts)


@cache
def kimi() -> tuple[Certificate, TiktokenEngine]:
    """A Kimi-style pattern over the ranks of o200k: rank files of this kind differ in the pattern, not in the model."""
    ranks = published("o200k_tiktoken")
    tokens = {"[BOS]": 199998, "[EOS]": 199999, "<|im_end|>": 200000, "<|im_user|>": 200001}
    engine = TiktokenEngine(Ranks("kimi", KIMI, tokens, ranks.mergeable))
    return certify_ranks(KIMI, list(tokens), engine, cache_dir=CACHE), engine


@pytest.mark.parametrize("name", each(SIDECARS))
def test_a_published_rank_file(name: str, tmp_path: Path) -> None:
    loaded = FrozenTokenizer.load(folder_with_sidecar(name, tmp_path), cache_dir=CACHE)
    assert isinstance(loaded.reference, TiktokenEngine)
    assert loaded.window is loaded.reference
    assert loaded.window_refusal == "no window engine reads rank files"
    assert loaded.vocab_size == max(SIDECARS[name]["special_tokens"].values()) + 1
    assert loaded.refusal is None
    assert loaded.certificate is not None
    assert loaded.certificate.engine.startswith("tiktoken ")
    for text in ("word another", "f(x) = y", "one\ntwo"):  # word starts and line ends
        assert loaded.certificate.cuts(text).size
    assert checked_cuts(loaded.certificate, loaded.reference, name, 60) > 2000


@pytest.mark.xdist_group("o200k_tiktoken")
def test_kimi_style() -> None:
    certificate, engine = kimi()
    assert certificate.is_cut("中a", 1)
    assert checked_cuts(certificate, engine, "kimi", 60) > 2000


def test_where_blanks_stand_before_the_end() -> None:
    r"""``\s++$`` takes all blanks at the end of the text and not elsewhere: no blank is the left of a cut."""
    engine = small_engine(pat_str=PATTERNS["r50k"])
    certificate = certify_ranks(PATTERNS["r50k"], [], engine, cache_dir=CACHE)
    assert engine.pieces("a  ") == ["a", "  "]
    assert engine.pieces("a  b") == ["a", " ", " b"]
    for text in ("a  b", "a \nb", "a  \n"):
        assert [i for i in certificate.cuts(text).tolist() if text[i - 1].isspace()] == []
        assert certificate.is_cut(text, 1)


def test_unmatched_text_is_dropped_at_cuts_too() -> None:
    engine = small_engine(pat_str=r"\p{L}+|\p{N}")
    certificate = certify_ranks(r"\p{L}+|\p{N}", ["<|end|>", "<|start|>"], engine, cache_dir=CACHE)
    assert certificate.is_cut("a,", 1)
    assert certificate.is_cut(",,", 1)
    assert not certificate.is_cut("|>", 1)  # inside a special token
    assert checked_cuts(certificate, engine, "dropped", 40) > 2000


@pytest.mark.parametrize(
    ("pattern", "construct"),
    [
        (r"\b\w+|.", "word boundary"),
        (r"(?<=a)b|(?s:.)", "look-behind"),
        (r"a|(?=b)", "pattern that can match the empty string"),
    ],
)
def test_a_refused_pattern_is_served_all_the_same(tmp_path: Path, pattern: str, construct: str) -> None:
    loaded = FrozenTokenizer.load(write_ranks(tmp_path, sidecar={**SMALL_SIDECAR, "pat_str": pattern}), cache_dir=CACHE)
    assert loaded.certificate is None
    assert isinstance(loaded.refusal, Refusal)
    assert loaded.refusal.construct == construct
    assert loaded.refusal.place.startswith("pat_str")
    assert loaded.reference.encode("aa").tolist() == [97, 97]


def test_what_is_read_off_the_files(tmp_path: Path) -> None:
    folder = write_ranks(tmp_path)
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<|end|>"}')
    (folder / "chat_template.jinja").write_text("{{ x }}")
    loaded = FrozenTokenizer.load(folder, cache_dir=CACHE)
    assert loaded.config == {"eos_token": "<|end|>"}
    assert loaded.files == {"chat_template.jinja": b"{{ x }}"}
    assert loaded.vocab_size == 302
    assert loaded.encoder.marker == "<|"
    control = control_pattern(loaded.spec)
    assert control is not None
    assert control.findall(b"a<|end|>b<|start|>") == [b"<|end|>", b"<|start|>"]
    assert loaded.special is not None
    assert loaded.special.around(loaded.reference.encode("ab")).tolist() == [256]
    assert loaded.special.prefix is EMPTY
    assert loaded.versions == (*engine_versions(), f"tiktoken {TiktokenEngine.version}")
    assert loaded.digest == files.read(folder).digest(engine_versions())
    assert FrozenTokenizer.load(folder, cache_dir=CACHE, window=False).window_refusal == "not asked for"


def test_a_rope_over_it(tmp_path: Path) -> None:
    loaded = FrozenTokenizer.load(write_ranks(tmp_path), cache_dir=CACHE)
    source = Hostile("rope", ["<|end|>", "<|start|>"])
    rope = Rope(loaded.encoder)
    text = source.text(6000)
    for _ in range(40):
        at = source.rng.randrange(len(text))
        text = text[:at] + source.text(source.rng.choice((0, 3, 200))) + text[at + source.rng.choice((0, 1, 60)) :]
        rope.set(text)
        assert rope.ids.tolist() == loaded.reference.encode(text).tolist()


@pytest.mark.parametrize(
    ("sidecar", "message"),
    [("[]", "the sidecar of .* is not a JSON object"), ("{", "is not valid JSON"), ("{}", "needs pat_str")],
)
def test_an_unusable_sidecar(tmp_path: Path, sidecar: str, message: str) -> None:
    folder = write_ranks(tmp_path)
    (folder / "small.tiktoken.json").write_text(sidecar)
    with pytest.raises(UnusableFile, match=message):
        FrozenTokenizer.load(folder)


def test_an_unusable_pattern(tmp_path: Path) -> None:
    write_ranks(tmp_path, sidecar={**SMALL_SIDECAR, "pat_str": "(a"})
    with pytest.raises(UnusableFile, match="tiktoken does not take the encoding"):
        FrozenTokenizer.load(tmp_path)


def test_transformers_has_no_word_on_it(tmp_path: Path) -> None:
    read = files.read(write_ranks(tmp_path))
    reference = FrozenTokenizer.from_files(read, cache_dir=CACHE).reference
    with Comparison(read, "digest", cache_dir=tmp_path / "cache") as comparison:
        found = comparison.result(reference, None)
    assert (found.outcome, found.special) == (Outcome.NOT_READABLE, False)
    assert not (tmp_path / "cache").exists()


def test_a_table_is_kept_for_the_sidecar_that_it_was_derived_from(tmp_path: Path) -> None:
    digests = []
    for pattern in ("[a-z]+|,", "[a-z]+|,", "[a-z]+,?"):
        folder = write_ranks(tmp_path / "a", sidecar={**SMALL_SIDECAR, "pat_str": pattern})
        loaded = FrozenTokenizer.load(folder, cache_dir=tmp_path / "cache")
        assert loaded.certificate is not None
        assert loaded.certificate.is_cut("a,", 1) is (pattern == "[a-z]+|,")
        digests.append(loaded.certificate.digest)
    assert digests[0] == digests[1] != digests[2]
    assert len(list((tmp_path / "cache" / "certificates").iterdir())) == 2
