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
the old end like any other. The text before a chunk does not change its X, so kept chunks keep their IDs, but for two:
where X is not T, a chunk that becomes the first one, and the first one when something comes before it, join m' too.

Two neighbouring chunks are never both shorter than that, so their number is bounded by the text, not by its history;
the last chunk, which stays open, is the exception.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from toktier.chunks import TARGET, ChunkEncoder, CutRule
from toktier.errors import InvalidText
from toktier.fingerprint import common_prefix
from toktier.ids import Ids, shared_prefix
from toktier.reasons import FullEncode, Gpu

__all__ = ["ChunkEncoder", "CutRule", "Rope", "Splice"]


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


class Gap(NamedTuple):
    """Chunks ``[i, j)`` are to be replaced by ``text``."""

    i: int
    j: int
    text: str


class Rope:
    """Chunks of one text and their IDs. Not thread-safe.

    A change that raises a `TokTierError` leaves the rope as it was; after any other error it must not be used again.
    """

    __slots__ = ("_address", "_buffer", "_by_gpu", "_encoder", "_read", "_starts", "_text_bytes", "_texts")

    def __init__(self, encoder: ChunkEncoder) -> None:
        self._encoder = encoder
        self._texts: list[str] = []
        self._text_bytes = 0
        self._by_gpu = False
        # row 0: where chunk i starts in the text, row 1: in the IDs; entry n holds the totals
        self._starts: npt.NDArray[np.int64] = np.zeros((2, 8), np.int64)
        self._adopt(np.empty(0, np.uint32))

    # what there is

    @property
    def ids(self) -> Ids:
        """All IDs, shape ``(n,)``, read-only, no copy. While anyone holds a part of them, changes go to new memory."""
        return self._read[: self._starts[1, len(self._texts)]]

    @property
    def chars(self) -> int:
        """Characters of the text."""
        return int(self._starts[0, len(self._texts)])

    @property
    def by_gpu(self) -> bool:
        """Whether some of the IDs may come from a GPU."""
        return self._by_gpu

    @property
    def nbytes(self) -> int:
        """Bytes held: IDs, text and index, with what their objects and spare capacity cost."""
        return self._buffer.nbytes + self._starts.nbytes + self._text_bytes + sys.getsizeof(self._texts)

    def text(self) -> str:
        """The whole text, joined (a copy)."""
        return "".join(self._texts)

    def pieces(self) -> tuple[str, ...]:
        """The text as it is now, in pieces, which stay what they are. Costs a pointer for each chunk."""
        return tuple(self._texts)

    @property
    def text_bytes(self) -> int:
        """Bytes that the text's pieces hold."""
        return self._text_bytes

    def clone(self) -> Rope:
        """An independent rope with the same text. Strings are shared; IDs and index are copied."""
        other = Rope(self._encoder)
        other._texts = self._texts.copy()
        other._text_bytes = self._text_bytes
        other._by_gpu = self._by_gpu
        other._starts = self._starts.copy()
        other._adopt(self.ids.copy())
        return other

    # changes

    def set(self, text: str) -> Splice:
        """Make ``text`` the text. Compares it with the chunks from both ends and encodes what lies between."""
        return self._set(0, text)

    def follow(self, common: int, tail: str) -> Splice:
        """Make the text its first ``common`` characters, then ``tail``: what `set` does, and gives, for the whole.

        Only what comes after them is compared, and the chunk in which they end.
        """
        if not 0 <= common <= self.chars:
            raise IndexError(f"no {common} characters in a text of {self.chars}")
        n = len(self._texts)
        if n == 0:
            return self._set(0, tail)
        starts = self._starts[0]
        i = min(int(starts[: n + 1].searchsorted(common, side="right")) - 1, n - 1)
        return self._set(i, self._texts[i][: common - int(starts[i])] + tail)

    def anew(self, text: str) -> Splice:
        """Make ``text`` the text as one chunk and encode all of it: for a short one that is less work than `set`."""
        n = len(self._texts)
        gap, pieces = Gap(0, n, text), [text] if text else []
        try:
            ids, counts, gpu = self._encoder.encode(pieces)
        except (InvalidText, UnicodeEncodeError):
            self._refuse_surrogates([gap])
            raise
        changed = shared_prefix(self.ids, ids)
        common, full = common_prefix(self.text(), text), FullEncode.SHORT_TEXT if n else FullEncode.NO_SESSION
        self._install(gap, pieces, counts, ids)
        self._by_gpu = gpu is Gpu.USED
        return Splice(changed, len(text), 0, 0, common, full, gpu)

    def reach(self, common: int) -> int:
        """Characters of the text that a change from ``common`` on may have encoded again, where cuts are near: all of
        it where there are none."""
        n = len(self._texts)
        if self._encoder.rule is None or n == 0:
            return self.chars
        starts = self._starts[0, : n + 1]
        i = min(int(starts.searchsorted(common, side="right")) - 1, n - 1)
        return self.chars - int(starts[max(0, i - 1)])

    def _set(self, first: int, text: str) -> Splice:
        """Make ``text`` what stands from chunk ``first`` on."""
        texts, size = self._texts, len(text)
        i, start = first, 0
        for chunk in islice(texts, first, None):
            if not text.startswith(chunk, start):
                break
            start += len(chunk)
            i += 1
        if i == len(texts) and start == size:
            return self._unchanged()
        common = start + int(self._starts[0, first])
        if i < len(texts):
            common += common_prefix(texts[i], text[start : start + len(texts[i])])
        j, end = len(texts), size
        while j > i and text.endswith(texts[j - 1], start, end):
            j -= 1
            end -= len(texts[j])
        return self._splice(_gaps(texts, i, j, text, start, end, self._encoder.least), common)

    def append(self, tail: str) -> Splice:
        """Add ``tail`` at the end. Costs the tail and the open last chunk, whatever the text's length."""
        if not tail:
            return self._unchanged()
        n = len(self._texts)
        return self._splice([Gap(n, n, tail)], self.chars)

    def replace(self, start: int, end: int, new: str) -> Splice:
        """Replace characters ``[start, end)`` by ``new``; ``0 <= start <= end <= chars``."""
        if not 0 <= start <= end <= self.chars:
            raise IndexError(f"no characters {start} to {end} in a text of {self.chars}")
        n = len(self._texts)
        if n == 0:
            return self.append(new)
        starts = self._starts[0, : n + 1]
        i = min(int(starts.searchsorted(start, side="right")) - 1, n - 1)
        j = max(int(starts.searchsorted(end, side="left")), i + 1)
        head = self._texts[i][: start - int(starts[i])]
        rest = self._texts[j - 1][end - int(starts[j - 1]) :]
        return self._splice([Gap(i, j, head + new + rest)], start)

    def truncate(self, n: int) -> Splice:
        """Keep the first ``n`` characters."""
        return self.replace(n, self.chars, "") if n < self.chars else self._unchanged()

    # the splice

    def _splice(self, gaps: list[Gap], common: int) -> Splice:
        """Fill the gaps, which stand in order, after each has taken in the neighbours that cannot or need not stay."""
        gaps = self._widened(gaps)
        n = len(self._texts)
        encoder = self._encoder
        pieces: list[list[str]] = []
        try:
            for gap in gaps:
                pieces.append(encoder.pieces(gap.text, at_end=gap.j == n) if gap.text else [])  # noqa: PERF401
            flat = [piece for own in pieces for piece in own]
            ids, counts, gpu = encoder.encode(flat, self._before(gaps, pieces) if encoder.interior else ())
        except (InvalidText, UnicodeEncodeError):
            self._refuse_surrogates(gaps)
            raise

        tokens = self._starts[1]
        first, behind, total = int(tokens[gaps[0].i]), int(tokens[gaps[-1].j]), int(tokens[n])
        scanned = sum(len(gap.text) for gap in gaps)
        whole = first == 0 and behind == total and len(gaps) == 1
        self._by_gpu = gpu is Gpu.USED or (self._by_gpu and not whole)
        full: FullEncode | None = None
        if scanned and whole:
            full = self._why_full(n, common)
        if len(gaps) == 1:
            changed = self._first_changed(first, behind, total, ids)
            self._install(gaps[0], pieces[0], counts, ids)
        else:
            old = self._buffer[first:total].copy()
            end, known = len(ids), len(counts)
            for gap, own in zip(reversed(gaps), reversed(pieces), strict=True):
                # from the right, so that the places of the gaps on the left stay what they are
                known -= len(own)
                own_counts = counts[known : known + len(own)]
                start = end - sum(own_counts)
                self._install(gap, own, own_counts, ids[start:end])
                end = start
            changed = first + shared_prefix(old, self.ids[first:])
        return Splice(changed, scanned, first, total - behind, common, full, gpu)

    def _widened(self, gaps: list[Gap]) -> list[Gap]:
        """The gaps with certified seams and no small neighbours; gaps with nothing left between them become one."""
        texts, rule, least = self._texts, self._encoder.rule, self._encoder.least
        n = len(texts)
        if rule is None:
            parts: list[str] = []
            kept = 0
            for i, j, text in gaps:
                parts += [*texts[kept:i], text]
                kept = j
            return [Gap(0, n, "".join([*parts, *texts[kept:]]))]
        done: list[Gap] = []
        for place, (i, j, text) in enumerate(gaps):
            limit = gaps[place + 1].i if place + 1 < len(gaps) else n
            while True:
                if done and done[-1].j == i:
                    before = done.pop()
                    i, text = before.i, before.text + text
                elif i > 0 and (len(texts[i - 1]) < least or not self._is_cut(rule, texts[i - 1], text, j)):
                    i -= 1
                    text = texts[i] + text
                elif j < limit and (
                    len(texts[j]) < least
                    or (text and not self._is_cut(rule, text, "", j))
                    # chunk j becomes the first one, or was it and is none any more
                    or (self._encoder.interior and i == 0 and (not text) == (j > 0))
                ):
                    text += texts[j]
                    j += 1
                else:
                    break
            done.append(Gap(i, j, text))
        return done

    def _before(self, gaps: list[Gap], pieces: list[list[str]]) -> list[str]:
        """For each piece the character before it; "" for the one at the start of the text."""
        before: list[str] = []
        for gap, own in zip(gaps, pieces, strict=True):
            left = self._texts[gap.i - 1][-1] if gap.i else ""
            for piece in own:
                before.append(left)
                left = piece[-1]
        return before

    def _is_cut(self, rule: CutRule, left: str, right: str, j: int) -> bool:
        """The seam after ``left``, where ``right``, then chunks ``j`` and on, follow; no seam if nothing does."""
        following = right[:2]
        while len(following) < 2 and j < len(self._texts):
            following += self._texts[j][:2]
            j += 1
        return not following or rule.is_cut(left[-1] + following[:2], 1)

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
            start = int(self._starts[0, i])
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise InvalidText(start + shift + error.start) from None
            shift += len(text) - (int(self._starts[0, j]) - start)

    def _first_changed(self, first: int, behind: int, total: int, new: Ids) -> int:
        """Length of the common prefix of the old IDs and the new ones, ``new`` being put in for ``[first, behind)``."""
        old = self._buffer[first:total]
        inside = min(behind - first, len(new))
        same = shared_prefix(old[:inside], new)
        if same < inside:
            return first + same
        if behind - first == len(new):
            return total
        # One of the two middles is a prefix of the other: the comparison runs on into the suffix, shifted.
        more = new[inside:]
        same = shared_prefix(old[inside:], more)
        if same == len(more):
            same += shared_prefix(old[inside + same :], self._buffer[behind:total])
        return first + inside + same

    def _install(self, gap: Gap, pieces: list[str], counts: Sequence[int], ids: Ids) -> None:
        """Put the encoded pieces in the place of the gap's chunks."""
        i, j = gap.i, gap.j
        texts, starts = self._texts, self._starts
        n, m = len(texts), len(texts) + len(pieces) - (j - i)
        chars, tokens = starts
        char, token, behind, total = int(chars[i]), int(tokens[i]), int(tokens[j]), int(tokens[n])
        shift = len(ids) - (behind - token)

        self._reserve(total + shift, total)
        if shift and behind < total:
            # one pass in place; an overlapping numpy assignment would go through a temporary copy
            here = self._address + 4 * behind
            ctypes.memmove(here + 4 * shift, here, 4 * (total - behind))
        self._buffer[token : token + len(ids)] = ids

        if m + 1 > starts.shape[1]:
            grown = np.zeros((2, m + 1 + max(8, m // 8)), np.int64)
            grown[:, : n + 1] = starts[:, : n + 1]
            self._starts = starts = grown
        if j < n:
            longer = sum(map(len, pieces)) - (int(chars[j]) - char)
            starts[:, i + len(pieces) : m + 1] = starts[:, j : n + 1] + np.array([[longer], [shift]])
        for k, (piece, count) in enumerate(zip(pieces, counts, strict=True), i + 1):
            char += len(piece)
            token += count
            starts[0, k] = char
            starts[1, k] = token

        kept = [piece if piece.isascii() else _without_utf8(piece) for piece in pieces]
        self._text_bytes += sum(map(sys.getsizeof, kept)) - sum(map(sys.getsizeof, texts[i:j]))
        texts[i:j] = kept
        self._release(total + shift)

    def _unchanged(self) -> Splice:
        tokens = int(self._starts[1, len(self._texts)])
        return Splice(tokens, 0, tokens, 0, self.chars, None)

    # the buffer

    def _adopt(self, buffer: Ids) -> None:
        self._buffer = buffer
        self._address = buffer.ctypes.data
        self._read = buffer.view()
        self._read.flags.writeable = False

    def _reserve(self, need: int, used: int) -> None:
        """Room for ``need`` IDs, of which ``used`` are there, in memory of which nobody has a view."""
        if len(self._buffer) < need or sys.getrefcount(self._buffer) > _OURS:
            size = max(need, used)
            buffer = np.empty(size + size // 8 + 256, np.uint32)
            buffer[:used] = self._buffer[:used]
            self._adopt(buffer)

    def _release(self, used: int) -> None:
        """Give memory back when a session has shrunk to a fraction of what it was."""
        if len(self._buffer) > 4 * used + 4096:
            self._adopt(self._buffer[: used + used // 8 + 256].copy())


_OURS = 3
"""References to a buffer that nobody else reads: the rope's, its view's (as of all views of that), and the count's."""
_ANCHORS = 12
"""Chunks that are looked for in a changed text before the rest is given up; each costs one `str.find`."""


def _gaps(texts: list[str], i: int, j: int, text: str, start: int, end: int, least: int) -> list[Gap]:
    """What turns chunks ``[i, j)`` into ``text[start:end]``, which differ at both ends.

    Several changes at once (a pruned tool result and a new turn) leave whole chunks between them. They are found by
    trying a chunk here and there, further and further from where the texts part; the run around a found one is kept.
    """
    gaps: list[Gap] = []
    step, tries, k = 1, 0, i
    while k < j and start < end and tries < _ANCHORS:
        tries += 1
        place = text.find(texts[k], start, end) if len(texts[k]) >= least else -1
        if place < 0:
            k += step
            step *= 2
            continue
        low = k
        while low > i and text.endswith(texts[low - 1], start, place):
            low -= 1
            place -= len(texts[low])
        gaps.append(Gap(i, low, text[start:place]))
        i, start = low, place
        while i < j and text.startswith(texts[i], start, end):
            start += len(texts[i])
            i += 1
        step, k = 1, i
    if i < j or start < end or not gaps:
        gaps.append(Gap(i, j, text[start:end]))
    return gaps


def _without_utf8(text: str) -> str:
    """An equal string without the UTF-8 form that CPython keeps with a string once an engine has asked for it.

    Kept chunks would otherwise hold non-ASCII text two or three times.
    """
    return text[:-1] + text[-1:]
