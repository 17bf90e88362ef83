"""Where in the reference's text an ID stands, and in which piece: for the first difference of two ID lists.

A piece is what the model is given at once: a pre-token, or a literal that was cut out before. It is the smallest text
to reproduce a fault with. Nothing here judges: the verdict is there before this is asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.engines.base import Reference
from toktier.engines.reference import ReferenceEngine
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.shadow.job import Piece

_WINDOW = 512
_UNSETTLED = 2
"""Matches at the end of a window that is not the end of the text: the last may go on, and may be why the one before it
ends where it does."""


@dataclass(frozen=True, slots=True)
class Place:
    """``char``: where it begins. ``piece`` is None where the text has none."""

    char: int
    piece: Piece | None


def of_id(engine: Reference, text: str, index: int) -> Place:
    """Of the ID at ``index`` in T(text); of the end of the text where there are no so many. Raises `CannotEncode`."""
    if isinstance(engine, TiktokenEngine):
        ids = engine.encode(text)
        before = len(text.encode()) if index >= len(ids) else len(engine.bytes_of(ids[:index]))
        char = len(text.encode()[:before].decode(errors="ignore"))
        return Place(char, _piece_of(engine, text, char))
    offsets, words = _encoded(engine, text)
    if not len(words):
        return Place(len(text), None)
    k = min(index, len(words) - 1)
    return Place(int(offsets[k, 0]) if k == index else len(text), _piece_at(offsets, words, k))


def of_char(engine: Reference, text: str, char: int) -> Place:
    """Of the character ``char``; of the end of the text where there are no so many. Raises `CannotEncode`."""
    if isinstance(engine, TiktokenEngine):
        return Place(char, _piece_of(engine, text, char))
    offsets, words = _encoded(engine, text)
    if not len(words):
        return Place(char, None)
    behind = offsets[:, 1] > char
    return Place(char, _piece_at(offsets, words, int(behind.argmax()) if behind.any() else len(words) - 1))


# tokenizers: offsets and the number of the piece come with the IDs


def _encoded(engine: Reference, text: str) -> tuple[npt.NDArray[np.int64], list[int]]:
    """Characters of each ID, shape ``(n, 2)``, and the number of its piece."""
    assert isinstance(engine, ReferenceEngine)
    encoding = engine.with_offsets(text)
    words = [word for word in encoding.word_ids if word is not None]
    assert len(words) == len(encoding), "only a post-processor adds IDs that are of no piece"
    return np.array(encoding.offsets, np.int64).reshape(-1, 2), words


def _piece_at(offsets: npt.NDArray[np.int64], words: list[int], k: int) -> Piece:
    first = last = k
    while first and words[first - 1] == words[k]:
        first -= 1
    while last + 1 < len(words) and words[last + 1] == words[k]:
        last += 1
    start = int(offsets[first : last + 1, 0].min())
    return Piece(words[k], start, int(offsets[first : last + 1, 1].max()) - start)


# tiktoken: pieces are found again one by one


def _piece_of(engine: TiktokenEngine, text: str, char: int) -> Piece | None:
    """The piece that holds ``char``, or the last one before it."""
    found: Piece | None = None
    for index, (start, size) in enumerate(_pieces(engine, text)):
        if found is not None and start > char:
            break
        found = Piece(index, start, size)
        if start + size > char:
            break
    return found


def _pieces(engine: TiktokenEngine, text: str) -> Iterator[tuple[int, int]]:
    """Start and length of each piece of T(text), special tokens among them."""
    start = 0
    for literal in _literals(engine, text):
        yield from _matches(engine, text, start, literal.start())
        yield literal.start(), len(literal[0])
        start = literal.end()
    yield from _matches(engine, text, start, len(text))


def _literals(engine: TiktokenEngine, text: str) -> Iterator[re.Match[str]]:
    special = engine.ranks.special_tokens
    return re.finditer("|".join(map(re.escape, special)), text) if special else iter(())


def _matches(engine: TiktokenEngine, text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Start and length of the matches in ``text[start:end]``, a window at a time: asking for all is quadratic."""
    size = _WINDOW
    while start < end:
        window = text[start : min(start + size, end)]
        found: list[tuple[int, int]] = []
        at = 0
        for piece in engine.pieces(window):
            at = window.index(piece, at)
            found.append((start + at, len(piece)))
            at += len(piece)
        if start + size < end:
            found = found[:-_UNSETTLED]
        elif not found:
            return
        if not found:
            size *= 2
            continue
        yield from found
        start, size = sum(found[-1]), _WINDOW
