"""Cuts against the reference: at every certified cut of a text, the parts' pieces and IDs are those of the whole.

A cut i of x = l r claims T(x) = T(l) + X(r), X being T but for interior tokenizers, and as much of the pieces that the
normalizer and the pre-tokenizer make (lemmas 1, 2, 4). In a short text each cut is tried alone, both sides whole; a
long text is taken apart at all its cuts at once (lemma 6). One seam in one text is one check.

Pieces are compared by their text and their ends. Where no merge joins the two sides (lemma 3) a cut may lie inside a
piece: there, and only there, the parts may have an end that the whole has not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal

import numpy as np

from toktier.campaign.subject import Subject
from toktier.campaign.texts import SHORT
from toktier.certificate.table import IF_APART
from toktier.chunks import ChunkEncoder

Level = Literal["ids", "pieces"]


@dataclass(frozen=True)
class BadCut:
    """``cut``: the first seam that is wrong by itself, or None where only the parts between all cuts are."""

    level: Level
    cut: int | None


class Seams:
    """The checks of one subject."""

    def __init__(self, subject: Subject) -> None:
        self._rule = subject.rule
        self._reference = subject.reference
        self._encoder = ChunkEncoder(subject.rule, subject.reference, subject.reference)

    def check(self, text: str) -> tuple[int, BadCut | None]:
        """How many cuts were checked, and what is wrong with one, if anything."""
        cuts = self._rule.cuts(text).tolist()
        if not cuts:
            return 0, None
        bad = self._each(text, cuts) if len(text) <= SHORT else None
        if bad is None:
            bad = self._all(text, cuts)
        return len(cuts), bad

    def bad_at(self, text: str, cut: int) -> BadCut | None:
        """What is wrong with one place, taken for a cut, if anything."""
        return self._each(text, [cut])

    def _each(self, text: str, cuts: Sequence[int]) -> BadCut | None:
        whole = self._reference.encode(text)
        sides = [side for cut in cuts for side in (text[:cut], text[cut:])]
        before = [left for cut in cuts for left in ("", text[cut - 1])]
        ids, counts, _ = self._encoder.encode(sides, before if self._encoder.interior else ())
        start = 0
        for k, cut in enumerate(cuts):
            end = start + counts[2 * k] + counts[2 * k + 1]
            if not np.array_equal(ids[start:end], whole):
                return BadCut("ids", cut)
            start = end
        pieces = self._reference.pieces(text)
        for cut in cuts:
            if not self._same_pieces(pieces, text, [text[:cut], text[cut:]]):
                return BadCut("pieces", cut)
        return None

    def _all(self, text: str, cuts: Sequence[int]) -> BadCut | None:
        parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]
        before = ["", *(text[cut - 1] for cut in cuts)] if self._encoder.interior else ()
        ids = self._encoder.encode(parts, before).ids
        level: Level | None = None
        if not np.array_equal(ids, self._reference.encode(text)):
            level = "ids"
        elif not self._same_pieces(self._reference.pieces(text), text, parts):
            level = "pieces"
        if level is None:
            return None
        return next((bad for cut in cuts if (bad := self._each(text, [cut]))), BadCut(level, None))

    def _same_pieces(self, whole: list[str], text: str, parts: Sequence[str]) -> bool:
        found: list[str] = []
        loose = set[int]()
        """Lengths of the text before the seams that may lie inside a piece."""
        size = at = 0
        for k, part in enumerate(parts):
            own = self._pieces(part, text[at - 1] if k and self._rule.interior else "")
            if k and self._may_lie_inside(text, at):
                loose.add(size)
            found += own
            size += sum(map(len, own))
            at += len(part)
        if not loose:
            return found == whole
        ends, whole_ends = set(accumulate(map(len, found))), set(accumulate(map(len, whole)))
        return "".join(found) == "".join(whole) and whole_ends <= ends and ends - whole_ends <= loose

    def _pieces(self, part: str, before: str) -> list[str]:
        if not before:
            return self._reference.pieces(part)
        # what ``before`` became is taken off by its length: it may share its last piece with the part (lemma 3)
        gone = sum(map(len, self._reference.pieces(before)))
        kept: list[str] = []
        for piece in self._reference.pieces(before + part):
            if gone < len(piece) or (gone == 0 and not piece):
                kept.append(piece[gone:])
            gone = max(0, gone - len(piece))
        return kept

    def _may_lie_inside(self, text: str, cut: int) -> bool:
        table = self._rule.table
        if table.joins is None:
            return False
        a, b = table.classes[ord(text[cut - 1])], table.classes[ord(text[cut])]
        return bool(table.matrix[a, b] & IF_APART)
