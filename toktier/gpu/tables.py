"""Everything that the kernels know of one tokenizer, as arrays in the layout of ``cuda_src/tables.cuh``.

They are for a *segment*: text without added tokens, after the normalizer. Several segments go in one text with a break
byte (`vocabulary.BREAK_BYTE`) between them; the kernels give `vocabulary.BREAK_ID` for it.

The tables are a function of the tokenizer's files, the classes probed out of its reference engine, and this package's
source. `store` keeps them under all three.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import FANCY, Probe
from toktier.certificate.follow import positions
from toktier.certificate.ops import Op, Rewrite, Split
from toktier.certificate.regex import Dialect, parse
from toktier.certificate.stages import stages
from toktier.errors import Refusal
from toktier.files import TokenizerFiles
from toktier.gpu import store
from toktier.gpu.adjacency import adjacency
from toktier.gpu.splits import Splits, splits_of
from toktier.gpu.vocabulary import (
    Vocabulary,
    character_bits,
    pair_table,
    piece_tables,
    vocabulary_of_ranks,
    vocabulary_of_spec,
)
from toktier.rank_files import Ranks
from toktier.reference_of import engine_versions, ranks_in, spec_of

ARRAYS = (
    "blocks",
    "moves",
    "sync",
    "pages",
    "page_classes",
    "slots_8",
    "slots_16",
    "slots_long",
    "long_text",
    "pairs",
    "of_byte",
    "adjacent",
    "adjacent_bytes",
    "characters",
    "members",
)
"""In the order of the pointers in ``struct Tables``."""
NUMBERS = (
    "classes",
    "stride",
    "states",
    "moves_size",
    "sync_size",
    "bits_8",
    "bits_16",
    "bits_long",
    "longest",
    "bits_pair",
    "bits_adjacent",
    "open_rows",
)
"""In the order of the 32-bit numbers behind them."""
_HASHED = (
    ("8", "slots_8"),
    ("16", "slots_16"),
    ("long", "slots_long"),
    ("pair", "pairs"),
    ("adjacent", "adjacent"),
)
_STRUCT = struct.Struct(f"<{len(ARRAYS)}Q{len(NUMBERS)}I")
ALIGNMENT = 256


@dataclass(frozen=True)
class Tables:
    """``arrays`` by `ARRAYS`, ``numbers`` by `NUMBERS`. ``classes`` of 16 bits and more are little-endian."""

    arrays: Mapping[str, npt.NDArray[Any]]
    numbers: Mapping[str, int]

    def structure(self, addresses: Mapping[str, int]) -> bytes:
        """``struct Tables`` with each array at its address."""
        return _STRUCT.pack(*(addresses[name] for name in ARRAYS), *(self.numbers[name] for name in NUMBERS))

    def image(self) -> tuple[npt.NDArray[np.uint8], dict[str, int]]:
        """All arrays in one, and the offset of each, a multiple of `ALIGNMENT`."""
        offsets, size = {}, 0
        for name in ARRAYS:
            offsets[name] = size
            size += -(-self.arrays[name].nbytes // ALIGNMENT) * ALIGNMENT
        image = np.zeros(size, np.uint8)
        for name, at in offsets.items():
            raw = self.arrays[name].view(np.uint8)
            image[at : at + len(raw)] = raw
        return image, offsets


STRUCTURE_SIZE = _STRUCT.size


def tables_of(read: TokenizerFiles, *, cache_dir: Path | None = None) -> Tables:
    """The tables of a tokenizer's files: seconds of work, a few milliseconds where they are kept in ``cache_dir``.

    Raises `Refusal` naming what the kernels have no rule for, and `UnusableFile`.
    """
    key = read.digest(engine_versions())
    kept = store.load(cache_dir, key)
    if kept is None:
        kept = _of_spec(spec_of(read), cache_dir) if read.sidecar is None else _of_ranks(ranks_in(read), cache_dir)
        store.store(cache_dir, key, *kept)
    return Tables(*kept)


def splits_of_spec(spec: Mapping[str, Any], probe: Probe) -> Splits:
    """Of a parsed ``tokenizer.json``. Raises `Refusal`."""
    ops = stages(spec.get("pre_tokenizer"), probe)
    rewrites = [op for op in ops if isinstance(op, Rewrite)]
    if [op.name for op in rewrites] != ["bytes"] or ops[-1] is not rewrites[0]:
        raise Refusal("pieces that are not given to the model as bytes", "pre_tokenizer")
    return splits_of(ops, probe)


def splits_of_pattern(pattern: str, probe: Probe) -> Splits:
    """Of a tiktoken pattern. Raises `Refusal`."""
    node = parse(pattern, "pat_str", Dialect.FANCY)
    ops: list[Op] = [Split("pat_str", pattern, node, positions(node, "pat_str"), "Removed", invert=True)]
    return splits_of(ops, probe)


_Parts = tuple[dict[str, npt.NDArray[Any]], dict[str, int]]


def _of_spec(spec: Mapping[str, Any], cache_dir: Path | None) -> _Parts:
    return _parts(splits_of_spec(spec, Probe(cache_dir)), vocabulary_of_spec(spec["model"]))


def _of_ranks(ranks: Ranks, cache_dir: Path | None) -> _Parts:
    return _parts(splits_of_pattern(ranks.pattern, Probe(cache_dir, FANCY)), vocabulary_of_ranks(ranks))


def _parts(splits: Splits, vocabulary: Vocabulary) -> _Parts:
    arrays = splits.arrays() | piece_tables(vocabulary.pieces) | adjacency(vocabulary.texts)
    arrays |= {"pairs": pair_table(vocabulary.rules), "of_byte": vocabulary.rules.of_byte}
    arrays["characters"] = character_bits(vocabulary.rules)
    numbers = {
        "classes": splits.classes,
        "stride": splits.stride,
        "states": len(splits.machine.rows),
        "moves_size": arrays["moves"].size,
        "sync_size": arrays["sync"].size,
        "longest": max(len(text) for text, _ in vocabulary.pieces),
        "open_rows": int(splits.open_rows),
    }
    for name, array in _HASHED:
        numbers[f"bits_{name}"] = len(arrays[array]).bit_length() - 1
    return arrays, numbers
