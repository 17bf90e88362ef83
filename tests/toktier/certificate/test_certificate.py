"""The certificate as others use it: cuts, stability, refusals, and a program that is wrong is caught at load."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from tests.support.models import qwen3 as qwen3_tokenizer
from tests.support.split_cases import certified_pairs
from tests.support.tokenizers_data import certificate_of, ids, shared_cache, spec_of, tokenizer_of
from toktier.certificate import Certificate, certify
from toktier.certificate.certificate import read_literals
from toktier.certificate.classes import Probe
from toktier.certificate.ops import Split
from toktier.certificate.samples import TextSource
from toktier.certificate.selfcheck import self_check, split_at_cuts
from toktier.certificate.stages import stages
from toktier.certificate.table import Table
from toktier.engines.reference import ReferenceEngine
from toktier.errors import Refusal

pytestmark = pytest.mark.xdist_group("qwen3")


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shared_cache(tmp_path_factory)


@pytest.fixture(scope="module")
def qwen3() -> Certificate:
    return certificate_of("qwen3")


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("\u0958", '"s'),  # composition exclusions: the pair is judged after the normalizer
        ("হ\u09df", "(self"),
        ("হ\u09df", ".com"),
        ("e", "\u0301x"),
        ("x é", "!"),  # é composes forwards as b, and is a cut to the left of ! only because it is fixed
    ],
)
def test_composition(left: str, right: str, qwen3: Certificate) -> None:
    tokenizer = tokenizer_of("qwen3")
    same = ids(tokenizer, left + right) == ids(tokenizer, left) + ids(tokenizer, right)
    certified = qwen3.is_cut(left + right, len(left))
    assert same or not certified
    assert certified == (left[-1] == "é")


def test_a_composing_character_needs_the_next_one(qwen3: Certificate) -> None:
    assert qwen3.needs_next
    assert qwen3.is_cut("ab=c", 2)
    assert not qwen3.is_cut("ab=", 2)  # at the end of the text a mark may still follow
    assert not qwen3.is_cut("ab=\u0338", 2)
    assert qwen3.is_cut("ab*", 2)


def test_literals_are_not_cut(qwen3: Certificate) -> None:
    text = "x<|im_start|>user\n"
    inside = range(2, len("x<|im_start|>"))
    assert not [i for i in inside if qwen3.is_cut(text, i)]


@pytest.mark.xdist_group("deepseek_v4")
def test_normalised_literal_is_overlapped_by_a_raw_one() -> None:
    """DeepSeek V4: "<｜/table>｜DSML｜|>x": whether ｜DSML｜ is matched depends on what stands before it."""
    certificate = certificate_of("deepseek_v4")
    for text in ("a｜DSML｜|>x", "<｜/table>｜DSML｜|>x"):
        whole = ids(tokenizer_of("deepseek_v4"), text)
        for i in certificate.cuts(text).tolist():
            assert whole == ids(tokenizer_of("deepseek_v4"), text[:i]) + ids(tokenizer_of("deepseek_v4"), text[i:])
        assert not certificate.is_cut(text, text.index("DSML｜") + 5)


def test_cuts_and_is_cut_agree(qwen3: Certificate) -> None:
    source = TextSource(qwen3.table.classes, ["<|im_end|>"], seed=5)
    for _ in range(200):
        text = source.text(20)
        cuts = [i for i in range(1, len(text)) if qwen3.is_cut(text, i)]
        assert qwen3.cuts(text).tolist() == cuts
        start, stop = sorted(source.rng.randrange(len(text) + 3) for _ in range(2))
        assert qwen3.cuts(text, start, stop).tolist() == [i for i in cuts if start <= i <= stop]
    assert qwen3.cuts("").tolist() == qwen3.cuts("a").tolist() == qwen3.cuts("a b", 3).tolist() == []


def test_lone_surrogates_are_never_beside_a_cut(qwen3: Certificate) -> None:
    assert qwen3.cuts("a\ud800 b").tolist() == qwen3.cuts("\udfff\n\ud800").tolist() == []


def test_stability(qwen3: Certificate) -> None:
    """A cut depends on the characters beside it, and under NFC on the next one, and on nothing else."""
    source = TextSource(qwen3.table.classes, seed=9)
    for _ in range(300):
        u, core, v = source.text(4), source.text(3), source.text(4)
        if len(core) >= 3:
            assert qwen3.is_cut(core, 1) == qwen3.is_cut(u + core + v, len(u) + 1)


def test_summary_and_digest(qwen3: Certificate, cache_dir: Path) -> None:
    summary = qwen3.summary()
    assert summary["normalizer"] == "NFC"
    assert summary["cut_pairs"] > 50
    assert qwen3.needs_next
    assert certify(spec_of("qwen3"), tokenizer_of("qwen3"), cache_dir=cache_dir).digest == qwen3.digest


@pytest.mark.xdist_group("deepseek_v4")
def test_another_tokenizer_has_another_certificate() -> None:
    other, embedded = certificate_of("deepseek_v4"), qwen3_tokenizer()
    assert embedded.certificate is not None
    assert other.digest != embedded.certificate.digest
    assert not other.needs_next


def test_wide_class_tables() -> None:
    """More classes than a byte holds."""
    n = 300
    classes = (np.arange(0x110000) % n).astype(np.uint16)
    matrix = np.zeros((n, n), np.uint8)
    matrix[297, 298] = 1
    certificate = Certificate(Table(classes, matrix, np.ones(n, np.bool_)), digest="d", engine="e", facts={})
    assert certificate.cuts("x" + chr(297) + chr(298) + "x").tolist() == [2]
    assert certificate.is_cut(chr(597) + chr(298), 1)


def with_table(certificate: Certificate, a: str, b: str) -> Certificate:
    """The certificate with one pair more."""
    table = certificate.table
    matrix = table.matrix.copy()
    matrix[table.classes[ord(a)], table.classes[ord(b)]] = 1
    wrong = dataclasses.replace(table, matrix=matrix)
    return Certificate(wrong, digest=certificate.digest, engine=certificate.engine, facts={})


@pytest.mark.parametrize(("a", "b"), [("a", "b"), (" ", " "), (" ", "a"), ("!", "!"), ("!", "\n"), ("\n", "\n")])
def test_a_planted_cut_is_caught_at_load(a: str, b: str, qwen3: Certificate) -> None:
    literals = [lit.content for lit in read_literals(spec_of("qwen3"), tokenizer_of("qwen3"))]
    reference = ReferenceEngine(tokenizer_of("qwen3"))
    assert self_check(qwen3, reference, literals, seed=qwen3.digest) > 200
    with pytest.raises(Refusal, match="self-check"):
        self_check(with_table(qwen3, a, b), reference, literals, seed=qwen3.digest)


@pytest.mark.parametrize(
    ("change", "construct"),
    [
        ({"model": {"type": "BPE", "dropout": 0.1}}, "BPE dropout"),
        ({"model": {"type": "Magic"}}, "model Magic"),
        ({"normalizer": {"type": "Magic"}}, "normalizer Magic"),
        ({"pre_tokenizer": {"type": "Magic"}}, "pre-tokenizer Magic"),
        ({"added_tokens": []}, "added tokens that differ"),
    ],
)
def test_refusals(change: dict[str, object], construct: str, cache_dir: Path) -> None:
    with pytest.raises(Refusal, match=construct):
        certify({**spec_of("qwen3"), **change}, tokenizer_of("qwen3"), cache_dir=cache_dir)


def test_a_panic_of_the_engine_is_a_refusal(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern that backtracks beyond Oniguruma's limit does it, after a minute: ``(?:.|..|\\n)+(?:q!q|!q!)|.``."""

    class PanicException(BaseException):
        pass

    def panicking(*_: object, **__: object) -> int:
        raise PanicException("retry-limit-in-match over")

    monkeypatch.setattr("toktier.certificate.certificate.self_check", panicking)
    with pytest.raises(Refusal, match="self-check"):
        certify(spec_of("qwen3"), tokenizer_of("qwen3"), cache_dir=cache_dir)


def test_truncation_and_padding_are_refused() -> None:
    tokenizer = Tokenizer(models.BPE())
    spec = json.loads(tokenizer.to_str())
    tokenizer.enable_truncation(10)
    with pytest.raises(Refusal, match="truncation"):
        certify(spec, tokenizer)
    tokenizer.no_truncation()
    tokenizer.enable_padding()
    with pytest.raises(Refusal, match="padding"):
        certify(spec, tokenizer)


@pytest.mark.xdist_group("deepseek_v3")
def test_worked_example_of_lemma_2() -> None:
    """docs/proof.md: DeepSeek V3 cuts (中, 1) at its first stage and (。, 中) at its second."""
    split = [op for op in stages(spec_of("deepseek_v3")["pre_tokenizer"], Probe()) if isinstance(op, Split)]
    assert [("中", "1") in certified_pairs(split[:k], "中1。") for k in (1, 2)] == [True, True]
    assert [("。", "中") in certified_pairs(split[:k], "中1。") for k in (1, 2)] == [False, True]
    tokenizer = tokenizer_of("deepseek_v3")
    for text, i in (("中文1 2", 2), ("a。中文", 2)):
        assert certificate_of("deepseek_v3").is_cut(text, i)
        assert ids(tokenizer, text) == ids(tokenizer, text[:i]) + ids(tokenizer, text[i:])


def test_worked_example_of_lemma_6(qwen3: Certificate) -> None:
    """docs/proof.md: "two" becomes "2", its neighbours keep their IDs."""
    tokenizer = tokenizer_of("qwen3")
    assert split_at_cuts(qwen3, "one two three") == ["one", " two", " three"]
    kept = [ids(tokenizer, "one"), ids(tokenizer, " three")]
    new = "one 2 three"
    assert qwen3.is_cut(new, 3)
    assert qwen3.is_cut(new, 5)
    assert ids(tokenizer, new) == kept[0] + ids(tokenizer, " 2") + kept[1]
