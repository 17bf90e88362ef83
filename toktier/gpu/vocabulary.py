"""What a tokenizer says about bytes: its tokens as byte strings, its merges, and which tokens stand for a whole piece.

A piece that is a token is that token without any merge,
- where the engine says so: ``ignore_merges``, and tiktoken always;
- else where BPE of its text is that token (`merges.Rules.whole`), which is asked of every token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import pre_tokenizers

from toktier.certificate.classes import CODE_POINTS
from toktier.errors import Refusal
from toktier.gpu import hashing
from toktier.gpu.merges import Rules, file_merges, rank_merges, rules
from toktier.rank_files import Ranks

SLOT_8 = np.dtype([("key", "<u8"), ("id", "<u4"), ("length", "<u4")])
SLOT_16 = np.dtype([("low", "<u8"), ("high", "<u8"), ("id", "<u4"), ("length", "<u4"), ("unused", "<u4", 2)])
SLOT_LONG = np.dtype(
    [("hash", "<u8"), ("id", "<u4"), ("length", "<u4"), ("offset", "<u4"), ("unused", "<u4", 3)],
)
SLOT_PAIR = np.dtype([("left", "<u4"), ("right", "<u4"), ("rank", "<u4"), ("product", "<u4")])

EMPTY_RANK = 0xFFFFFFFF
BREAK_BYTE = 0xFF
"""Stands between two texts: no valid UTF-8 has it."""
BREAK_ID = 0x3FFFFFFF
"""What the kernels give for it; no token has it."""
LONGEST_TOKEN = 4096
PIECES_ONLY = 1 << 30
"""In the ID of a slot: the token stands for a piece, but not for a part of one, since no merges make it."""


@dataclass(frozen=True)
class Vocabulary:
    """``pieces``: the tokens that stand for a whole piece, with `PIECES_ONLY` where BPE of their text is another.
    ``texts``: of all tokens."""

    pieces: list[tuple[bytes, int]]
    rules: Rules
    texts: list[bytes]


def vocabulary_of_ranks(ranks: Ranks) -> Vocabulary:
    """Of a rank file. Raises `Refusal`."""
    tokens = list(ranks.mergeable.items())
    return _vocabulary(tokens, rules(tokens, rank_merges(ranks.mergeable)), True)


def vocabulary_of_spec(model: Mapping[str, Any]) -> Vocabulary:
    """Of the model of a ``tokenizer.json`` behind ByteLevel. Raises `Refusal`."""
    if model.get("type") not in (None, "BPE"):
        raise Refusal(f"model {model['type']}", "model")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "dropout"):
        if model.get(name):
            raise Refusal(name, "model")
    vocab: Mapping[str, int] = model["vocab"]
    byte_of = byte_alphabet()
    tokens = []
    for token, number in vocab.items():
        text = [byte_of.get(c, -1) for c in token]
        if text and min(text) >= 0:  # others are no sequence of bytes, so no piece and no merge of pieces
            tokens.append((bytes(text), number))
    found = rules(tokens, file_merges(model["merges"], vocab))
    return _vocabulary(tokens, found, bool(model.get("ignore_merges")))


def _vocabulary(tokens: list[tuple[bytes, int]], found: Rules, always: bool) -> Vocabulary:
    """``always``: whether the engine takes a token for a piece whatever its merges are."""
    pieces = [
        (text, number if whole else number | PIECES_ONLY)
        for (text, number), whole in zip(tokens, found.whole.tolist(), strict=True)
        if whole or always
    ]
    return Vocabulary(pieces, found, [text for text, _ in tokens])


def byte_alphabet() -> dict[str, int]:
    """The byte of each character that ByteLevel writes, as the engine does it, for the bytes that UTF-8 has."""
    sample = "".join(map(chr, (*range(0x801), *range(0x1000, CODE_POINTS, 0x1000))))
    engine = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    shown = "".join(piece for piece, _ in engine.pre_tokenize_str(sample))
    raw = sample.encode()
    if len(shown) != len(raw) or len(set(shown)) != len(set(raw)):
        raise Refusal("ByteLevel that is not one character a byte", "pre_tokenizer")
    return dict(zip(shown, raw, strict=True))


def piece_tables(pieces: list[tuple[bytes, int]]) -> dict[str, npt.NDArray[Any]]:
    """The arrays ``slots_8``, ``slots_16``, ``slots_long`` and ``long_text`` of `tables.Tables`.

    Raises `Refusal` for a token that no table takes.
    """
    longest = max(len(text) for text, _ in pieces)
    if longest > LONGEST_TOKEN:
        raise Refusal(f"token of more than {LONGEST_TOKEN:,} bytes", "model.vocab")
    small = [(t, i) for t, i in pieces if len(t) <= 8] + [(bytes([BREAK_BYTE]), BREAK_ID)]
    if any(t == bytes([BREAK_BYTE]) for t, _ in small[:-1]):
        small = [(t, i) for t, i in small[:-1] if t != bytes([BREAK_BYTE])] + small[-1:]
    middle = [(t, i) for t, i in pieces if 8 < len(t) <= 16]
    long = [(t, i) for t, i in pieces if len(t) > 16]

    low, _, ids, lengths = _columns(small)
    bits = hashing.slots_for(len(small))
    slots_8 = np.zeros(1 << bits, SLOT_8)
    at = hashing.place(hashing.hash_8(low, lengths, bits), bits)
    slots_8["key"][at], slots_8["id"][at], slots_8["length"][at] = low, ids, lengths

    low, high, ids, lengths = _columns(middle)
    bits = hashing.slots_for(len(middle), 4)
    slots_16 = np.zeros(1 << bits, SLOT_16)
    at = hashing.place(hashing.hash_16(low, high, lengths, bits), bits)
    slots_16["low"][at], slots_16["high"][at], slots_16["id"][at], slots_16["length"][at] = low, high, ids, lengths

    hashes = np.array([hashing.hash_long(t) for t, _ in long], np.uint64)
    bits = hashing.slots_for(len(long), hashing.SPARSE)
    slots_long = np.zeros(1 << bits, SLOT_LONG)
    at = hashing.place(hashes >> np.uint64(64 - bits), bits)
    sizes = np.array([len(t) for t, _ in long], np.int64)
    slots_long["hash"][at], slots_long["id"][at] = hashes, [i for _, i in long]
    slots_long["length"][at], slots_long["offset"][at] = sizes, np.cumsum(sizes) - sizes
    # read in words of 8 bytes: up to 7 beyond the last token
    text = np.frombuffer(b"".join(t for t, _ in long) + bytes(16), np.uint8)
    return {"slots_8": slots_8, "slots_16": slots_16, "slots_long": slots_long, "long_text": text}


def pair_table(found: Rules) -> npt.NDArray[Any]:
    """The rules by their pairs. A rank is doubled, and odd for a dip."""
    bits = hashing.slots_for(len(found.rank))
    slots = np.zeros(1 << bits, SLOT_PAIR)
    slots["rank"] = EMPTY_RANK
    homes = hashing.hash_pair(found.left.astype(np.uint64), found.right.astype(np.uint64), bits)
    at = hashing.place(homes, bits)
    slots["left"][at], slots["right"][at] = found.left, found.right
    slots["rank"][at], slots["product"][at] = found.rank * 2 + found.dip, found.product
    return slots


def character_bits(found: Rules) -> npt.NDArray[np.uint32]:
    """A bit for each ID up to the highest: whether it is of `Rules.characters`."""
    highest = max(found.product.max(initial=0), found.of_byte[found.of_byte != EMPTY_RANK].max())
    flags = np.zeros(-(-(int(highest) + 1) // 32) * 32, np.uint8)
    flags[found.characters] = 1
    return np.packbits(flags, bitorder="little").view("<u4")


def _columns(
    tokens: list[tuple[bytes, int]],
) -> tuple[hashing.U64, hashing.U64, npt.NDArray[np.uint32], hashing.U64]:
    padded = np.frombuffer(b"".join(t.ljust(16, b"\0") for t, _ in tokens), "<u8").reshape(-1, 2)
    ids = np.array([i for _, i in tokens], np.uint32)
    lengths = np.array([len(t) for t, _ in tokens], np.uint64)
    return padded[:, 0].astype(np.uint64), padded[:, 1].astype(np.uint64), ids, lengths
