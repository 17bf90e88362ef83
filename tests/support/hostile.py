"""Seeded text that is made to go wrong at seams: what tokenizers of today treat in odd ways, among ordinary words."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

WORDS = [
    "the",
    "fox",
    "don't",
    "IT'S",
    "we'll",
    "naïve",
    "Straße",
    "return",
    "self.value",
    "==",
    "->",
    "http://a.b/c?d=e",
]
MARKS = "\u0301\u0308\u0323\u0327\u093c\u0345\u20dd\u3099\u0338\u09be\u1161\u11a8"
EXCLUDED = "\u0958\u09df\u0344\u212b\u0374\u2126\uf900\u1e9b"  # change under NFC in ways of their own
UNASSIGNED = "\u0378\u0530\u2fe0\ufdd0\uffff\U000e0fff\U0003fffe\U0010ffff\u0897\U0001fa8a"
CJK = "漢字文中国人日本語한국어가각ㄱ、。！？「」・々ヶｶﾞ"
PUNCTUATION = "'\"`.,;:!?-_/\\|@#$%^&*()[]{}<>=+~…—’“”"
BLANKS = " \t\n\r\u00a0\u2003\u3000\u200b\u2028\u0085\x0b\x0c"


class Hostile:
    """A source of text. ``literals`` are the tokenizer's added tokens: whole ones and fragments are strewn in."""

    def __init__(self, seed: int | str, literals: Sequence[str] = ()) -> None:
        self.rng = random.Random(seed)
        self.literals = [literal for literal in literals if literal]
        self._kinds: list[Callable[[], str]] = [
            self._words, self._words, self._words, self._digits, self._blanks, self._cjk, self._marks,
            self._literal, self._punctuation, self._odd, self._run,
        ]  # fmt: skip

    def text(self, chars: int) -> str:
        """Exactly ``chars`` characters."""
        parts: list[str] = []
        size = 0
        while size < chars:
            part = self.rng.choice(self._kinds)()
            parts.append(part)
            size += len(part)
        return "".join(parts)[:chars]

    def _pick(self, alphabet: Sequence[str], most: int) -> str:
        return "".join(self.rng.choices(alphabet, k=self.rng.randint(1, most)))

    def _words(self) -> str:
        return "".join(self.rng.choice(WORDS) + self.rng.choice((" ", " ", "\n", ", ")) for _ in range(6))

    def _digits(self) -> str:
        return self._pick("0123456789", 9) + self.rng.choice(("", ".", ",", "٣", "²", "Ⅷ"))

    def _blanks(self) -> str:
        return self._pick(self.rng.choice((" \n", " ", "\n", "\r\n", BLANKS)), 7)

    def _cjk(self) -> str:
        return self._pick(CJK, 12)

    def _marks(self) -> str:
        return self.rng.choice(("e", "a", "한", "é", " ", "!", "<", "\u09af", "\u1100")) + self._pick(MARKS, 3)

    def _literal(self) -> str:
        if not self.literals:
            return "<|x|>"
        literal = self.rng.choice(self.literals)
        start = self.rng.choice((0, 0, self.rng.randrange(len(literal))))
        end = self.rng.choice((len(literal), self.rng.randrange(len(literal) + 1)))
        return self.rng.choice(("", " ", "\n")) + literal[start:end] + self.rng.choice(("", " ", "\n", "'s"))

    def _punctuation(self) -> str:
        return self._pick(PUNCTUATION, 5)

    def _odd(self) -> str:
        return self.rng.choice(("'ſ", "ſ", "\0", "\ufeff", "K", "İ", "ǆ", "😀\u200d👩🏽")) + self._pick(
            self.rng.choice((EXCLUDED, UNASSIGNED)), 2
        )

    def _run(self) -> str:
        """Now and then a stretch of one class, in which there is no cut."""
        return self.rng.choice("x7 漢=\n") * (self.rng.randint(300, 3000) if self.rng.random() < 0.02 else 5)
