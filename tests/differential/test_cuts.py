"""T(x) is the concatenation of the T of its parts at certified cuts: real tokenizers, hostile and real text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support.tokenizers_data import certificate_of, each, spec_of, tokenizer_of
from toktier.certificate.certificate import read_literals
from toktier.certificate.samples import TextSource
from toktier.certificate.selfcheck import parts_differ, split_at_cuts
from toktier.engines.reference import ReferenceEngine

NAMES = ["qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "deepseek_v4", "cl100k", "tekken", "llama2", "gemma3"]
PROSE = (
    "Она сказала: «Привет, мир!» — и ушла.  中文文本，没有空格。日本語のテキスト、カタカナ。한국어 문장입니다. "
    "हिन्दी में वाक्य। বাংলা হয়তো। ภาษาไทยไม่มีช่องว่าง Les élèves ont déjà mangé\u0301. I'll've DON'T we\u2019re 1,234.56 "
    "2026-11-30T02:37:11Z\tERROR [worker-3] x=0xDEADBEEF\r\n\r\n"
    "    return {'a': [1, 2]}  # \U0001f600\U0001f1e9\U0001f1ea\n"
)


@pytest.mark.parametrize("name", each(NAMES))
def test_parts_add_up(name: str) -> None:
    certificate = certificate_of(name)
    tokenizer = tokenizer_of(name)
    literals = [lit.content for lit in read_literals(spec_of(name), tokenizer)]
    source = TextSource(certificate.table.classes, literals, seed=f"differential {name}")
    texts = [source.text(source.rng.choice((6, 12, 40))) for _ in range(1200)]
    texts += [PROSE, PROSE * 3 + "".join(literals[:40]), json.dumps(spec_of(name)["added_tokens"][:60])]
    texts += [path.read_text(encoding="utf-8")[:20000] for path in sorted(Path(ROOT, "toktier").glob("*.py"))[:4]]
    parts = [split_at_cuts(certificate, text) for text in texts]
    seams, bad = parts_differ(certificate, ReferenceEngine(tokenizer), texts, parts)
    assert not bad, ascii(texts[bad[0]][:200])
    assert seams > 4000
