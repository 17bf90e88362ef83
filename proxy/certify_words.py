"""Characters and classes in words, for people: by their Unicode names and categories."""

from __future__ import annotations

import unicodedata
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len

from toktier.certificate.classes import SURROGATES
from toktier.certificate.table import NO, Table

_KINDS = {
    "L": "a letter",
    "M": "a combining mark",
    "N": "a digit or number",
    "P": "punctuation",
    "S": "a symbol",
    "Z": "a blank",
    "Cc": "a control character",
    "Cf": "a format character",
}
_ALONE = {" ": "a space", "\n": "a line feed", "\r": "a carriage return", "\t": "a tab"}
_EAST = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL")
_LIKED = "aA0.,( etx1-"
_SAMPLE = 4000
"""Members of a class that are looked at; of larger ones, so many taken evenly."""


def kind(character: str) -> str:
    """What sort of character it is: ``a letter``, ``a space``, ``a CJK character``."""
    if character in _ALONE:
        return _ALONE[character]
    category = unicodedata.category(character)
    if category[0] == "L" and unicodedata.name(character, "").startswith(_EAST):
        return "a CJK character"
    return _KINDS.get(category, _KINDS.get(category[0], "an unassigned character"))


def classes_in_words(table: Table) -> list[dict[str, Any]]:
    """All classes: number, what most members are, how many they are, examples, and the sides of a cut they stand on."""
    order = np.argsort(table.classes, kind="stable")
    edges = np.searchsorted(table.classes[order], np.arange(len(table.matrix) + 1)).tolist()
    left, right = (table.matrix != NO).any(axis=1), (table.matrix != NO).any(axis=0)
    told = []
    for k, (start, end) in enumerate(pairwise(edges)):
        members = order[start:end]
        members = members[(members < SURROGATES.start) | (members >= SURROGATES.stop)]
        if len(members):
            told.append(
                {
                    "class": k,
                    "words": _mostly(members),
                    "members": len(members),
                    "examples": _examples(members, 6),
                    "before_cuts": bool(left[k]),
                    "after_cuts": bool(right[k]),
                }
            )
    return told


def shown(text: str) -> str:
    """``text`` on one line, what does not print as its code point."""
    return "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def many(count: int, noun: str) -> str:
    """``1 character``, ``2,000 characters``."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def pointed_at(excerpt: str, at: int | None) -> list[str]:
    """An excerpt as a line, and a line with a sign below its character ``at``; nothing for an empty one."""
    if not excerpt:
        return []
    line = f"  {shown(excerpt)}"
    return [line] if at is None else [line, " " * (2 + cell_len(shown(excerpt[:at]))) + "^"]


def _mostly(members: npt.NDArray[np.integer]) -> str:
    """The commonest kind, or two where the first is not nine tenths; before it the commonest among its printable
    ASCII characters, and at last whether there are others. Unassigned characters count if there are only such."""
    sample = members if len(members) <= _SAMPLE else members[np.linspace(0, len(members) - 1, _SAMPLE).astype(int)]
    kinds = Counter(kind(chr(p)) for p in sample.tolist())
    if len(kinds) > 1:
        kinds.pop("an unassigned character", None)
    (first, most), *rest = kinds.most_common(2)
    named = [first] if not rest or most >= 0.9 * kinds.total() else [first, rest[0][0]]
    typed = [chr(p) for p in members[members < 0x80].tolist() if chr(p).isprintable()]
    if typed:
        named = list(dict.fromkeys([Counter(map(kind, typed)).most_common(1)[0][0], *named]))
    others = ", and others" if kinds.keys() - set(named) else ""
    return " or ".join([named[0], *(one.removeprefix("a ") for one in named[1:])]) + others


def _examples(members: npt.NDArray[np.integer], count: int) -> list[str]:
    """ASCII first, then the ends of the class."""
    ascii_ = [chr(p) for p in members[members < 0x80].tolist()]
    liked = [c for c in _LIKED if c in ascii_]
    ends = [chr(p) for p in (*members[:count].tolist(), *members[-count:].tolist())]
    return [shown(c) for c in list(dict.fromkeys([*liked, *ascii_, *ends]))[:count]]
