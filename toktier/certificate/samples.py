"""Hostile text for checking a certificate: drawn from its classes, their borders, literals and their fragments."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import SURROGATES

COMMON = (
    "aZ09 .,'\"<>=|_-/\\\n\r\t()sStTmMdDlLvVrReE\u00e9\u00df\u0301\u0323\u0345\u00a0\u3000\u200d\ufeff\u017f\u212a"
    "\u0000\u4e2d\u6587\u3002\u304b\u3099\uac00\u1100\u1161\u11a8\u09df\u0958\u0644\u0663\u00b2\u0378\U0001f600\U0010ffff"
)
"""Letters, digits, white space and marks that split patterns, composition and case folding treat in odd ways."""

_PER_CLASS = 12


class TextSource:
    """Seeded random text. ``classes``: the class of each code point, shape ``(0x110000,)``."""

    def __init__(
        self,
        classes: npt.NDArray[np.integer],
        literals: Sequence[str] = (),
        *,
        seed: int | str = 0,
        members: int = _PER_CLASS,
    ) -> None:
        self.rng = random.Random(seed)
        self.literals = [lit for lit in literals if lit]
        self.members = self._members(classes, members)

    def _members(self, classes: npt.NDArray[np.integer], count: int) -> dict[int, list[str]]:
        """Per class: the first and last member of a few of its runs of code points."""
        starts = np.flatnonzero(np.diff(classes.astype(np.int32), prepend=-1))
        ends = np.append(starts[1:], len(classes)) - 1
        found: dict[int, list[str]] = {}
        of_run = classes[starts]
        for k in np.unique(of_run):
            runs = np.flatnonzero(of_run == k)
            chosen = {int(runs[0])} | {int(runs[self.rng.randrange(len(runs))]) for _ in range(count // 2)}
            points = {int(edge) for r in chosen for edge in (starts[r], ends[r])}
            if chars := [chr(p) for p in sorted(points) if p not in SURROGATES]:
                found[int(k)] = chars
        return found

    def char(self, k: int | None = None) -> str:
        """A character of class ``k``, or of a class chosen at random."""
        if k is None:
            k = self.rng.choice(list(self.members))
        return self.rng.choice(self.members[k])

    def piece(self) -> str:
        """One or a few characters."""
        roll = self.rng.random()
        if roll < 0.45:
            return self.rng.choice(COMMON)
        if roll < 0.85 or not self.literals:
            return self.char() * self.rng.choice((1, 1, 1, 2, 3))
        lit = self.rng.choice(self.literals)
        if roll < 0.92:
            return lit
        at = self.rng.randrange(len(lit))
        return lit[:at] if roll < 0.96 else lit[at:]

    def text(self, pieces: int) -> str:
        return "".join(self.piece() for _ in range(pieces))

    def around(self, pairs: Sequence[tuple[int, int]]) -> str:
        """The given pairs of classes, each with something beside it."""
        return "".join(self.piece() + self.char(a) + self.char(b) + self.piece() for a, b in pairs)
