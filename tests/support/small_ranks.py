"""Small random vocabularies over bytes, and a BPE that tries every merge."""

from __future__ import annotations

import random
from itertools import pairwise

from toktier.gpu.merges import Pair
from toktier.rank_files import BYTE_RANKS


def plain(text: bytes, ranks: dict[bytes, int], merges: dict[Pair, tuple[int, int]]) -> list[int]:
    """BPE of one piece, which is its token where there is one."""
    if text in ranks:
        return [ranks[text]]
    return plain_bpe(text, ranks, merges)


def plain_bpe(text: bytes, single: dict[bytes, int], merges: dict[Pair, tuple[int, int]]) -> list[int]:
    parts = [single[text[i : i + 1]] for i in range(len(text))]
    while True:
        found = [(merges[pair], k) for k, pair in enumerate(pairwise(parts)) if pair in merges]
        if not found:
            return parts
        (_, product), k = min(found, key=lambda item: (item[0][0], item[1]))
        parts[k : k + 2] = [product]


def random_ranks(rng: random.Random, size: int, letters: bytes = b"abc") -> dict[bytes, int]:
    """Tokens over ``letters``, each made of two earlier ones: so what a trainer may have written."""
    ranks = dict(BYTE_RANKS)
    parts = [bytes([byte]) for byte in letters]
    while len(ranks) < 256 + size:
        token = rng.choice(parts) + rng.choice(parts)
        if token not in ranks:
            ranks[token] = len(ranks)
            parts.append(token)
    return ranks


def shuffled(rng: random.Random, ranks: dict[bytes, int]) -> dict[bytes, int]:
    """The same tokens with ranks that no trainer gives: what is made of a token may rank before it, which is a dip."""
    tokens = [token for token in ranks if len(token) > 1]
    numbers = [ranks[token] for token in tokens]
    rng.shuffle(numbers)
    return {token: rank for token, rank in ranks.items() if len(token) == 1} | dict(zip(tokens, numbers, strict=True))


def repetitive(rng: random.Random, ranks: dict[bytes, int], size: int) -> bytes:
    """``size`` bytes of some tokens again and again, with a space near the end: long pieces."""
    part = b"".join(rng.choices([token for token in ranks if len(token) > 1], k=rng.choice((1, 1, 2, 3, 30))))
    return (b"a" * rng.choice((0, 0, 70)) + part * (size // len(part)) + b" " + part)[:size]
