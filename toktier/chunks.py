"""Where a text is cut into chunks, and which engine encodes each: the part of the rope that knows cuts.

A cut rule speaks about pairs: ``is_cut(text, i)`` depends on ``text[i-1]``, ``text[i]`` and, under a composing
normalizer, ``text[i+1]`` (lemmas 1 to 5 of `docs/proof.md`). So a window of three characters is enough to ask; where
the third is needed and not in the window, the answer is "no".

Under a rule that is `interior` (something is put before the text, or before each segment of it), T stands for the first
chunk only. What the others need is X, the tokenizer of a text that goes on in the middle of a segment: (a, b) is a cut
when ``T(u a b v) = T(u a) + X(b v)`` for every u and v. With u empty, X(b v) is T(a b v) without its first |T(a)| IDs,
whatever stands before a; so a chunk is encoded with the one character before it. It is the same X for every a that
makes a cut with b: an edit before the chunk leaves its IDs as they are.

Sizes. An append encodes again what stands behind the last cut before it (`toktier.appends`; where X is not T, what
stands behind the last seal, which is put as near to the end as the cuts allow). An edit encodes a chunk, so chunks are
as short as an engine takes without being slower for it, however long the text; a chunk costs 16 bytes of book-keeping.

A full encode is a batch of chunks: both engines spread a batch over all cores and release the GIL. A stretch without
cuts is one chunk. Up to `LONG` characters it goes to the window engine like any other; in longer ones such engines may
be quadratic, so the reference gets them, and the search for the end of the stretch only samples it: it may cost a small
part of what the reference costs, and any cut will do.

Where there is a GPU it is asked first, for all chunks at once; whatever keeps it from answering, the engines do.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from toktier.engines.base import Engine
from toktier.ids import EMPTY, Ids, to_bytes
from toktier.leaves import without_utf8
from toktier.reasons import Gpu
from toktier.shortcuts import DEFAULTS, Shortcuts
from toktier.spaced import spaced_cuts

TARGET = 2048
"""Characters of a chunk: it is sealed at the first cut near so many."""
SEAL_MIN = 512
"""The last chunk of a text is sealed at its last cut if that leaves at least this many characters before it."""
SMALL = 64
"""A neighbour shorter than this is encoded again with the change instead of being kept (see `Rope`)."""
LONG = 65_536
"""A chunk longer than this (no cut in sight) goes to the reference: window engines may be quadratic in such runs."""
_FAR = 24
"""Targets without a marker from which on it pays to ask for many cuts at once: that takes some 0.2 ms to begin with."""
_HEADS = 4096


class CutRule(Protocol):
    """Certified cuts of one tokenizer. `toktier.certificate.Certificate` is one."""

    @property
    def interior(self) -> bool:
        """Whether chunks other than the first are to be encoded as text that goes on: by X, not by T."""
        ...

    def is_cut(self, text: str, i: int) -> bool:
        """Whether T(text) = T(text[:i]) + X(text[i:]) by the pair rule, ``0 < i < len(text)``."""
        ...

    def cuts(self, text: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """All cuts in ``[max(start, 1), min(stop, len(text) - 1)]``, sorted."""
        ...


class GpuPath(Protocol):
    """T of many chunks at once. `toktier.gpu.router.engine.GpuEngine` is one."""

    @property
    def standing(self) -> Gpu:
        """What a long text would meet now: `Gpu.USED`, or why not."""
        ...

    @property
    def from_chars(self) -> int | None:
        """Characters from which on a text is worth it; None while that is not known."""
        ...

    def encode(self, pieces: Sequence[str]) -> tuple[Ids, Sequence[int]] | Gpu:
        """The IDs of each chunk, one after the other, and the counts; or why there are none. Raises nothing but
        `UnicodeEncodeError`, on a lone surrogate."""
        ...

    def cpu_took(self, why: Gpu, chars: int, ns: int) -> None:
        """What it said ``why`` to was encoded by the CPU, in so many nanoseconds."""
        ...


class Encoded(NamedTuple):
    """What `ChunkEncoder.encode` gives; ``gpu``: what the GPU did for it, None where there is none."""

    ids: Ids
    counts: Sequence[int]
    gpu: Gpu | None = None


class Made(NamedTuple):
    """What `ChunkEncoder.made` gives: chunks, their IDs as little-endian uint32, how many each has, what a GPU did."""

    pieces: Sequence[str]
    raw: bytes
    counts: Sequence[int]
    gpu: Gpu | None


@dataclass(frozen=True)
class ChunkEncoder:
    """What a rope needs of a tokenizer. Without a rule every change is a full encode by the reference."""

    rule: CutRule | None
    window: Engine
    reference: Engine
    marker: str = ""
    """How control literals begin, ``<|`` say. Chunks end before one where they can, so that an edited message takes
    few of its neighbours with it. Any text is right; it is a matter of speed alone."""
    least: int = SMALL
    """Characters of the shortest chunk that a rope keeps beside a change: 2 or more (see `Rope`)."""
    gpu: GpuPath | None = field(default=None, repr=False, compare=False)
    """Asked first, where there is a rule."""
    shortcuts: Shortcuts = DEFAULTS
    alone: ClassVar[int] = 2 * TARGET
    """A text shorter than this, without a marker in it, is one chunk; so is one of half that length with markers, if
    that is all that is encoded."""
    seal: ClassVar[int] = SEAL_MIN
    """An append begins a chunk of its own if that leaves at least this many characters in the last one."""
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether there is a rule, and X is T: an append then need not know what stands before it."""
    one: Callable[[str], bytes] = field(init=False, repr=False, compare=False)
    """T of a text shorter than `alone`, by the window engine, as little-endian uint32."""
    _at_once: int = field(init=False, repr=False, compare=False)
    """A text shorter than this is encoded chunk by chunk, and nobody else is asked."""
    _heads: dict[str, int] = field(default_factory=dict, repr=False, compare=False)
    """|T(c)| of single characters c. At most `_HEADS` are kept; threads may compute one twice."""

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "plain", self.rule is not None and not self.rule.interior)
        window = self.window
        put(self, "_at_once", min(self.shortcuts.all_cores_from, LONG) if self.gpu is None else 0)
        put(self, "one", getattr(window, "encode_bytes", lambda text: window.encode(text).tobytes()))

    @property
    def interior(self) -> bool:
        """Whether `encode` has to be told what stands before each piece."""
        return self.rule is not None and self.rule.interior

    def made(self, text: str, shared: bool) -> Made:
        """What stands between two cuts, or behind the last one, in chunks, and T of them. For a `plain` encoder.

        ``shared``: the string is kept by somebody, and must stay without the UTF-8 form that an engine leaves in it.
        """
        size = len(text)
        if size < self._at_once:
            one = self.one
            marker = self.marker
            if size < self.alone and (2 * size < self.alone or not marker or _find(text, marker, 0, size) < 0):
                raw = one(without_utf8(text) if shared and not text.isascii() else text)
                return Made((text,), raw, (len(raw) >> 2,), None)
            pieces = self.pieces(text, at_end=False)
            rows = [one(without_utf8(piece) if piece is text else piece) for piece in pieces]
            return Made(pieces, b"".join(rows), [len(row) >> 2 for row in rows], None)
        pieces = self.pieces(text, at_end=False)
        if len(pieces) == 1 and not text.isascii():
            pieces = [without_utf8(text)]
        ids, counts, gpu = self.encode(pieces)
        return Made(pieces, to_bytes(ids), counts, gpu)

    def pieces(self, text: str, at_end: bool) -> list[str]:
        """``text`` cut at certified positions; ``at_end`` if the whole text ends where this one does.

        Where the cuts allow, pieces have a quarter to twice the target. At the end of the text of an interior tokenizer
        a short open piece is left, because the end of a text is never a cut (lemma 6) and the next append encodes that
        piece again.
        """
        rule = self.rule
        if rule is None:
            return [text]
        out: list[str] = []
        position, size = 0, len(text)
        if size >= self.alone or (self.marker and self.marker in text):
            for cut in self._boundaries(rule, text):
                out.append(text[position:cut])
                position = cut
        if at_end and rule.interior and size - position > SEAL_MIN:
            last = last_cut(rule, text, position + SEAL_MIN, size)
            if last is not None:
                out.append(text[position:last])
                position = last
        out.append(text[position:])
        return out

    def _boundaries(self, rule: CutRule, text: str) -> Iterator[int]:
        """Where pieces end: at the first cut before a marker that leaves the least size, else near the target."""
        limit = len(text) - SMALL
        start = 0
        marker = _find(text, self.marker, 0, limit) if self.marker else -1
        ahead: list[int] = []  # cuts that were asked for at once, up to ``asked``; the nearest last
        asked = 0
        while True:
            least, stop = start + TARGET // 4, min(start + 2 * TARGET, limit)
            cut = None
            while 0 <= marker < stop and cut is None:
                if marker >= least and rule.is_cut(text, marker):
                    cut = marker
                marker = _find(text, self.marker, max(marker + 1, least), limit)
            if cut is None and limit - start >= 2 * TARGET:
                while ahead and ahead[-1] < start + TARGET // 2:
                    ahead.pop()
                reach = marker if marker >= 0 else limit
                if start >= asked and reach - start >= _FAR * TARGET:
                    asked = reach - TARGET
                    ahead = spaced_cuts(rule, text, start + TARGET, asked, TARGET)[::-1]
                near = ahead and ahead[-1] < start + 2 * TARGET
                cut = ahead.pop() if near else first_cut(rule, text, start + TARGET, limit)
            if cut is None:
                return
            yield cut
            start = cut

    def encode(self, pieces: Sequence[str], before: Sequence[str] = ()) -> Encoded:
        """The IDs of each piece, one after the other, and the counts. Pieces must be valid UTF-8 text.

        ``before``, under an `interior` rule: for each piece the character before it, which makes a cut with its first,
        or "" for the piece at the start of the text. That piece is encoded by T and the others by X.
        """
        if not any(before):
            return self._encode(pieces)
        ids, counts, gpu = self._encode([left + piece for left, piece in zip(before, pieces, strict=True)])
        heads = [self._head(left) if left else 0 for left in before]
        parts: list[Ids] = []
        start = 0
        for count, head in zip(counts, heads, strict=True):
            parts.append(ids[start + head : start + count])
            start += count
        return Encoded(parts[0] if len(parts) == 1 else np.concatenate(parts), list(map(len, parts)), gpu)

    def _head(self, character: str) -> int:
        known = self._heads.get(character)
        if known is None:
            known = len(self.reference.encode(character))
            if len(self._heads) >= _HEADS:
                self._heads.clear()
            self._heads[character] = known
        return known

    def _encode(self, pieces: Sequence[str]) -> Encoded:
        if not pieces:
            return Encoded(EMPTY, ())
        asked = None if self.gpu is None or self.rule is None else self.gpu.encode(pieces)
        if isinstance(asked, tuple):
            return Encoded(*asked, Gpu.USED)
        started = time.perf_counter_ns()
        made = Encoded(*self._by_cpu(pieces), asked)
        if self.gpu is not None and asked is Gpu.SLOWER:
            self.gpu.cpu_took(asked, sum(map(len, pieces)), time.perf_counter_ns() - started)
        return made

    def _by_cpu(self, pieces: Sequence[str]) -> tuple[Ids, Sequence[int]]:
        engine = self.window if self.rule is not None else self.reference
        size = sum(map(len, pieces))
        if len(pieces) == 1 or size < self.shortcuts.all_cores_from:
            in_turn = getattr(engine, "encode_in_turn", None)  # an engine that has a short way for it
            if in_turn is not None and size <= LONG:
                return in_turn(pieces)  # type: ignore[no-any-return]
            parts = [(self.reference if len(piece) > LONG else engine).encode(piece) for piece in pieces]
            return parts[0] if len(parts) == 1 else np.concatenate(parts), [len(part) for part in parts]
        if max(map(len, pieces)) > LONG:
            return self._encode_apart(pieces, engine)
        ids, counts = engine.encode_batch(pieces)
        return ids, counts.tolist()

    def _encode_apart(self, pieces: Sequence[str], engine: Engine) -> tuple[Ids, Sequence[int]]:
        """As `_encode`: a batch of the long pieces by the reference, one of the others by ``engine``."""
        apart: tuple[list[int], list[int]] = [], []
        for k, piece in enumerate(pieces):
            apart[len(piece) > LONG].append(k)
        parts: list[Ids] = [EMPTY] * len(pieces)
        for places, own in zip(apart, (engine, self.reference), strict=True):
            ids, counts = own.encode_batch([pieces[k] for k in places])
            start = 0
            for k, count in zip(places, counts.tolist(), strict=True):
                parts[k] = ids[start : start + count]
                start += count
        return np.concatenate(parts), list(map(len, parts))


def marker_of(spec: Mapping[str, Any]) -> str:
    """The two characters with which most special tokens of a parsed ``tokenizer.json`` begin; empty if it has none."""
    starts = Counter(token["content"][:2] for token in spec.get("added_tokens") or () if token.get("special"))
    return starts.most_common(1)[0][0] if starts else ""


_HOPS, _RARE = 100_000, 512


def _find(text: str, words: str, start: int, stop: int) -> int:
    """As ``text.find``, which takes 20 times as long for two characters as for one: so the first is looked for, as long
    as it is rare."""
    first, low = words[0], start
    for hops in range(_HOPS):
        at = text.find(first, low, stop)
        if at < 0 or text.startswith(words, at, stop):
            return at
        low = at + 1
        if hops > 4 + (low - start) // _RARE:
            break
    return text.find(words, low, stop)


_PROBE = 64  # positions asked one by one before a vectorised look: the mean distance between cuts is about 5
_WINDOW = 256
_SAMPLE = 4096  # in a stretch without cuts, after LONG characters: so many of every LONG


def first_cut(rule: CutRule, text: str, start: int, stop: int) -> int | None:
    """The first cut in ``[start, stop)``, ``start >= 1``, or None. Looks no further than it must.

    Where none is in the first `LONG` characters, a later cut, or None although there are some.
    """
    near = min(start + _PROBE, stop)
    for position in range(start, near):
        if rule.is_cut(text, position):
            return position
    width = _WINDOW
    while near < stop:
        end = min(near + width, stop)
        found = rule.cuts(text[near - 1 : end + 1])
        if len(found) and found[0] <= end - near:
            return near - 1 + int(found[0])
        near, width = end, min(width * 2, LONG)
        if near - start >= LONG:
            near, width = near + LONG - _SAMPLE, _SAMPLE
    return None


def last_cut(rule: CutRule, text: str, start: int, stop: int) -> int | None:
    """The last cut in ``[start, stop)``, ``start >= 1``, or None. Looks no further than it must.

    Where none is in the last `LONG` characters, an earlier cut, or None although there are some.
    """
    near = max(stop - _PROBE, start)
    is_cut = rule.is_cut
    for position in range(stop - 1, near - 1, -1):
        if is_cut(text, position):
            return position
    width = _WINDOW
    while near > start:
        begin = max(near - width, start)
        found = rule.cuts(text[begin - 1 : near + 1])
        inside = found[found <= near - begin]
        if len(inside):
            return begin - 1 + int(inside[-1])
        near, width = begin, min(width * 2, LONG)
        if stop - near >= LONG:
            near, width = near - LONG + _SAMPLE, _SAMPLE
    return None
