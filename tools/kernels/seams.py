"""Texts around tokens that stand for whole pieces only: what is cut off behind one must not make a piece of it."""

from __future__ import annotations

import random

from toktier.gpu.tables import Tables
from toktier.gpu.vocabulary import PIECES_ONLY

_LENGTHS = (1, 3, 20, 31, 33, 64, 70, 130, 400)
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def whole_only(tables: Tables) -> list[str]:
    """The tokens that no merges make, where they are text."""
    texts = tables.arrays["long_text"].tobytes()
    found: list[bytes] = []
    for name in ("slots_8", "slots_16", "slots_long"):
        slots = tables.arrays[name]
        for slot in slots[(slots["length"] > 0) & (slots["id"] & PIECES_ONLY != 0)]:
            length = int(slot["length"])
            if name == "slots_long":
                found.append(texts[int(slot["offset"]) :][:length])
            elif name == "slots_16":
                found.append((slot["low"].tobytes() + slot["high"].tobytes())[:length])
            else:
                found.append(slot["key"].tobytes()[:length])
    decoded = (token.decode(errors="ignore") for token in found)
    return sorted(text for text, raw in zip(decoded, found, strict=True) if text and text.encode() == raw)


def seam(tokens: list[str], rng: random.Random) -> str:
    """One or two of ``tokens``, each with another character behind it and a row of letters; something before all."""
    parts = [rng.choice(("", "", "\n", " ", "a", "\u4e2d\u6587", "x" * 70))]
    for _ in range(rng.choice((1, 1, 2))):
        parts.append(rng.choice(tokens))
        parts.append(rng.choice(("", "\u00e9", "\u4e2d", "\ud1a0", "\u0436", "a", " ")))
        parts.append("".join(rng.choices(_LETTERS, k=rng.choice(_LENGTHS))))
    return "".join(parts)
