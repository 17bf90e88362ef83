"""From the rules of a tokenizer's parts to its table of cuts: lemmas 1 to 5 put together.

A pair (a, b) of raw characters is a cut if
- the normalizer lets it through (lemma 4): both have an image, the pair is not kept apart, and where b is active the
  next character is a boundary;
- the literals let it through (lemma 5), the raw ones at (a, b), the normalised ones at the images;
- among the pre-tokenizer's splits one is strict at the images that it sees and all before it are transparent
  (lemmas 1 and 2), or all are transparent and no merge joins the symbols at the seam (lemma 3).

A prefix that is put before every piece, after some split, is part of a function of the piece: seams that an earlier
split is strict at keep it, but no later operation is asked, since the piece around an open seam may or may not begin
there. A tokenizer that treats the start of every segment, or of the text, in a way of its own (a prefix, Strip) is
*interior*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from toktier.certificate.classes import SURROGATES, Flips, Mask, Probe, flips_of, partition
from toktier.certificate.follow import stage_rule
from toktier.certificate.images import NO_SEAM, Image, Sides, identity, mask_of, pulled_back
from toktier.certificate.joins import Joins
from toktier.certificate.literals import Literal, literal_rule, white_space
from toktier.certificate.normalizer import NormalizerRule
from toktier.certificate.ops import Op, Prefix, Rewrite, Split
from toktier.certificate.singled import Pass, without_literals
from toktier.certificate.table import IF_APART, IF_NEXT, NO, YES, Table
from toktier.errors import refusing

_EMPTY: Flips = np.zeros(0, np.uint32)
_WORDS = (("a", " "), (" ", "a"))


@dataclass(frozen=True)
class Derived:
    """``interior``: see `toktier.certificate.table.TableCuts`; ``segment_prefix``: whether the start of each
    segment is treated in a way of its own, and not only that of the text."""

    table: Table
    interior: bool
    segment_prefix: bool


def derive(
    normalizer: NormalizerRule,
    ops: Sequence[Op],
    literals: Sequence[Literal],
    normalize: Callable[[str], str],
    probe: Probe,
    unsplit: Callable[[Sides], Joins] | None = None,
) -> Derived:
    """The table of a tokenizer. ``normalize``: its normalizer on a whole text; ``unsplit``: lemma 3 for the images of
    a and b after all operations, asked only where no split cuts between words (it costs a lookup for each position).
    Raises what ``unsplit`` raises."""
    sides = normalizer.sides
    raw = literal_rule((lit for lit in literals if not lit.normalized), str)
    normal = literal_rule((lit for lit in literals if lit.normalized), normalize)
    views = _views(ops, sides, probe)
    surrogates = np.array([SURROGATES.start, SURROGATES.stop], np.uint32)
    space = white_space(probe) if raw.strips or normal.strips else _EMPTY
    left_space, right_space = _Lens(sides.left)(space), _Lens(sides.right)(space)
    fixed = [
        flips_of(sides.left != NO_SEAM),
        flips_of(sides.right != NO_SEAM),
        normalizer.active,
        normalizer.boundary,
        surrogates,
        space,
        left_space,
        right_space,
        *(s for pair in normalizer.apart for s in pair),
    ]
    classes, holds = partition([*fixed, *(f for view in views for f in (*view.left, *view.right))])
    left_ok, right_ok, active, boundary, lone, raw_space, norm_left_space, norm_right_space = holds[:8]
    base = (left_ok & ~lone)[:, None] & (right_ok & ~lone)[None, :]
    at = 8
    for _ in normalizer.apart:
        base &= ~(holds[at][:, None] & holds[at + 1][None, :])
        at += 2
    if raw.strips or normal.strips:
        for a, b in ((raw_space, raw_space), (norm_left_space, norm_right_space)):
            base &= ~(a[:, None] & b[None, :])

    rows: list[tuple[Mask, Mask]] = []
    for view in views:
        middle, end = at + len(view.left), at + len(view.left) + len(view.right)
        rows.append((holds[at:middle], holds[middle:end]))
        at = end
    found = split_rule(ops, rows, len(base))
    per_segment = normalizer.segment_prefix or found.segment_prefix
    if per_segment and (raw.strips_right or normal.strips_right):
        base &= ~(raw_space | norm_left_space)[:, None]
    if per_segment:
        raw.never_left |= raw.ends
        normal.never_left |= normal.ends

    matrix = np.where(found.cut & base, YES, NO).astype(np.uint8)
    joins = None
    if unsplit is not None and not any(found.cut[classes[ord(a)], classes[ord(b)]] for a, b in _WORDS):
        joins = unsplit(_after(ops, sides))
        matrix[base & found.open & ~found.cut] = IF_APART
    asked = (matrix != NO) & active[None, :]
    matrix[asked] = (matrix[asked] & ~np.uint8(YES)) | IF_NEXT
    passes = (
        Pass(raw, identity(), identity(), space, space),
        Pass(normal, sides.left, sides.right, left_space, right_space),
    )
    table = without_literals(classes, matrix, boundary, joins, passes)
    return Derived(table, per_segment or found.text_prefix, per_segment)


@dataclass(frozen=True)
class Splits:
    """``cut``: some split is strict and all before it are transparent; ``open``: all are transparent; shapes
    ``(classes, classes)``. ``segment_prefix``, ``text_prefix``: a prefix is put before each segment or before the text.
    """

    cut: Mask
    open: Mask
    segment_prefix: bool
    text_prefix: bool


def split_rule(ops: Sequence[Op], rows: Sequence[tuple[Mask, Mask]], classes: int) -> Splits:
    """Lemma 2: the pre-tokenizer at each pair of classes. ``rows``: per `Split` of ``ops`` its atoms' classes, of a and
    of b.

    A transparent stage, whatever its behaviour, can at most join the two pieces at the seam, so the strict stage sees a
    piece that ends in a, or one that begins with b, or one with the seam inside.
    """
    cut, open_ = np.zeros((classes, classes), np.bool_), np.ones((classes, classes), np.bool_)
    split_seen = segment_prefix = text_prefix = False
    remaining = iter(rows)
    for op in ops:
        if isinstance(op, Prefix):
            if op.scheme == "first":
                text_prefix = True
            elif split_seen:
                open_[:] = False
            else:
                segment_prefix = True
        elif isinstance(op, Split):
            split_seen = True
            stage = stage_rule(op.node, op.positions, *next(remaining), op.behaviour, op.invert)
            cut |= open_ & stage.strict
            open_ &= stage.transparent
    return Splits(cut, open_, segment_prefix, text_prefix)


@dataclass(frozen=True)
class _View:
    """Per atom of one split the raw characters whose images, at that stage, the atom holds."""

    left: list[Flips]
    right: list[Flips]


def _views(ops: Sequence[Op], sides: Sides, probe: Probe) -> list[_View]:
    found = []
    for op in ops:
        if isinstance(op, Rewrite):
            sides = sides.then(op.sides)
        elif isinstance(op, Split):
            with refusing(op.pattern):
                sets = probe.atoms(op.positions.atoms)
            a, b = _Lens(sides.left), _Lens(sides.right)
            left = [a(s) for s in sets]
            right = left if a.clear and b.clear else [b(s) for s in sets]
            found.append(_View(left, right))
    return found


def _after(ops: Sequence[Op], sides: Sides) -> Sides:
    for op in ops:
        if isinstance(op, Rewrite):
            sides = sides.then(op.sides)
    return sides


class _Lens:
    """From a set to the set of the characters whose image is in it."""

    def __init__(self, image: Image) -> None:
        self._image = image
        kept = np.flatnonzero(image != NO_SEAM)
        self.clear = np.array_equal(image[kept], kept)
        """Whether the image changes no character. Then a set is seen as it is: what has no image stands at no seam
        whatever it is in."""

    def __call__(self, flips: Flips) -> Flips:
        return flips if self.clear else flips_of(pulled_back(mask_of(flips), self._image))
