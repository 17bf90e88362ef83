"""What a campaign tries: texts drawn from a certificate's classes and their borders, from literals and real text.

A family is one way to draw a text. All randomness comes from the generator that is passed in, so that a text is a
function of its case; the `Texts` object itself never changes.
"""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable, Sequence
from itertools import groupby

import numpy as np

from toktier.certificate.classes import CODE_POINTS, SURROGATES
from toktier.certificate.samples import COMMON
from toktier.certificate.table import NO, Table

WORDS = ["the", "fox", "don't", "IT'S", "we'll", "Straße", "self.value", "==", "->", "x", "7", "2024", "https://a.b/c"]
MARKS = "\u0301\u0308\u0323\u0327\u093c\u0345\u20dd\u3099\u0338\u09be\u1161\u11a8\u200d\ufe0f\U0001f3fd\u064b\u05b0"
BASES = (
    "eaAs<=>\uac00\u1100\u09af\u0915\u00e9\u304b\u4e2d '\"!\n"
    "\u212b\u0958\u09df\u0344\uf900\u1e9b\u2122\ufb01\u0130"  # these change under a normalizer in ways of their own
)
CLUSTERS = ["\r\n", "\r\r\n", "\n\r", "각", "❤️", "🇩🇪", "👩\u200d💻"]
BLANKS = " \t\n\r\u00a0\u2003\u3000\u200b\u2028\u0085\x0b\x0c\x1c\ufeff"
CJK = (
    "\u6f22\u5b57\u6587\u4e2d\u56fd\u4eba\u65e5\u672c\u8a9e\ud55c\uad6d\uc5b4\uac01\u3131"
    "\u3001\u3002\uff01\uff1f\u300c\u300d\u30fb\u30f6\uff76\uff9e\u3005"
)
ODD = (
    "\u0378\u0530\u2fe0\ufdd0\uffff\U000e0fff\U0003fffe\U0010ffff\u0897\U0001fa8a"  # not assigned, or only lately
    "\x00\u017f\u212a\u00b2\u0663\u2167\u2581\ufffd"
)

_MERGED = 1000
SHORT = 96
"""Characters up to which every cut of a text is tried with both sides whole; longer texts are tried part by part."""


class Texts:
    """Sources of text over one rule's ``table``, the tokenizer's ``literals`` and ``real`` texts; ``merged``: for every
    two symbols that a merge joins a text in which it does, where cuts come from merges (lemma 3)."""

    def __init__(self, table: Table, literals: Sequence[str], real: Sequence[str], merged: Sequence[str] = ()) -> None:
        classes = table.classes.astype(np.int32)
        classes[SURROGATES.start : SURROGATES.stop] = -1
        starts = np.flatnonzero(np.diff(classes, prepend=-2))
        ends = np.append(starts[1:], CODE_POINTS) - 1
        kept = classes[starts] >= 0
        self._starts, self._ends = starts[kept].tolist(), ends[kept].tolist()
        self._runs: dict[int, list[int]] = {}
        for run, k in enumerate(classes[starts[kept]].tolist()):
            self._runs.setdefault(k, []).append(run)
        self._class_of = table.classes
        self.classes = sorted(self._runs)
        """Classes that hold a character other than surrogates."""
        self.literals = [literal for literal in literals if literal]
        self._shapes = self._shapes_of(self.literals)
        self.real = [text for text in real if text]
        self.merged = list(merged)
        left, right = np.nonzero(table.matrix != NO)
        self.pairs = [
            (a, b) for a, b in zip(left.tolist(), right.tolist(), strict=True) if a in self._runs and b in self._runs
        ]
        self.families: dict[str, Callable[[random.Random], str]] = {
            "pairs": self._around_pairs,
            "borders": self._borders,
            "mixed": self._mixed,
            "literals": self._literals,
            "unicode": self._unicode,
            "runs": self._runs_of_one_class,
            "real": self._real,
            "mutated": self._mutated,
        }
        if self.merged:
            self.families |= {"merged": self._merged}

    def class_of(self, character: str) -> int:
        """The class of a character."""
        return int(self._class_of[ord(character)])

    def _shapes_of(self, literals: Sequence[str]) -> list[list[str]]:
        """Literals by the row of their characters' classes, repeats told once."""
        shapes: dict[tuple[int, ...], list[str]] = {}
        for literal in literals:
            shapes.setdefault(tuple(k for k, _ in groupby(map(self.class_of, literal))), []).append(literal)
        return list(shapes.values())

    # small parts

    def char(self, rng: random.Random, k: int | None = None) -> str:
        """A character of class ``k``, or of any: an end of one of its runs of code points, or one from inside."""
        runs = self._runs[rng.choice(self.classes) if k is None else k]
        run = rng.choice(runs)
        first, last = self._starts[run], self._ends[run]
        return chr(rng.choice((first, last, rng.randint(first, last))))

    def border(self, rng: random.Random) -> str:
        """An end of any run of code points of one class: every run is as likely as every other."""
        run = rng.randrange(len(self._starts))
        return chr(rng.choice((self._starts[run], self._ends[run])))

    def literal(self, rng: random.Random) -> str:
        """A literal: every shape is as likely as every other, for some tokenizers have thousands of one shape."""
        return rng.choice(rng.choice(self._shapes))

    def taken_apart(self, rng: random.Random) -> str:
        """A character's canonical decomposition, which a normalizer may put together again."""
        character = self.char(rng) if rng.random() < 0.5 else rng.choice(BASES)
        return unicodedata.normalize("NFD", character)

    def fragment(self, rng: random.Random) -> str:
        """A literal, whole or in part."""
        if not self.literals:
            return rng.choice(("<|x|>", "</s>"))
        literal = self.literal(rng)
        start = rng.choice((0, 0, rng.randrange(len(literal))))
        return literal[start : rng.choice((len(literal), len(literal), rng.randint(start, len(literal))))]

    def piece(self, rng: random.Random) -> str:
        """One or a few characters of any kind."""
        roll = rng.random()
        if roll < 0.35:
            return rng.choice(COMMON)
        if roll < 0.6:
            return self.char(rng) * rng.choice((1, 1, 1, 2, 3))
        if roll < 0.7:
            return self.border(rng)
        if roll < 0.78:
            return rng.choice(WORDS)
        if roll < 0.86:
            return self.fragment(rng)
        return self._odd(rng)

    def pieces(self, rng: random.Random, count: int) -> str:
        """``count`` of them."""
        return "".join([self.piece(rng) for _ in range(count)])

    def _odd(self, rng: random.Random) -> str:
        roll = rng.random()
        if roll < 0.1:
            return self.taken_apart(rng)
        if roll < 0.35:
            return rng.choice(BASES) + "".join(rng.choices(MARKS, k=rng.randint(1, 3)))
        if roll < 0.5:
            return rng.choice(CLUSTERS)
        if roll < 0.65:
            return "".join(rng.choices(BLANKS, k=rng.randint(1, 4)))
        if roll < 0.8:
            return "".join(rng.choices(CJK, k=rng.randint(1, 6)))
        return rng.choice(ODD)

    def slice(self, rng: random.Random, chars: int) -> str:
        """At most ``chars`` characters out of a real text."""
        text = rng.choice(self.real) if self.real else " ".join(WORDS)
        start = rng.randint(0, max(0, len(text) - chars))
        return text[start : start + chars]

    # families

    def _around_pairs(self, rng: random.Random) -> str:
        if not self.pairs:
            return self._mixed(rng)
        return "".join(
            [
                self.piece(rng) + self.char(rng, a) + self.char(rng, b) + self.piece(rng)
                for a, b in rng.choices(self.pairs, k=6)
            ]
        )

    def _borders(self, rng: random.Random) -> str:
        parts = [self.border(rng) + rng.choice(("", self.border(rng), rng.choice(COMMON))) for _ in range(18)]
        return "".join(parts)

    def _mixed(self, rng: random.Random) -> str:
        return self.pieces(rng, rng.randint(8, 30))

    def _literals(self, rng: random.Random) -> str:
        parts = []
        for _ in range(rng.randint(2, 6)):
            part = self.fragment(rng)
            if rng.random() < 0.1:
                part *= rng.randint(2, 40)
            beside = ("", "", " ", "\n", "  ", "a", "'s", "_", rng.choice(BLANKS), rng.choice(MARKS), self.piece(rng))
            parts += [rng.choice(beside), part, rng.choice(beside)]
        return "".join(parts)

    def _unicode(self, rng: random.Random) -> str:
        return "".join([self._odd(rng) + rng.choice(("", "", rng.choice(WORDS), " ")) for _ in range(16)])

    def _runs_of_one_class(self, rng: random.Random) -> str:
        parts = []
        for _ in range(rng.randint(1, 4)):
            k = rng.choice(self.classes)
            length = int(4 * 400 ** rng.random())
            run = (
                self.char(rng, k) * length
                if rng.random() < 0.6
                else "".join([self.char(rng, k) for _ in range(length)])
            )
            parts += [run, self.piece(rng)]
        return "".join(parts)

    def _real(self, rng: random.Random) -> str:
        return self.slice(rng, int(50 * 20 ** rng.random()))

    def _mutated(self, rng: random.Random) -> str:
        text = self.slice(rng, rng.randint(40, SHORT - 16))
        for _ in range(rng.randint(1, 5)):
            at = rng.randint(0, len(text))
            text = (
                text[:at] + rng.choice(("", self.piece(rng), self.piece(rng))) + text[at + rng.choice((0, 0, 1, 2)) :]
            )
        return text

    def _merged(self, rng: random.Random) -> str:
        """Many at once: there are as many as merges, and a fault in lemma 3 may show in one of them only."""
        texts = rng.sample(self.merged, min(len(self.merged), _MERGED))
        return "".join([text + rng.choice(("\n", "\n", " ", "")) for text in texts])

    # long ones, for ropes

    def long(self, rng: random.Random, chars: int) -> str:
        """Exactly ``chars`` characters, of all families; real text has the greatest share of long ones."""
        parts: list[str] = []
        size = 0
        names = [*self.families]
        while size < chars:
            if rng.random() < 0.5:
                part = self.slice(rng, rng.randint(20, max(40, min(4000, chars // 8))))
            else:
                part = self.families[rng.choice(names)](rng)
            parts.append(part)
            size += len(part)
        return "".join(parts)[:chars]
