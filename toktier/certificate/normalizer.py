"""Lemma 4: what a normalizer N asks of a seam (a, b), so that N(u a b v) = N(u a) N(b v) for every u and v, and the
last character of N(u a) is a and the first of N(b v) is b.

For no normalizer every pair will do. For the four Unicode forms, write D for the form's decomposition. The sets below
rest on how the forms are defined (decompose, sort runs of non-starters, compose each character with the last starter
unless blocked); the data is the engine's:

- *fixed*: N(c) = c.
- *boundary*: the first character d of D(c) is a starter that is never the second of a composing pair. Nothing is
  sorted across a starter, and d composes with nothing on its left, so N(x c y) = N(x) N(c y) for every x and y.
- *active*: may change with what follows: D(c) is not c (a mark may be sorted into it), or c is the first of a composing
  pair. A fixed boundary character that is not active is a lone starter that nothing composes with: it stays first in
  N(c y) for every y.

Hence a seam is good if a and b are fixed boundary characters and b is not active, or the character after b is itself a
boundary: then N(b v) = N(b) N(v) = b N(v). At the end of the text an active b has no next character: no cut.

The composing pairs are not asked for one by one. A composite p is a character with N(p) = p and D(p) != p (canonical
forms); a pair that composes to p has its first character, or what that decomposes to, at the head of D(p), and its
second in the rest of D(p). So heads and rests of all D(p) hold every first and every second;
too many can only cost cuts.

Starters are found by sorting: with U+0345 before it and U+0334 after it, a non-starter lies in one run with two marks
that are out of order, so the text changes; a starter that does not decompose leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import normalizers

from toktier.certificate.classes import CODE_POINTS, SURROGATES, Flips, Probe, flips_of
from toktier.errors import Refusal

FORMS = {"NFC": "NFD", "NFD": "NFD", "NFKC": "NFKD", "NFKD": "NFKD"}
_EMPTY: Flips = np.zeros(0, np.uint32)
_EVERY: Flips = np.array([0, SURROGATES.start, SURROGATES.stop], np.uint32)
_LOW, _HIGH = "\u0334", "\u0345"
_BLOCK = 256


@dataclass(frozen=True)
class NormalizerRule:
    """``sides``: characters that may stand on either side of a seam; ``active``: those that, as b, need the next
    character to be in ``boundary``."""

    name: str
    sides: Flips
    active: Flips
    boundary: Flips


NO_NORMALIZER = NormalizerRule("none", _EVERY, _EMPTY, _EVERY)


def normalizer_rule(spec: Mapping[str, Any] | None, probe: Probe, place: str = "normalizer") -> NormalizerRule:
    """The rule of a ``normalizer`` block. Raises `Refusal` naming a normalizer that has none here."""
    if spec is None:
        return NO_NORMALIZER
    kind = spec.get("type")
    if kind == "Sequence":
        parts = list(spec.get("normalizers") or [])
        if len(parts) > 1:
            raise Refusal("sequence of normalizers", place)
        return normalizer_rule(parts[0], probe, f"{place}[0]") if parts else NO_NORMALIZER
    if kind not in FORMS:
        raise Refusal(f"normalizer {kind}", place)
    sides = probe.cached(f"normalizer {kind} sides", lambda: _ask_form(kind))
    active = probe.cached(f"normalizer {kind} active", lambda: _ask_form(kind))
    boundary = probe.cached(f"normalizer {kind} boundary", lambda: _ask_form(kind))
    return NormalizerRule(kind, sides, active, boundary)


def _ask_form(form: str) -> dict[str, Flips]:
    normalize = getattr(normalizers, form)().normalize_str
    decomposed, non_starters = _decompositions(FORMS[form])
    canonical = decomposed if FORMS[form] == "NFD" else _decompositions("NFD")[0]
    compose = normalizers.NFC().normalize_str
    firsts, seconds = set[str](), set[str]()
    for c, d in canonical.items():
        if compose(c) == c:
            firsts.add(d[0])
            seconds.update(d[1:])
    fixed = _every_mask()
    boundary = _every_mask()
    active = np.zeros(CODE_POINTS, np.bool_)
    for c, d in decomposed.items():
        fixed[ord(c)] = normalize(c) == c
        boundary[ord(c)] = d[0] not in non_starters and d[0] not in seconds
        active[ord(c)] = True
    for c in non_starters | seconds:
        if c not in decomposed:
            boundary[ord(c)] = False
    if form in ("NFC", "NFKC"):
        active[[ord(c) for c in firsts]] = True
    else:
        active[:] = False  # nothing composes, and what decomposes is not fixed
    return {
        f"normalizer {form} sides": flips_of(fixed & boundary),
        f"normalizer {form} active": flips_of(active),
        f"normalizer {form} boundary": flips_of(boundary),
    }


def _every_mask() -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    mask = np.ones(CODE_POINTS, np.bool_)
    mask[SURROGATES.start : SURROGATES.stop] = False
    return mask


def _decompositions(form: str) -> tuple[dict[str, str], set[str]]:
    """(character to decomposition, where it has one; the non-starters that have none), over all code points.

    A block of "c U+0334 U+0345" for each c in it that comes back unchanged holds no character with a decomposition
    (it would not be in the output) and no non-starter; other blocks are looked at one character at a time.
    """
    decompose = getattr(normalizers, form)().normalize_str
    if decompose(_HIGH + _LOW) != _LOW + _HIGH or decompose(_LOW + _HIGH) != _LOW + _HIGH:
        raise Refusal(f"{form} that does not sort U+0345 after U+0334", "normalizer")
    decomposed: dict[str, str] = {}
    non_starters: set[str] = set()
    for start in range(0, CODE_POINTS, _BLOCK):
        if start in SURROGATES:
            continue
        block = "".join(map(chr, range(start, start + _BLOCK)))
        text = _HIGH + (_LOW + _HIGH).join(block) + _LOW + _HIGH
        if decompose(text) == text:
            continue
        for c in block:
            d = decompose(c)
            if d != c:
                decomposed[c] = d
            elif decompose(_HIGH + c + _LOW) != _HIGH + c + _LOW:
                non_starters.add(c)
    return decomposed, non_starters
