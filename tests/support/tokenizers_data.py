"""Real tokenizers of the shared test data, certified once per test run: all workers share one folder of sets."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.conftest import data_path
from toktier.certificate import Certificate, certify


@cache
def spec_of(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = json.loads(lzma.decompress(data_path("tokenizers", name, "tokenizer.json.xz").read_bytes()))
    spec["truncation"] = spec["padding"] = None
    return spec


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return Tokenizer.from_str(json.dumps(spec_of(name)))


@cache
def certificate_of(name: str, cache_dir: Path) -> Certificate:
    return certify(spec_of(name), tokenizer_of(name), cache_dir=cache_dir)


def shared_cache(factory: pytest.TempPathFactory) -> Path:
    """One folder for all pytest-xdist workers of a run."""
    base = factory.getbasetemp()
    return (base.parent if base.name.startswith("popen-") else base) / "toktier-classes"


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids
