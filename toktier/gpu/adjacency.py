"""Which characters stand side by side in some token: pieces are cut everywhere else (``cuda_src/cuts.cuh``).

Lemma D (`merges`). A merge across the seam of two characters makes a token that has the seam inside. On each side of it
the token has the whole character or a part of it. If both are whole, the token has the two side by side; else the last
byte of the one and the first byte of the other are beside each other in a token that has a part of a character there.
Where neither is so, no merge crosses the seam, and no token is a piece that has the seam inside.

Only seams of two characters beyond ASCII are asked: nearly all pairs of letters are in some token.

The pairs are kept in a Bloom filter: a seam that it takes for one of them is not cut, and no token changes by that. Of
a pair it knows the last two bytes of the first character and up to three of the second, so none is decoded.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.gpu import hashing

WORDS_FOR = 2
"""Pairs for each word of 32 bits, at most: then 1 to 3 of 100 seams that could be cut are not."""


def adjacency(texts: Iterable[bytes]) -> dict[str, npt.NDArray[Any]]:
    """The arrays ``adjacent`` and ``adjacent_bytes`` of `tables.Tables`. ``texts``: of all tokens."""
    pairs: set[tuple[str, str]] = set()
    parts: set[tuple[int, int]] = set()
    for text in texts:
        if text.isascii():
            continue
        for left, right in pairwise(_characters(text)):
            if left[0] < 0x80 or right[0] < 0x80:
                continue
            if _whole(left) and _whole(right):
                pairs.add((left.decode(), right.decode()))
            else:
                parts.add((left[-1], right[0]))
    seams = sorted({seam_of(a.encode(), b.encode()) for a, b in pairs})
    hashes = hashing.hash_seam(np.array(seams, np.uint64).reshape(-1, 2))
    bits = hashing.slots_for(-(-len(seams) // WORDS_FOR), 1)
    words = np.zeros(1 << bits, np.uint32)
    np.bitwise_or.at(words, hashes >> np.uint32(32 - bits), hashing.seam_bits(hashes))
    flags = np.zeros(64 * 64, np.uint8)
    flags[[(last & 63) * 64 + (first & 63) for last, first in sorted(parts)]] = 1
    return {"adjacent": words, "adjacent_bytes": np.packbits(flags, bitorder="little").view("<u4")}


def seam_of(left: bytes, right: bytes) -> tuple[int, int]:
    """What the filter knows of two characters: ``struct Seam``."""
    return int.from_bytes(left[-2:] + right[:2], "little"), right[2] if len(right) > 2 else 0


def _characters(text: bytes) -> list[bytes]:
    """``text`` cut before each byte that begins a character: parts of characters may stand at both ends."""
    edges = [i for i, byte in enumerate(text) if i == 0 or byte & 0xC0 != 0x80]
    return [text[a:b] for a, b in pairwise([*edges, len(text)])]


def _whole(char: bytes) -> bool:
    try:
        return len(char.decode()) == 1
    except UnicodeDecodeError:
        return False
