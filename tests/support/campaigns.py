"""Tokenizers for campaign tests: small ones, each with something in it that a planted fault can break."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from tests.support.models import qwen3
from tests.support.position_bpe import position_tokenizer
from tests.support.tokenizer_files import CACHE, write
from toktier.campaign import runner
from toktier.campaign import worker as blocks
from toktier.campaign.corpus import PROSE
from toktier.campaign.subject import Subject, subject_of
from toktier.campaign.worker import Worker
from toktier.tokenizer import FrozenTokenizer

KINDS = ("composing", "prepend", "metaspace_first", "byte_level")


def composing() -> dict[str, Any]:
    """NFC, and a piece that is there only where e composes: what follows a seam then decides."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: k for k, token in enumerate([*letters, "\u00c3\u00a9", "x\u00c3\u00a9"])}
    model = models.BPE(vocab=vocab, merges=[("\u00c3", "\u00a9"), ("x", "\u00c3\u00a9")])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(tokenizers.Regex(r"x\u00e9|[\s\S]"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    spec: dict[str, Any] = json.loads(tokenizer.to_str())
    return spec


def folder_of(kind: str, parent: Path) -> Path:
    """A tokenizer folder with one of `KINDS`."""
    spec = composing() if kind == "composing" else json.loads(position_tokenizer(kind).to_str())
    return write(parent / kind, spec)


def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three texts of each family in a block, which otherwise takes seconds. Other processes keep their own size."""
    for module in (runner, blocks):
        monkeypatch.setattr(module, "CUT_CASES", 27)


@cache
def qwen() -> Subject:
    """The tokenizer that comes with the package."""
    return subject_of(qwen3(), [PROSE])


@cache
def small(kind: str, parent: Path) -> Subject:
    """One of `KINDS`."""
    return subject_of(FrozenTokenizer.load(folder_of(kind, parent), cache_dir=CACHE, window=False), [PROSE])


def worker(subject: Subject, seed: int = 0) -> Worker:
    return Worker(subject, seed)
