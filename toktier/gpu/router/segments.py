"""From chunks of text to one text of segments, and back from its IDs to a count a chunk.

All chunks go in one buffer with a break byte between them (`toktier.gpu.vocabulary.BREAK_BYTE`). T cuts literals out in
two passes: the raw ones in the raw text, then the others, in their normal form, inside each segment that is left, after
the normalizer. So here: a pass over the buffer, every byte of a match becoming a break; segments that are not normal
are replaced by their normal forms; a second pass. What is between two breaks is then a segment as the tables want it
(some are empty, which have no IDs), and what a break stood for says where a chunk ends or a literal's ID belongs.
Neither a match nor a normal form crosses a break: no UTF-8 has that byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from toktier.certificate.classes import Probe
from toktier.engines.base import Reference
from toktier.engines.reference import ReferenceEngine
from toktier.errors import CannotEncode, Refusal
from toktier.gpu.router.devices import Failed
from toktier.gpu.router.literals import Finder, Found, Places, TooMany
from toktier.gpu.router.normal import Normal, normal_of
from toktier.gpu.router.scratch import Bytes, flags, row
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids, from_bytes
from toktier.reasons import Gpu

LONGEST = 500_000
"""Characters of a chunk. References are known to give up on a million in a row that their pattern may go back on."""
LONGEST_UNSTABLE = 65_536
"""Characters of a chunk that is to be normalised: that holds the interpreter's lock for a millisecond."""
_BREAK = bytes([BREAK_BYTE])
_PIECE, _REST = -1, -2


@dataclass(frozen=True)
class Marks:
    """All breaks, in order: where each stands in the buffer, and what for: `_PIECE` is the end of a chunk, `_REST` a
    byte of a literal but its first, for which the literal's ID stands. Shape ``(n,)`` each."""

    at: Places
    ids: Places

    def with_(self, found: Found, at: Places) -> Marks:
        """With the bytes ``at`` of what was found."""
        ids = np.full(len(at), _REST, np.int64)
        ids[np.cumsum(found.lengths) - found.lengths] = found.ids
        if not len(self.at):
            return Marks(at, ids)
        at = np.concatenate([self.at, at])
        order = np.argsort(at, kind="stable")
        return Marks(at[order], np.concatenate([self.ids, ids])[order])


@dataclass(frozen=True)
class Segments:
    """The text of segments of some chunks."""

    buffer: Bytes
    marks: Marks

    @property
    def count(self) -> int:
        """Segments, empty ones too."""
        return len(self.marks.at) + 1

    def parts(self, most: int) -> list[tuple[Bytes, int]] | None:
        """The text in parts of at most ``most`` bytes, cut at breaks, and the segments of each; None where a segment is
        longer.
        """
        size, breaks = len(self.buffer), self.marks.at
        if size <= most:
            return [(self.buffer, self.count)]
        found: list[tuple[Bytes, int]] = []
        start = first = 0
        while size - start > most:
            after = int(np.searchsorted(breaks, start + most, side="right"))
            if after == first:
                return None
            end = int(breaks[after - 1])
            found.append((self.buffer[start:end], after - first))
            start, first = end + 1, after
        return [*found, (self.buffer[start:], self.count - first)]

    def assembled(self, told: Ids) -> tuple[Ids, list[int]]:
        """The IDs of the chunks, one after the other, and their counts. ``told``: the IDs of the segments, with
        `BREAK_ID` for each break; it is written to. Raises `Failed` where it has other breaks."""
        breaks = np.flatnonzero(np.equal(told, BREAK_ID, out=flags(len(told))))
        marks = self.marks.ids
        if len(breaks) != len(marks):
            raise Failed(Gpu.INTERNAL_ERROR, "the device told of other segments than it was given")
        gone = breaks
        ends = marks == _PIECE
        if not ends.all():
            literal = marks >= 0
            told[breaks[literal]] = marks[literal]
            gone, ends = breaks[~literal], ends[~literal]
        edges = [-1, *gone.tolist(), len(told)]
        view = told.data
        # As bytes: the interpreter's lock is kept, which numpy would give up at every run.
        ids = from_bytes(b"".join([view[a + 1 : b] for a, b in pairwise(edges) if b - a > 1]))
        before = gone - np.arange(len(gone))  # IDs before each break that is gone
        return ids, np.diff(before[ends], prepend=0, append=len(ids)).tolist()


@dataclass(frozen=True)
class Segmenter:
    """Of one tokenizer. Immutable, thread-safe."""

    raw: Finder
    later: Finder
    """Literals that are looked for in normalised text."""
    normal: Normal | None

    def segments(self, pieces: Sequence[str]) -> Segments:
        """Those of at least one chunk. Raises `Failed`, and `UnicodeEncodeError` on a lone surrogate."""
        if max(map(len, pieces)) > LONGEST:
            raise Failed(Gpu.LONG_PIECE)
        buffer, ends = _one_text(pieces)
        marks = Marks(ends, np.full(len(ends), _PIECE, np.int64))
        try:
            marks = _cut_out(buffer, marks, self.raw)
            if self.normal is not None:
                buffer, marks = self._normalised(self.normal, pieces, buffer, marks)
            marks = _cut_out(buffer, marks, self.later)
        except TooMany:
            raise Failed(Gpu.MANY_LITERALS) from None
        return Segments(buffer, marks)

    def _normalised(self, normal: Normal, pieces: Sequence[str], buffer: Bytes, marks: Marks) -> tuple[Bytes, Marks]:
        """The buffer with every segment normal."""
        loose = normal.loose(buffer, len(marks.at))
        if not len(loose):
            return buffer, marks
        ends = marks.at[marks.ids == _PIECE]
        edges = [-1, *ends.tolist(), len(buffer)]
        replaced: dict[int, bytes] = {}
        for k in np.unique(ends.searchsorted(loose)).tolist():
            if len(pieces[k]) > LONGEST_UNSTABLE:
                raise Failed(Gpu.NOT_NORMAL)
            own = buffer[edges[k] + 1 : edges[k + 1]].tobytes()
            new = _BREAK.join(normal.of(segment.decode()).encode() for segment in own.split(_BREAK))
            if new != own:
                replaced[k] = new
        if not replaced:
            return buffer, marks
        parts: list[Any] = [replaced.get(k, buffer[edges[k] + 1 : edges[k + 1]]) for k in range(len(pieces))]
        buffer = np.frombuffer(bytearray(_BREAK).join(parts), np.uint8)
        return buffer, Marks(np.flatnonzero(buffer == BREAK_BYTE), marks.ids)


def _one_text(pieces: Sequence[str]) -> tuple[Bytes, Places]:
    """The UTF-8 of all with breaks between them, in a row (`toktier.gpu.router.scratch`), and where the breaks are."""
    space = row(sum(len(piece) if piece.isascii() else 4 * len(piece) for piece in pieces) + len(pieces))
    view = space.data
    ends: list[int] = []
    at = 0
    for piece in pieces:
        raw = piece.encode()  # one after the other: in memory that the caches still hold
        end = at + len(raw)
        view[at:end] = raw
        ends.append(end)
        at = end + 1
    breaks = np.array(ends[:-1], np.int64)
    space[breaks] = BREAK_BYTE
    return space[: at - 1], breaks


def _cut_out(buffer: Bytes, marks: Marks, finder: Finder) -> Marks:
    """Overwrites what ``finder`` finds with breaks."""
    found = finder.find(buffer)
    if not len(found.starts):
        return marks
    total = int(found.lengths.sum())
    shifts = found.starts - np.concatenate([[0], np.cumsum(found.lengths)[:-1]])
    at = np.repeat(shifts, found.lengths) + np.arange(total)
    buffer[at] = BREAK_BYTE
    return marks.with_(found, at)


def segmenter_of(spec: Mapping[str, Any], reference: Reference, cache_dir: Path | None) -> Segmenter:
    """That of a tokenizer. ``spec``: as `toktier.tokenizer.FrozenTokenizer` has it. Raises `Refusal`.

    The ID of a literal is what the reference gives for it alone.
    """
    tokens = [token for token in spec.get("added_tokens") or () if token.get("content")]
    for token in tokens:
        for flag in ("lstrip", "rstrip", "single_word"):
            if token.get(flag):
                raise Refusal(f"an added token with {flag}", "added_tokens")
    normalizer = reference.tokenizer.normalizer if isinstance(reference, ReferenceEngine) else None
    normalize = None if normalizer is None else normalizer.normalize_str
    normal = normal_of(spec.get("normalizer"), normalize, Probe(cache_dir))
    raw: dict[bytes, int] = {}
    later: dict[bytes, int] = {}
    for token in tokens:
        content = token["content"]
        try:
            ids = reference.encode(content)
        except CannotEncode as error:
            raise Refusal("an added token without an ID", "added_tokens") from error
        if len(ids) != 1:
            raise Refusal("an added token that is not one ID", "added_tokens")
        form = normal.of(content) if normal is not None and token.get("normalized") else content
        own = later if token.get("normalized") else raw
        if own.setdefault(form.encode(), int(ids[0])) != int(ids[0]):
            raise Refusal("two added tokens of one form", "added_tokens")
    return Segmenter(Finder(raw), Finder(later), normal)
