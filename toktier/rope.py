"""The text of one session as chunks with their token IDs, repaired when the text changes.

Lemma 6 (splice). If the seams of y = L m' R are cuts of y, then T(y) = T(L) + X(m') + X(R); X, the tokenizer of a text
that goes on, is T where nothing is put before a text (see `toktier.chunks`). A pair cut is one for every text around
it, so it survives any edit that keeps its two characters and, under a composing normalizer, the one after.

Invariants, for the chunks c1 .. cn of the current text y = c1 c2 .. cn:
 (1) the IDs kept for c1 are T(c1), those kept for any other ci are X(ci), and they stand in `ids` one after the other;
 (2) every inner seam is a certified cut *in y*, asked of the characters that stand around it now.
By (2) and lemma 6, applied seam after seam, T(y) = T(c1) + X(c2) + .. + X(cn); by (1) that is `ids`.

An edit replaces the chunks that it touches, one run of them or several, each by its m', and asks both seams of every
m' again on the new text; while one is no cut, the chunk beyond it joins m'. No other seam can have changed: those
between kept chunks keep both their characters, and the character after, too, because a chunk before an m' is never
shorter than `ChunkEncoder.least`, which is 2 or more. The end of the text is never a cut: an append asks the seam at
the old end like any other, and where it is none goes back to the last cut (`toktier.appends`). The text before a chunk
does not change its X, so kept chunks keep their IDs, but for two: where X is not T, a chunk that becomes the first one,
and the first one when something comes before it, join m' too.

Two neighbouring chunks are never both shorter than that, so their number is bounded by the text, not by its history;
the last chunk, which stays open, is the exception.

The text itself lies in `toktier.leaves`, the IDs in `toktier.flat`; chunks are places in both.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from toktier.appends import resumed
from toktier.chunks import TARGET, ChunkEncoder, CutRule, Made
from toktier.errors import InvalidText
from toktier.fingerprint import common_prefix
from toktier.flat import FlatIds
from toktier.gaps import Gap, gaps_of
from toktier.ids import Ids, from_bytes, shared_prefix
from toktier.leaves import Leaves, own, without_utf8
from toktier.reasons import FullEncode, Gpu
from toktier.starts import put_sizes

__all__ = ["ChunkEncoder", "CutRule", "Rope", "Splice"]

_NOTHING = Made((), b"", (), None)


class Splice(NamedTuple):
    """What one change cost. Token numbers are indices into the flat view; ``scanned`` and ``common`` are characters."""

    first_changed: int
    """How many leading IDs the old and the new view share, exactly; ``len(ids)`` when nothing changed."""
    scanned: int
    """Characters given to an engine."""
    kept_prefix: int
    """Tokens before the changed part that were not computed again."""
    kept_suffix: int
    """Tokens after it."""
    common: int
    """Leading characters that the old and the new text share; exact after `Rope.set` and `Rope.append`."""
    full: FullEncode | None
    """Why nothing could be kept, or None."""
    gpu: Gpu | None = None
    """What a GPU did for what was encoded; None where nothing was, or there is none."""


class Rope:
    """Chunks of one text and their IDs. Not thread-safe.

    A change that raises a `TokTierError` leaves the rope as it was; after any other error it must not be used again.
    """

    __slots__ = ("_by_gpu", "_chars", "_encoder", "_flat", "_leaves", "_tokens")

    def __init__(self, encoder: ChunkEncoder) -> None:
        self._encoder = encoder
        self._by_gpu = False
        self._leaves = Leaves()
        # where chunk i starts in the text, and in the IDs; one more entry holds the totals
        self._chars = array("q", (0,))
        self._tokens = array("q", (0,))
        self._flat = FlatIds(np.empty(0, np.uint32))

    # what there is

    @property
    def ids(self) -> Ids:
        """All IDs, shape ``(n,)``, read-only, no copy. While anyone holds a part of them, changes go to new memory."""
        return self._flat.view()

    @property
    def chars(self) -> int:
        """Characters of the text."""
        return self._chars[-1]

    @property
    def by_gpu(self) -> bool:
        """Whether some of the IDs may come from a GPU."""
        return self._by_gpu

    @property
    def nbytes(self) -> int:
        """Bytes held: IDs, text and indexes, with what their objects and spare capacity cost."""
        indexes = 8 * (len(self._chars) + len(self._tokens)) + self._leaves.index_bytes
        return self._flat.nbytes + indexes + self._leaves.text_bytes

    @property
    def text_bytes(self) -> int:
        """Bytes of the strings of `pieces`."""
        return self._leaves.text_bytes

    def text(self) -> str:
        """The whole text, joined (a copy)."""
        return "".join(self._leaves.all())

    def text_from(self, start: int, most: int) -> str:
        """At most ``most`` characters from ``start`` on, ``0 <= start <= chars``."""
        return self._leaves.text(start, min(start + most, self.chars))

    def pieces(self) -> Sequence[str]:
        """The text as it is now, in pieces. The row stays what it is; while anyone holds it, a change copies it."""
        return self._leaves.all()

    def seams(self) -> list[int]:
        """Where chunks meet, in characters."""
        return self._chars[1:-1].tolist()

    def clone(self) -> Rope:
        """An independent rope with the same text. Strings are shared; IDs and indexes are copied."""
        other = Rope(self._encoder)
        other._by_gpu = self._by_gpu
        other._leaves = self._leaves.clone()
        other._chars, other._tokens = self._chars[:], self._tokens[:]
        other._flat = self._flat.clone()
        return other

    # changes

    def set(self, text: str) -> Splice:
        """Make ``text`` the text. Compares it with what is there from both ends and encodes what lies between."""
        return self._turn_into(0, text, None)

    def follow(self, common: int, parts: Sequence[str]) -> Splice:
        """Make the text its first ``common`` characters, then ``parts``: what `set` does, and gives, for the whole.

        Only what comes after them is compared. The parts, of which none may be empty, are kept as they are.
        """
        if not 0 <= common <= self.chars:
            raise IndexError(f"no {common} characters in a text of {self.chars}")
        return self._turn_into(common, "".join(parts), parts)

    def anew(self, text: str, known: int = 0, parts: Sequence[str] | None = None) -> Splice:
        """Make ``text`` the text as one chunk and encode all of it: for a short one that is less work than `set`.

        ``known``, ``parts``: as for `follow`, where ``text`` is these characters and parts.
        """
        n = len(self._chars) - 1
        gap, pieces = Gap(0, n, text), [text] if text.isascii() else [without_utf8(text)]
        try:
            ids, counts, gpu = self._encoder.encode(pieces if text else [])
        except (InvalidText, UnicodeEncodeError):
            self._refuse_surrogates([gap])
            raise
        changed = shared_prefix(self.ids, ids)
        common, full = common_prefix(self.text(), text), FullEncode.SHORT_TEXT if n else FullEncode.NO_SESSION
        self._leaves.put(known, self.chars, own(text) if parts is None else parts)
        self._install(gap, pieces if text else [], counts, ids)
        self._by_gpu = gpu is Gpu.USED
        return Splice(changed, len(text), 0, 0, common, full, gpu)

    def reach(self, common: int) -> int:
        """Characters of the text that a change from ``common`` on may have encoded again, where cuts are near: all of
        it where there are none."""
        if self._encoder.rule is None:
            return self.chars
        return self.chars - self._chars[max(0, self._chunk_of(common) - 1)]

    def append(self, tail: str) -> Splice:
        """Add ``tail`` at the end. Costs the tail and what stands behind the last cut, whatever the text's length."""
        chars = self._chars
        n, size = len(chars) - 1, chars[-1]
        if not tail:
            return self._unchanged()
        splice = self._extend(tail) if n and self._encoder.plain else self._splice([Gap(n, n, tail)], size)
        self._leaves.add(tail)
        return splice

    def replace(self, start: int, end: int, new: str) -> Splice:
        """Replace characters ``[start, end)`` by ``new``; ``0 <= start <= end <= chars``."""
        if not 0 <= start <= end <= self.chars:
            raise IndexError(f"no characters {start} to {end} in a text of {self.chars}")
        chars = self._chars
        if len(chars) == 1:
            return self.append(new)
        i = self._chunk_of(start)
        j = max(bisect_left(chars, end), i + 1)
        text = self._leaves.text(chars[i], start) + new + self._leaves.text(end, chars[j])
        gap, least = Gap(i, j, text), self._encoder.least
        if (
            # the characters at both seams, and the one after, are still there
            start - chars[i] >= 2
            and end < chars[j]
            and (i == 0 or chars[i] - chars[i - 1] >= least)
            and (j == len(chars) - 1 or chars[j + 1] - chars[j] >= least)
            and self._encoder.plain
        ):
            splice = self._exchange(gap, start, shared=not new)
        else:
            splice = self._splice([gap], start)
        self._leaves.put(start, end, own(new))
        return splice

    def truncate(self, n: int) -> Splice:
        """Keep the first ``n`` characters."""
        return self.replace(n, self.chars, "") if n < self.chars else self._unchanged()

    def _turn_into(self, known: int, tail: str, parts: Sequence[str] | None) -> Splice:
        """Make the text its first ``known`` characters, then ``tail``; ``parts``: its leaves, joined it."""
        leaves, chars = self._leaves, self._chars
        total, size = chars[-1], known + len(tail)
        common = known + leaves.common_prefix(known, tail)
        if common == total == size:
            return self._unchanged()
        if common == total and self._encoder.plain and len(chars) > 1:
            more = tail[common - known :]
            splice = self._extend(more, shared=True)
            if parts is None:
                leaves.add(more)
            else:
                leaves.put(known, total, parts)
            return splice
        i = bisect_right(chars, common) - 1
        base = min(chars[i], known)
        text = leaves.text(base, known) + tail
        suffix = leaves.common_suffix(text, min(total, size) - chars[i])
        j = bisect_left(chars, total - suffix, i)
        end = size - (total - chars[j]) - base
        gaps = gaps_of(self._chunk, self._encoder.least, i, j, text, chars[i] - base, end)
        splice = self._splice(gaps, common)
        if parts is None:
            suffix = min(suffix, min(total, size) - common)
            leaves.put(common, total - suffix, own(tail[common - known : len(tail) - suffix]))
        else:
            leaves.put(known, total, parts)
        return splice

    # an append

    _resumed = staticmethod(resumed)

    def _extend(self, tail: str, shared: bool = False) -> Splice:
        """Encode ``tail``, which comes after a text that is not empty; the leaves are left as they are.

        What `_splice` does of such a gap, in a row: its calls would be half of what an append costs. For an encoder
        that is `ChunkEncoder.plain`. ``shared``: somebody else keeps the string, which must stay as it is.
        """
        encoder, chars, tokens = self._encoder, self._chars, self._tokens
        n = len(chars) - 1
        size, begin = chars[n], chars[n - 1]
        at, count, behind = self._resumed(encoder, self._leaves, begin, tokens[n] - tokens[n - 1], tail)
        try:
            pieces, raw, counts, gpu = encoder.made(behind + tail, shared and not behind)
        except (InvalidText, UnicodeEncodeError):
            self._refuse_surrogates([Gap(n, n, tail)])
            raise
        first = tokens[n] - count
        changed = self._flat.end_with(first, raw)
        if at - begin >= encoder.seal:
            chars[n], tokens[n] = at, first
        else:  # the seam is left out, so that chunks are not as short as what is appended
            chars.pop()
            tokens.pop()
        place, token = at, first
        for piece, count in zip(pieces, counts, strict=True):
            place += len(piece)
            token += count
            chars.append(place)
            tokens.append(token)
        self._by_gpu = gpu is Gpu.USED or (self._by_gpu and first > 0)
        scanned = len(tail) + (2 * len(behind) if at > begin else len(behind))
        return Splice(changed, scanned, first, 0, size, None if first else self._why_full(n, size), gpu)

    def _chunk(self, k: int) -> str:
        return self._leaves.text(self._chars[k], self._chars[k + 1])

    def _chunk_of(self, at: int) -> int:
        """The chunk in which character ``at`` stands; the last one for the end of the text, 0 where there is none."""
        return max(0, min(bisect_right(self._chars, at), len(self._chars) - 1) - 1)

    # the splice

    def _splice(self, gaps: list[Gap], common: int) -> Splice:
        """Fill the gaps, which stand in order, after each has taken in the neighbours that cannot or need not stay.

        The leaves are left as they are.
        """
        gaps = self._widened(gaps)
        if len(gaps) == 1 and self._encoder.plain:
            return self._exchange(gaps[0], common)
        tokens = self._tokens
        n = len(tokens) - 1
        encoder = self._encoder
        try:
            pieces = [self._pieces(gap.text, gap.j == n) for gap in gaps]
            flat = pieces[0] if len(pieces) == 1 else [piece for row in pieces for piece in row]
            ids, counts, gpu = encoder.encode(flat, self._before(gaps, pieces) if encoder.interior else ())
        except (InvalidText, UnicodeEncodeError):
            self._refuse_surrogates(gaps)
            raise

        first, behind, total = tokens[gaps[0].i], tokens[gaps[-1].j], tokens[n]
        scanned = sum(map(len, flat))
        whole = first == 0 and behind == total and len(gaps) == 1
        self._by_gpu = gpu is Gpu.USED or (self._by_gpu and not whole)
        full: FullEncode | None = None
        if scanned and whole:
            full = self._why_full(n, common)
        if len(gaps) == 1:
            changed = self._flat.first_changed(first, behind, ids)
            self._install(gaps[0], flat, counts, ids)
        else:
            old = self.ids[first:].copy()
            end, known = len(ids), len(counts)
            for gap, row in zip(reversed(gaps), reversed(pieces), strict=True):
                # from the right, so that the places of the gaps on the left stay what they are
                known -= len(row)
                own_counts = counts[known : known + len(row)]
                start = end - sum(own_counts)
                self._install(gap, row, own_counts, ids[start:end])
                end = start
            changed = first + shared_prefix(old, self.ids[first:])
        return Splice(changed, scanned, first, total - behind, common, full, gpu)

    def _exchange(self, gap: Gap, common: int, shared: bool = True) -> Splice:
        """Fill one gap whose seams are certified. As `_splice`, for an encoder that is `ChunkEncoder.plain`.

        ``shared``: the gap's text may be a string that is kept, a leaf, which must stay as it is.
        """
        i, j, text = gap
        tokens = self._tokens
        n = len(tokens) - 1
        try:
            pieces, raw, counts, gpu = self._encoder.made(text, shared) if text else _NOTHING
        except (InvalidText, UnicodeEncodeError):
            self._refuse_surrogates([gap])
            raise
        first, behind, total = tokens[i], tokens[j], tokens[n]
        whole = first == 0 and behind == total
        full = self._why_full(n, common) if whole and text else None
        self._by_gpu = gpu is Gpu.USED or (self._by_gpu and not whole)
        ids = from_bytes(raw)
        changed = self._flat.first_changed(first, behind, ids)
        self._install(gap, pieces, counts, ids)
        return Splice(changed, len(text), first, total - behind, common, full, gpu)

    def _pieces(self, text: str, at_end: bool) -> list[str]:
        """``text`` in pieces for the engine, none of which is a leaf itself: an engine leaves its UTF-8 form there."""
        pieces = self._encoder.pieces(text, at_end) if text else []
        if len(pieces) == 1 and not text.isascii():
            return [without_utf8(text)]
        return pieces

    def _widened(self, gaps: list[Gap]) -> list[Gap]:
        """The gaps with certified seams and no small neighbours; gaps with nothing left between them become one."""
        chars, rule, least = self._chars, self._encoder.rule, self._encoder.least
        n = len(chars) - 1
        if rule is None:
            parts: list[str] = []
            kept = 0
            for i, j, text in gaps:
                parts += (self._leaves.text(chars[kept], chars[i]), text)
                kept = j
            return [Gap(0, n, "".join([*parts, self._leaves.text(chars[kept], chars[n])]))]
        done: list[Gap] = []
        for place, (i, j, text) in enumerate(gaps):
            limit = gaps[place + 1].i if place + 1 < len(gaps) else n
            while True:
                if done and done[-1].j == i:
                    before = done.pop()
                    i, text = before.i, before.text + text
                elif i > 0 and (chars[i] - chars[i - 1] < least or not self._is_cut(rule, self._last(i), text, j)):
                    i -= 1
                    text = self._chunk(i) + text
                elif j < limit and (
                    chars[j + 1] - chars[j] < least
                    or (text and not self._is_cut(rule, text[-1], "", j))
                    # chunk j becomes the first one, or was it and is none any more
                    or (self._encoder.interior and i == 0 and (not text) == (j > 0))
                ):
                    text += self._chunk(j)
                    j += 1
                else:
                    break
            done.append(Gap(i, j, text))
        return done

    def _last(self, i: int) -> str:
        """The character before chunk ``i``."""
        at = self._chars[i]
        return self._leaves.text(at - 1, at)

    def _before(self, gaps: list[Gap], pieces: list[list[str]]) -> list[str]:
        """For each piece the character before it; "" for the one at the start of the text."""
        before: list[str] = []
        for gap, row in zip(gaps, pieces, strict=True):
            left = self._last(gap.i) if gap.i else ""
            for piece in row:
                before.append(left)
                left = piece[-1]
        return before

    def _is_cut(self, rule: CutRule, left: str, right: str, j: int) -> bool:
        """The seam after the character ``left``, where ``right``, then chunks ``j`` and on, follow; no seam if nothing
        does."""
        following = right[:2]
        if len(following) < 2:
            at = self._chars[j]
            following += self._leaves.text(at, min(at + 2 - len(following), self._chars[-1]))
        return not following or rule.is_cut(left + following, 1)

    def _why_full(self, chunks: int, common: int) -> FullEncode:
        if self._encoder.rule is None:
            return FullEncode.NO_CERTIFICATE
        if chunks == 0:
            return FullEncode.NO_SESSION
        return FullEncode.SHORT_TEXT if common < TARGET else FullEncode.NO_CUT

    def _refuse_surrogates(self, gaps: list[Gap]) -> None:
        """Raise `InvalidText` with the offset in the whole text; the engine knows that in one piece only."""
        shift = 0
        for i, j, text in gaps:
            start = self._chars[i]
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidText(start + shift + error.start) from None
            shift += len(text) - (self._chars[j] - start)

    def _install(self, gap: Gap, pieces: Sequence[str], counts: Sequence[int], ids: Ids) -> None:
        """Put the places and the IDs of the encoded pieces where those of the gap's chunks are."""
        i, j, _ = gap
        self._flat.put(self._tokens[i], self._tokens[j], ids)
        put_sizes(self._chars, i, j, map(len, pieces))
        put_sizes(self._tokens, i, j, counts)

    def _unchanged(self) -> Splice:
        return Splice(self._tokens[-1], 0, self._tokens[-1], 0, self.chars, None)
