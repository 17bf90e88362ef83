"""Rank files: the published encodings in the shared data, with the sidecars that belong to them, and small ones."""

from __future__ import annotations

import base64
import json
import lzma
from functools import cache
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, data_path
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.rank_files import BYTE_RANKS, Ranks, ranks_of

R50K = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s"
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
PATTERNS = {"r50k": R50K, "cl100k": CL100K, "o200k": O200K, "qwen": QWEN, "kimi": KIMI}

SIDECAR_FILES = {
    "gpt2_tiktoken": ROOT / "conf/tiktoken/r50k_base.tiktoken.json",
    "o200k_tiktoken": ROOT / "conf/tiktoken/o200k_base.tiktoken.json",
    "qwen_tiktoken": ROOT / "conf/tiktoken/qwen.tiktoken.json",
}
"""By the folder in the shared data."""
SIDECARS: dict[str, dict[str, Any]] = {name: json.loads(path.read_text()) for name, path in SIDECAR_FILES.items()}

SMALL = BYTE_RANKS | {b"ab": 256, b" a": 257, b"abc": 258, b"  ": 259, "\u00e9".encode(): 260}
SMALL_SIDECAR: dict[str, Any] = {"pat_str": CL100K, "special_tokens": {"<|end|>": 300, "<|start|>": 301}}


def rank_lines(ranks: dict[bytes, int]) -> bytes:
    return b"".join(base64.b64encode(token) + b" %d\n" % number for token, number in ranks.items())


def write_ranks(
    folder: Path, ranks: dict[bytes, int] = SMALL, sidecar: dict[str, Any] | None = SMALL_SIDECAR, name: str = "small"
) -> Path:
    """A folder with a rank file and its sidecar."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.tiktoken").write_bytes(rank_lines(ranks))
    if sidecar is not None:
        (folder / f"{name}.tiktoken.json").write_text(json.dumps(sidecar))
    return folder


def small_engine(**sidecar: Any) -> TiktokenEngine:
    return TiktokenEngine(ranks_of(rank_lines(SMALL), SMALL_SIDECAR | sidecar, "test"))


def folder_with_sidecar(name: str, target: Path) -> Path:
    """A folder ``target`` with a link to the ranks of the shared data and their sidecar."""
    (ranks,) = data_path("tokenizers", name).glob("*.tiktoken.xz")
    target.mkdir(parents=True, exist_ok=True)
    (target / ranks.name).symlink_to(ranks)
    (target / "tiktoken.json").write_text(json.dumps(SIDECARS[name]))
    return target


@cache
def published(name: str) -> Ranks:
    """The encoding of a folder in the shared data."""
    (path,) = data_path("tokenizers", name).glob("*.tiktoken.xz")
    return ranks_of(lzma.decompress(path.read_bytes()), SIDECARS[name], name)


@cache
def published_engine(name: str) -> TiktokenEngine:
    return TiktokenEngine(published(name), name)
