"""Lemma 4 for NFC, NFD, NFKC and NFKD.

Let D be the decomposition that the form N begins with. The sets below rest on how the forms are defined (decompose,
sort runs of non-starters, compose each character with the last starter unless blocked); the data is the engine's:

- *boundary*: the first character d of D(c) is a starter that is never the second of a composing pair. Nothing is sorted
  across a starter, and d composes with nothing on its left, so N(x c y) = N(x) N(c y) for every x and y.
- *active*: what N(c y) begins with may depend on y: D(c) is not c, or c is the first of a composing pair. A boundary
  that is not active is a lone starter that nothing composes with: it stays first. NFD and NFKD have no active
  characters: nothing composes, and d stays first, whatever is sorted behind it.

Both a and b must be boundaries. Then N(u a b v) = N(u) N(a) N(b v): (1), and ``tail[a]`` is N(a). ``head[b]`` is the
first of N(b): for an active b, if the next character is a boundary too, since then N(b v) = N(b) N(v). Otherwise N(b v)
begins with d or with a composite whose canonical decomposition begins with d: those are b's kind (4). A boundary b with
N(b) of one character is a lead: a c with a head is a boundary, hence N(b c w) = N(b) N(c w) (5).

The composing pairs are not asked for one by one. A composite p is a character with N(p) = p and D(p) != p (canonical
forms); a pair that composes to p has its first character, or what that decomposes to, at the head of D(p), and its
second in the rest of D(p). So heads and rests of all D(p) hold every first and every second; too many can only cost
cuts.

Starters are found by sorting: with U+0345 before it and U+0334 after it, a non-starter lies in one run with two marks
that are out of order, so the text changes; a starter that does not decompose leaves it as it is.
"""

from __future__ import annotations

import numpy as np
from tokenizers import normalizers

from toktier.certificate.charmap import CharMap
from toktier.certificate.classes import CODE_POINTS, SURROGATES, Flips, Probe, flips_of
from toktier.certificate.images import mask_of
from toktier.certificate.step import Kinds, Step
from toktier.errors import Refusal

FORMS = {"NFC": "NFD", "NFD": "NFD", "NFKC": "NFKD", "NFKD": "NFKD"}
"""Each form, and the form that it decomposes by."""

_LOW, _HIGH = "\u0334", "\u0345"
_BLOCK = 256


def form_step(form: str, probe: Probe, place: str) -> Step:
    """The step of one of `FORMS`. Raises `Refusal` where the engine's form is not as assumed."""

    def cached(what: str) -> Flips:
        return probe.cached(f"normalizer {form} {what}", lambda: _ask(form, place))

    tail = CharMap.unpacked(cached("map"))
    boundary = mask_of(cached("boundary"))
    composes = form != FORMS[form]
    return Step(
        form,
        (f"{form}: neither character combines to the left" + (", the next one neither" if composes else ""),),
        tail,
        tail.ends(tail.first()),
        boundary & tail.single(),
        kinds=Kinds.unpacked(cached("kinds")) if composes else None,
        boundary=boundary if composes else None,
    )


def _ask(form: str, place: str) -> dict[str, Flips]:
    normalize = getattr(normalizers, form)().normalize_str
    decomposed, non_starters = _decompositions(FORMS[form], place)
    canonical = decomposed if FORMS[form] == "NFD" else _decompositions("NFD", place)[0]
    compose = normalizers.NFC().normalize_str
    composites: dict[str, list[str]] = {}
    """By the first character of the decomposition."""
    seconds = set[str]()
    for c, d in canonical.items():
        if compose(c) == c:
            composites.setdefault(d[0], []).append(c)
            seconds.update(d[1:])
    strings = {ord(c): normalize(c) for c in decomposed}
    boundary = np.ones(CODE_POINTS, np.bool_)
    boundary[SURROGATES.start : SURROGATES.stop] = False
    for c, d in decomposed.items():
        boundary[ord(c)] = d[0] not in non_starters and d[0] not in seconds
    for c in non_starters | seconds:
        if c not in decomposed:
            boundary[ord(c)] = False
    strings = {c: text for c, text in strings.items() if text != chr(c)}
    answer = {
        f"normalizer {form} map": CharMap.of(strings).without(~boundary).packed(),
        f"normalizer {form} boundary": flips_of(boundary),
    }
    if form != FORMS[form]:
        roots = {ord(c): ord(c) for c in composites} | {ord(c): ord(d[0]) for c, d in decomposed.items()}
        heads = {root: {root, *map(ord, composites.get(chr(root), ""))} for root in set(roots.values())}
        answer[f"normalizer {form} kinds"] = Kinds.of_sets(heads, roots).packed()
    return answer


def _decompositions(form: str, place: str) -> tuple[dict[str, str], set[str]]:
    """(character to decomposition, where it has one; the non-starters that have none), over all code points.

    A block of "c U+0334 U+0345" for each c in it that comes back unchanged holds no character with a decomposition
    (it would not be in the output) and no non-starter; other blocks are looked at one character at a time.
    """
    decompose = getattr(normalizers, form)().normalize_str
    if decompose(_HIGH + _LOW) != _LOW + _HIGH or decompose(_LOW + _HIGH) != _LOW + _HIGH:
        raise Refusal(f"{form} that does not sort U+0345 after U+0334", place)
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
