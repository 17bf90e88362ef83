"""Lemma 4 for Replace: each match of a pattern becomes a string, the content.

The engine finds the matches of R from left to right, as a split does, so lemma 1 tells where none can span a seam: at a
*transparent* (a, b) the matches on u a b v are those on u a and those on b v, whence (1). Other pairs are ``apart``.

What stands at a seam rests on two sets of lemma 1: *nev*, the characters in no atom of R, and *cov*, those that lie in
a match wherever they stand. Let a end the text u a:
- a in nev is in no match: it stays;
- a in cov lies in a match, which ends where the text does: the content stands there;
- any other a may be in a match or not: it is known only if it is the last character of the content itself.
Likewise for b, the first of the content and the start of the text b v. There is one more way for b: if the next
character c makes (b, c) transparent, then M(b c w) = M(b) M(c w), and M(b) is asked of the engine. Such a b is active,
with those c as boundary; its kind is itself and the first of the content, since b stays or a match begins there.
If M(b) is one character, and (b, c) is transparent for every c, b is a lead.

A pattern without follow pairs and lookaheads has matches of one character only: it maps each character on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tokenizers import Regex, normalizers

from toktier.certificate.charmap import CharMap
from toktier.certificate.classes import CODE_POINTS, SURROGATES, Mask, Probe, partition
from toktier.certificate.fold import widened
from toktier.certificate.follow import covered, positions, stage_rule
from toktier.certificate.images import NO_SEAM
from toktier.certificate.regex import parse, parse_string
from toktier.certificate.step import UNKNOWN, Kinds, Step, each
from toktier.errors import Refusal, refusing

LONGEST_CONTENT = 256
"""Published files put in one or two characters. Each is in the IDs as often as the pattern is in a text."""


def replace_step(spec: Mapping[str, Any], probe: Probe, place: str) -> Step:
    """The step of a Replace. Raises `Refusal` for what lemma 1 cannot read, a nullable pattern, or a long content."""
    pattern, content = spec.get("pattern"), str(spec.get("content", ""))
    if not isinstance(pattern, Mapping) or len(pattern) != 1 or not {"Regex", "String"} & pattern.keys():
        raise Refusal("Replace pattern of an unknown form", place)
    if len(content) > LONGEST_CONTENT:
        raise Refusal(f"Replace by more than {LONGEST_CONTENT} characters", place)
    kind, text = next(iter(pattern.items()))
    with refusing(text):
        node = widened(parse(text, place), probe, place) if kind == "Regex" else parse_string(text, place)
        p = positions(node, place)
        sets = probe.atoms(p.atoms)
    name = f"Replace {text!r} by {content!r}"
    classes, holds = partition(sets)
    never: Mask = np.logical_not(holds[p.consuming].any(axis=0))
    always = covered(node, p, holds)
    transparent = stage_rule(node, p, holds, holds, "Isolated", False).transparent
    if not p.follow and not p.looks and (always | never).all():
        replaced = np.flatnonzero(always[classes])
        return each(name, f"{name}: a replaced character judged by what it becomes", CharMap.all_to(replaced, content))
    engine = normalizers.Replace(Regex(text) if kind == "Regex" else text, content)
    return _Rule(name, engine, content, classes, never, always, transparent).step()


class _Rule:
    """``never``, ``always``: over classes; ``transparent``: over pairs of them."""

    def __init__(
        self,
        name: str,
        engine: normalizers.Normalizer,
        content: str,
        classes: np.ndarray[Any, np.dtype[np.uint16]],
        never: Mask,
        always: Mask,
        transparent: Mask,
    ) -> None:
        self._name, self._content, self._classes = name, content, classes
        self._never, self._always, self._transparent = never, always, transparent
        self._stays_alone = self._ask_alone(engine)

    def _ask_alone(self, engine: normalizers.Normalizer) -> Mask:
        """The classes whose characters stay, each as a whole text; the others become the content."""
        stays = np.ones(len(self._never), np.bool_)
        points = np.delete(np.arange(CODE_POINTS), SURROGATES)
        found, some = np.unique(self._classes[points], return_index=True)
        stays[found] = [engine.normalize_str(chr(c)) == chr(c) for c in points[some]]
        return stays

    def step(self) -> Step:
        content = self._content
        sure = (self._never | self._always)[self._classes]
        becomes = self._always[self._classes]
        left, right, active = ~sure, ~sure, ~sure
        if content:
            left[ord(content[-1])] = False
            right[ord(content[0])] = active[ord(content[0])] = False
        alone = ~self._stays_alone[self._classes]
        whole = CharMap.all_to(np.flatnonzero(becomes), content)
        tail = whole.without(left)
        # Where b is active the next character is known not to be in its match: what becomes of b alone counts.
        head = CharMap.all_to(np.flatnonzero(becomes | (active & alone)), content)
        points = np.flatnonzero(active)
        single = self._never[self._classes] | (active & ~alone) | (len(content) == 1)
        unspanned = np.logical_and.reduce(self._transparent, axis=1)
        return Step(
            self._name,
            (f"{self._name}: no match spans the seam",),
            tail,
            head,
            unspanned[self._classes] & single,
            kinds=self._kinds(points) if len(points) else None,
            boundary=self._boundary(points) if len(points) else None,
            apart=tuple(self._apart()),
        )

    def _kinds(self, points: np.ndarray[Any, np.dtype[np.int64]]) -> Kinds:
        of = np.full(CODE_POINTS, NO_SEAM, np.int32)
        kind = np.arange(len(points), dtype=np.int32)
        of[points] = kind
        begins = np.full(len(points), ord(self._content[0]) if self._content else UNKNOWN, np.int32)
        return Kinds(of, np.tile(kind, 2), np.concatenate([points.astype(np.int32), begins]))

    def _boundary(self, points: np.ndarray[Any, np.dtype[np.int64]]) -> Mask:
        """The characters that no active one can be in a match with."""
        rows = np.unique(self._classes[points])
        result: Mask = self._transparent[rows].all(axis=0)[self._classes]
        return result

    def _apart(self) -> Iterator[tuple[Mask, Mask]]:
        rows, which = np.unique(self._transparent, axis=0, return_inverse=True)
        for k, row in enumerate(rows):
            if not row.all():
                yield (which.reshape(-1) == k)[self._classes], ~row[self._classes]
