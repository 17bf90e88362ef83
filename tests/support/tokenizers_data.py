"""Real tokenizers of the shared test data.

Each is loaded once in a process and given to all tests, which only read it; with ``--dist loadgroup`` the tests on one
(`each`) run one after the other in one process, so that few are held at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.conftest import data_path
from tests.support.models import qwen3
from tests.support.tokenizer_files import CACHE
from toktier import files
from toktier.certificate import Certificate
from toktier.engines.reference import ReferenceEngine
from toktier.tokenizer import EMBEDDED, FrozenTokenizer

HELD = 3
"""Some 500 MB each."""
WITH_WINDOW = ("qwen3", "llama3_1", "gpt_oss", "deepseek_v3", "gemma3", "llama2")
"""Where tests need the window engine. Its self-test takes seconds."""


@lru_cache(HELD)
def real(name: str) -> FrozenTokenizer:
    """The tokenizer as it is served. Qwen3 is the one that TokTier ships, loaded once for both."""
    folder = data_path("tokenizers", name)
    if name == "qwen3" and _content(folder) == _content(EMBEDDED):
        return qwen3()
    return FrozenTokenizer.load(folder, cache_dir=CACHE, window=name in WITH_WINDOW)


def _content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("tokenizer.json.xz", "tokenizer_config.json")]


def each(names: Iterable[str]) -> list[Any]:
    """``names`` as parameters of tests on real tokenizers."""
    return [pytest.param(name, marks=pytest.mark.xdist_group(name), id=name) for name in names]


@lru_cache(HELD)
def spec_of(name: str) -> dict[str, Any]:
    """Its ``tokenizer.json``, tables included."""
    spec: dict[str, Any] = json.loads(files.read(data_path("tokenizers", name)).tokenizer)
    spec["truncation"] = spec["padding"] = None
    return spec


def tokenizer_of(name: str) -> Tokenizer:
    reference = real(name).reference
    assert isinstance(reference, ReferenceEngine)
    return reference.tokenizer


def certificate_of(name: str) -> Certificate:
    certificate = real(name).certificate
    assert certificate is not None
    return certificate


def shared_cache(factory: pytest.TempPathFactory) -> Path:
    """One folder for all pytest-xdist workers of a run."""
    base = factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "toktier-classes"


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids
