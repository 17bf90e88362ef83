"""Lemma 4: what a normalizer N asks of a seam (a, b), so that N(u a b v) = N(u a) N°(b v) for every u and v, and so
that later stages may know the characters beside the seam.

`step` says what each step of a normalizer must promise, and why a row of steps keeps the promise; the proofs for each
type are in `forms`, `charmaps`, `replace` and `precompiled`, and these:

- *Prepend* puts a string before a segment that is not empty. N°, which goes on in the middle of a segment, puts none:
  P(u a b v) = p u a b v = P(u a) P°(b v).
- *Strip* takes white space off the ends of a segment. Let a be no white space. Stripping the start never goes beyond a,
  so it does to u a b v what it does to u a, and N° does not do it. Stripping the end leaves u a alone, and goes beyond
  b v only if that is white space throughout: then S(u a b v) = u a, and S°(b v) is empty. If it is not empty it begins
  with b, and then with c if anything follows: every b is a lead (5), and may be white space.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any

import numpy as np
from tokenizers import normalizers

from toktier.certificate.charmap import SAME, CharMap
from toktier.certificate.charmaps import CHAR_BY_CHAR, bert_steps, byte_level, char_by_char
from toktier.certificate.classes import CODE_POINTS, SURROGATES, Flips, Mask, Probe, all_code_points, flips_of, members
from toktier.certificate.forms import FORMS, form_step
from toktier.certificate.images import NO_SEAM, Image, Sides, unchanged
from toktier.certificate.precompiled import precompiled_step
from toktier.certificate.replace import LONGEST_CONTENT, replace_step
from toktier.certificate.step import Step
from toktier.errors import Refusal

MOST_STEPS = 64
"""Published files have up to ten."""
_EMPTY: Flips = np.zeros(0, np.uint32)
_EVERY: Flips = np.array([0, SURROGATES.start, SURROGATES.stop], np.uint32)


@dataclass(frozen=True)
class NormalizerRule:
    """For a pair (a, b) with ``sides.left[a]`` and ``sides.right[b]`` not `NO_SEAM`, that is not apart, and with b not
    active or the next raw character in ``boundary``: N(u a b v) = N(u a) N°(b v) for all u and v; N(u a) ends in
    ``sides.left[a]``; N°(b v) begins with ``sides.right[b]``, or it is empty.

    ``apart``: (x, y) such that there is no seam with the raw a in x and the raw b in y. ``segment_prefix``: N treats
    the start of a segment in a way of its own (Prepend, or Strip to the left), N° does not.
    """

    name: str
    sides: Sides = field(repr=False)
    active: Flips = field(repr=False)
    boundary: Flips = field(repr=False)
    apart: tuple[tuple[Flips, Flips], ...] = field(repr=False)
    segment_prefix: bool
    conditions: tuple[str, ...]
    """One sentence per step, for people."""


NO_NORMALIZER = NormalizerRule("none", unchanged(), _EMPTY, _EVERY, (), False, ())


def normalizer_rule(spec: Mapping[str, Any] | None, probe: Probe, place: str = "normalizer") -> NormalizerRule:
    """The rule of a ``normalizer`` block. Raises `Refusal` naming a normalizer, or a part of one, that has no rule."""
    steps = [] if spec is None else list(islice(_steps(spec, probe, place), MOST_STEPS + 1))
    if len(steps) > MOST_STEPS:
        raise Refusal(f"more than {MOST_STEPS} steps", place)
    if not steps:
        return NO_NORMALIZER
    step = reduce(Step.then, steps)
    sides = Sides(_without_surrogates(step.tail.last()), _without_surrogates(step.head.first()))
    active, boundary = _EMPTY, _EVERY
    if step.kinds is not None and step.boundary is not None:
        active, boundary = flips_of(step.kinds.active()), flips_of(step.boundary)
    apart = tuple((flips_of(x), flips_of(y)) for x, y in step.apart)
    return NormalizerRule(step.name, sides, active, boundary, apart, step.interior, step.conditions)


def _without_surrogates(image: Image) -> Image:
    image[SURROGATES.start : SURROGATES.stop] = NO_SEAM
    return image


def _steps(spec: Mapping[str, Any], probe: Probe, place: str) -> Iterator[Step]:
    kind = spec.get("type")
    if kind == "Sequence":
        for k, part in enumerate(spec.get("normalizers") or ()):
            yield from _steps(part, probe, f"{place}[{k}]")
    elif kind in FORMS:
        yield form_step(kind, probe, place)
    elif kind in CHAR_BY_CHAR:
        yield char_by_char(kind, probe, place)
    elif kind == "ByteLevel":
        yield byte_level(place)
    elif kind == "BertNormalizer":
        yield from bert_steps(spec, probe, place)
    elif kind == "Replace":
        yield replace_step(spec, probe, place)
    elif kind == "Precompiled":
        yield precompiled_step(spec, probe, place)
    elif kind == "Prepend":
        yield _prepend(spec, place)
    elif kind == "Strip":
        yield from _strip(spec, probe)
    else:
        raise Refusal(f"normalizer {kind}", place)


def _every() -> Mask:
    return np.ones(CODE_POINTS, np.bool_)


def _prepend(spec: Mapping[str, Any], place: str) -> Step:
    if len(spec.get("prepend") or "") > LONGEST_CONTENT:
        raise Refusal(f"Prepend of more than {LONGEST_CONTENT} characters", place)
    name = f"Prepend {spec.get('prepend')!r}"
    return Step(name, (f"{name}: only before a segment",), SAME, SAME, _every(), each=True, interior=True)


def _strip(spec: Mapping[str, Any], probe: Probe) -> Iterator[Step]:
    """What is stripped is asked of the engine, for each side alone."""
    for side in ("left", "right"):
        if spec.get(f"strip_{side}", True):
            name = f"normalizer Strip {side}"
            stripped = members(probe.cached(name, lambda n=name, s=side: {n: _ask_stripped(s)}))  # type: ignore[misc]
            tail = CharMap.all_to(stripped, "")
            condition = f"Strip {side}: no white space on the left of the seam"
            yield Step(f"Strip {side}", (condition,), tail, SAME, _every(), interior=side == "left")


def _ask_stripped(side: str) -> Flips:
    normalize = normalizers.Strip(left=side == "left", right=side == "right").normalize_str
    mask = np.zeros(CODE_POINTS, np.bool_)
    mask[[ord(c) for c in all_code_points() if normalize(c) == ""]] = True
    return flips_of(mask)
