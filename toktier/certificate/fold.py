"""Lemma 1's proviso under ``(?i)``: every atom still matches exactly one code point.

Ignoring case, an engine may match one code point by several characters of the pattern (``ss`` matches ``ß``) or several
code points by one (``ß`` matches ``ss``). Full case folding gives several code points only for letters, and only
letters and marks occur in what it gives. So an atom is safe if, read without the option, it holds ASCII, or characters
that are neither letters, marks, numbers nor symbols; and a run of two atoms is safe if no pair of their ASCII
characters is all or part of a fold. Those pairs are asked of the engine (``ff fi fl ss st`` in `tokenizers` 0.23.3).
"""

from __future__ import annotations

from itertools import product
from string import ascii_lowercase

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, decoders

from toktier.certificate.classes import (
    Flips,
    Mask,
    Probe,
    all_code_points,
    contains,
    flips_of,
    flips_of_points,
    matched,
    members,
)
from toktier.certificate.follow import Positions
from toktier.certificate.regex import Atom
from toktier.errors import Refusal

_CASED = Atom(r"[\p{L}\p{M}\p{N}\p{S}]", "case folding")
_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))


def check_folds(p: Positions, probe: Probe) -> None:
    """Raises `Refusal` where an atom or a run of atoms under ``(?i)`` may match other than one code point each."""
    folding = [i for i, a in enumerate(p.atoms) if a.unfolded is not None]
    if not folding:
        return
    alone = [Atom(a.unfolded, a.place) for a in p.atoms if a.unfolded is not None]
    for atom, inside in zip(alone, probe.atoms(alone), strict=True):
        _check_alone(atom, members(inside), probe)
    sets = probe.atoms([p.atoms[i] for i in folding])
    ascii_of = {i: contains(flips, np.arange(128)) for i, flips in zip(folding, sets, strict=True)}
    folds = multi_fold_pairs(probe)
    for x, y in sorted(p.follow):
        if x in ascii_of and y in ascii_of and (folds & np.outer(ascii_of[x], ascii_of[y])).any():
            raise Refusal("multi-character case fold", p.atoms[y].place)


def _check_alone(atom: Atom, inside: npt.NDArray[np.int64], probe: Probe) -> None:
    """``inside``: the members of ``atom``, which is read without the option."""
    beyond = inside[inside >= 128]
    if len(beyond) and contains(probe.atoms([_CASED])[0], beyond).any():
        raise Refusal("case ignored in letters, marks, numbers or symbols beyond ASCII", atom.place)


def multi_fold_pairs(probe: Probe) -> Mask:
    """ASCII pairs (p, q) that the engine, ignoring case, matches by one code point; shape ``(128, 128)``."""
    flips = probe.cached("multi-fold pairs", lambda: {"multi-fold pairs": _ask_pairs()})
    return contains(flips, np.arange(128 * 128)).reshape(128, 128)


def _ask_pairs() -> Flips:
    """The pairs (p, q) as a set of ``128 p + q``.

    Found backwards: a class of everything beyond ASCII, ignoring case, matches the pairs that its members fold to.
    Its members that fold to one ASCII character are left out first, or they would match single letters. A triple that
    folds without a pair of it doing so marks its first pair.
    """
    every = all_code_points()
    single = matched(r"(?i:[\x{0}-\x{7f}])", every)
    rest = np.ones(len(single), np.bool_)
    rest[:128] = False
    rest[0xD800:0xE000] = False
    rest &= ~single
    flips = flips_of(rest)
    ends = [*flips[1::2], *([len(rest)] if len(flips) % 2 else [])]
    ranges = "".join(f"\\x{{{a:x}}}-\\x{{{b - 1:x}}}" for a, b in zip(flips[::2], ends, strict=True))
    gone = decoders.Replace(Regex(f"(?i:[{ranges}])"), "")
    runs = ["".join(t) for t in (*product(_PRINTABLE, repeat=2), *product(ascii_lowercase, repeat=3))]
    left = gone.decode(["\n".join(runs)]).split("\n")
    pairs = np.zeros((128, 128), np.bool_)
    for before, after in zip(runs, left, strict=True):
        x, y, z = (*map(ord, before), 0)[:3]
        if before != after and not pairs[y, z]:
            pairs[x, y] = True
    return flips_of_points(np.flatnonzero(pairs))
