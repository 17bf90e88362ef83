"""The tokenizers that the GPU path is for, and texts to try them on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from tests.conftest import ROOT, data_path
from tests.support.rank_data import SIDECAR_FILES
from tests.support.tokenizer_files import CACHE
from toktier import files
from toktier.certificate.samples import TextSource
from toktier.engines.base import Reference
from toktier.engines.reference import ReferenceEngine
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.gpu.tables import Tables, tables_of
from toktier.reference_of import reference_of
from tools.kernels.host import HostCore, core
from tools.kernels.seams import seam, whole_only

FAMILIES = (
    "qwen3",
    "llama3_1",
    "cl100k",
    "gpt_oss",
    "deepseek_v4",
    "tekken",
    "gpt2_tiktoken",
)
"""DeepSeek V3 splits as V4 does, o200k as gpt-oss. ``tools.kernels.check`` takes all."""


SHORTENED = {"cl100k": 50_000, "gpt_oss": 50_000, "tekken": 50_000}
"""Tokens, of the first ones, where making tables of all takes long: the splits are the family's own, the lemmas about
merges are met by the other families' whole vocabularies (Llama 3.1 has all tokens of cl100k)."""


@cache
def files_of(name: str) -> files.TokenizerFiles:
    read = files.read(data_path("tokenizers", name), sidecar=SIDECAR_FILES.get(name))
    return replace(read, tokenizer=_shortened(read.tokenizer, SHORTENED[name])) if name in SHORTENED else read


def _shortened(raw: bytes, tokens: int) -> bytes:
    """A ``tokenizer.json`` with fewer tokens, the merges that make these, and no literals."""
    spec = json.loads(raw)
    model = spec["model"]
    kept = dict(sorted(model["vocab"].items(), key=lambda item: item[1])[:tokens])
    pairs = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
    model |= {"vocab": kept, "merges": [pair for pair in pairs if {*pair, "".join(pair)} <= kept.keys()]}
    return json.dumps(spec | {"added_tokens": [], "post_processor": None}).encode()


@cache
def host_core() -> HostCore:
    return core(ROOT / ".cache" / "gpu-core")


@cache
def tables(name: str) -> Tables:
    return tables_of(files_of(name), cache_dir=CACHE)


@cache
def reference(name: str) -> Reference:
    return reference_of(files_of(name))[0]


@cache
def literals(name: str) -> list[str]:
    engine = reference(name)
    if isinstance(engine, TiktokenEngine):
        return sorted(engine.ranks.special_tokens)
    assert isinstance(engine, ReferenceEngine)
    return sorted(token.content for token in engine.tokenizer.get_added_tokens_decoder().values() if token.content)


def segment(name: str, text: str) -> str | None:
    """``text`` as the model sees it: normalised; None where a literal would be cut out of it."""
    engine = reference(name)
    normalizer = engine.tokenizer.normalizer if isinstance(engine, ReferenceEngine) else None
    text = normalizer.normalize_str(text) if normalizer else text
    return None if any(literal in text for literal in literals(name)) else text


def classes_of(given: Tables) -> npt.NDArray[np.uint8]:
    """The class of each code point, shape ``(0x110000,)``."""
    pages = given.arrays["page_classes"].reshape(-1, 128)
    return pages[given.arrays["pages"]].ravel()


def hostile(name: str, count: int, seed: str) -> Iterator[str]:
    """Random texts of the tokenizer's own classes, with runs that never synchronise and pieces of every length."""
    source = TextSource(classes_of(tables(name)), seed=f"{name} {seed}")
    rng = random.Random(f"{name} {seed}")
    tokens = whole_only(tables(name))
    for _ in range(count):
        kind = rng.random()
        if tokens and kind < 0.2:
            text = seam(tokens, rng)
        elif kind < 0.5:
            text = source.text(rng.choice((1, 2, 3, 5, 8, 13, 30, 80)))
        elif kind < 0.8:
            text = "".join(_stretch(rng, source) for _ in range(rng.randint(1, 4)))
        else:
            alphabet = [source.piece() for _ in range(rng.randint(1, 4))]
            text = "".join(rng.choices(alphabet, k=rng.choice((5, 40, 200, 700))))
        if (kept := segment(name, text)) is not None:
            yield kept


def _stretch(rng: random.Random, source: TextSource) -> str:
    length = rng.choice((3, 17, 31, 32, 33, 63, 64, 65, 100, 150, 333, 900))
    kind = rng.randrange(6)
    if kind == 0:
        return rng.choice(" \n\t=-#*a1.\u4e2d\u00e9 ") * length
    if kind == 1:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=length))
    if kind == 2:
        return "".join(rng.choices("ab", k=length))
    if kind == 3:
        return "".join(rng.choices("0123456789ABCDEFabcdef+/", k=length))
    if kind == 4:
        part = source.text(rng.randint(1, 3))
        return (part * (length // max(len(part), 1) + 1))[:length]
    return source.char() * length
