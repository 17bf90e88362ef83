"""The texts of the self-test: seeded, adversarial and real-like.

Two sets. `code_point_blocks` puts code points into the contexts in which a class decides a split; `texts` mixes
everything that has ever told two tokenizers apart. Both are deterministic.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

SEED = 1

_BLOCK = 32
# "@" is the code point: after and before a letter, an apostrophe, a sign, a digit and white space.
_WIDE = "x'@y.@'s1@ @\n  @\n@."
_NARROW = "x@ @"
# Ranges of like characters (ideographs, syllables, private use, and of plane 1 what has no characters yet): every
# fourth. Where one differs, the rest of its block is looked at as well.
_STEP = 4
_UNIFORM = (range(0x3400, 0xA000), range(0xAC00, 0xD7A4), range(0xE000, 0xF900))
_UNIFORM_1 = (
    *(range(0x12550, 0x12F90), range(0x13460, 0x14400), range(0x14648, 0x16100), range(0x17000, 0x1AFF0)),
    *(range(0x1B300, 0x1BC00), range(0x1BCB0, 0x1CC00)),
)
_HAN = range(0x20000, 0x40000, 16)
_PLANE_14 = range(0xE0000, 0xE0200)
_SPARSE = range(0x40000, 0x110000, 409)


@dataclass(frozen=True)
class Block:
    """Code points of one text, each of them in ``context``."""

    points: Sequence[int]
    context: str
    candidates: Sequence[int]
    """Those to look at one by one where the text shows a difference: ``points`` and those left out between them."""

    def text(self) -> str:
        return "".join(map(self.single, self.points))

    def single(self, point: int) -> str:
        return self.context.replace("@", chr(point))


def code_point_blocks() -> Iterator[Block]:
    """All of planes 0 and 1 but for a part of the large uniform ranges, and samples of the others."""
    wide = _without(range(0x10000), (*_UNIFORM, range(0xD800, 0xE000)))
    rest = [*_without(range(0x10000, 0x20000), _UNIFORM_1), *_HAN, *_PLANE_14, *_SPARSE]
    for context, points in ((_WIDE, wide), (_NARROW, rest)):
        for start in range(0, len(points), _BLOCK):
            block = points[start : start + _BLOCK]
            yield Block(block, context, block)
    for uniform in (*_UNIFORM, *_UNIFORM_1):
        for start in range(0, len(uniform), _BLOCK * _STEP):
            candidates = uniform[start : start + _BLOCK * _STEP]
            yield Block(candidates[::_STEP], _NARROW, candidates)


def _without(points: range, holes: Sequence[range]) -> list[int]:
    return sorted(set(points).difference(*holes))


def texts(literals: Sequence[str]) -> Iterator[str]:
    """Texts of 0 to 40,000 characters, 320,000 in all and some 200 more for each literal."""
    yield from ("", " ", "\n", "\r\n", "\0", "a\0b", "\ufeff", "'", "x", "é", "e\u0301")
    yield from _contractions()
    yield from _literal_texts(literals)
    yield from _runs()
    yield from _shared_prefixes()
    chance = random.Random(SEED)
    for length, count in ((12, 1500), (80, 300), (600, 40), (6000, 4)):
        for _ in range(count):
            yield _mixture(chance, chance.randint(1, length), literals)
    for length in (300, 3000, 40000):
        yield _document(chance, length)


def _contractions() -> Iterator[str]:
    for ending in ("s", "t", "re", "ve", "m", "ll", "d", "ſ", "x"):
        forms = {ending, ending.upper(), ending.capitalize(), ending[0] + ending[1:].upper()}
        yield " ".join(
            f"{head}'{form}{tail}"
            for head in ("", "it", "IT", "9", "é", "'")
            for form in sorted(forms)
            for tail in ("", "x", "'")
        )


def _literal_texts(literals: Sequence[str]) -> Iterator[str]:
    for literal in literals[:400]:
        yield f"x{literal}y {literal} \n{literal}\n\n{literal}{literal}'s {literal[:-1]} {literal[1:]}"
        yield literal[: len(literal) // 2] + literal + literal[len(literal) // 2 :] + literal.upper() + literal.lower()
    for start in range(400, len(literals), 64):
        yield " a".join(literals[start : start + 64])


def _runs() -> Iterator[str]:
    for unit in (
        "x",
        "X",
        "^",
        "-",
        "=",
        " ",
        "\n",
        "\t",
        "\r\n",
        " \n",
        "1",
        "a1",
        "aB",
        "' ",
        "#!",
        "中",
        "한",
        "ᄀ",
        "e\u0301",
        "\u0301",
        "😀",
        "ﬁ",
        "\0",
    ):
        for length in (7, 130, 1500):
            yield unit * (length // len(unit) + 1)
            yield f"a{unit * (length // len(unit))}b"


def _shared_prefixes() -> Iterator[str]:
    """Texts that agree for more than 4,096 bytes and then part where a match could have reached further."""
    for unit in ("abcdefgh ", "x1, ", "中文 字\n"):
        prefix = unit * (5400 // len(unit.encode()))
        for tail in ("\n  ", "\n  \n", "\n  \nx", " ", "  ", "  x", "a", "'", "'s", "12", "123"):
            yield prefix + tail


def _mixture(chance: random.Random, length: int, literals: Sequence[str]) -> str:
    parts: list[str] = []
    pool = chance.sample(_ALPHABETS, 3)
    total = 0
    while total < length:
        kind = chance.random()
        if kind < 0.03 and literals:
            literal = chance.choice(literals)
            parts.append(literal if kind < 0.02 else literal[: chance.randrange(len(literal) + 1)])
        elif kind < 0.06:
            parts.append(chr(chance.choice(_POINTS)))
        else:
            parts.append("".join(chance.choices(chance.choice(pool), k=chance.choice((1, 1, 2, 3, 7)))))
        total += len(parts[-1])
    return "".join(parts)


_ALPHABETS = (
    "abcdefghijklmnopqrstuvwxyz",
    "ABCXYZabcxyz",
    "0123456789",
    "٣४५²½Ⅷ①",
    " \t\n\r",
    " \n",
    " \u00a0\u2003\u3000\u200b\u2028\u0085\x0b\x0c\x1c",
    "'’ſstSTdDmMlLvVrReEK\u212a",
    ".,;:!?-_/\\|@#$%^&*()[]{}<>=+~`\"'",
    "éèüñßøÅİıǅ",
    "\u0301\u0308\u0327\u093c\u0345\u20dd\u1ab0\u3099",
    "中文汉字漢字、。「」ー々",
    "ひらがなカタカナｶﾞ",
    "한글\u1100\u1161\u11a8\u1112\uac00\ud7a3",
    "עבריתمرحباпривет",
    "\u0928\u093c\u0958\u09af\u09bc\u09df\u0e01\u0e33\u0f71\u0f72",
    "😀🫨\u200d👨\U0001f3fd\ufe0f🇩🇪",
    "\u0378\ue000\ufffe\uffff\U000e0001\U0010ffff\U000323b0\u0897",
    "\0\x01\x7f\ufeff\ufffd\u2028",
    "<|_>▁Ġ",
)
_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000 and (c < 0x30000 or c % 97 == 0)]

_WORDS = """
the of and to in is that for it with as on be at by this from or an are not if return def class import self None True
async await function const let var print error value index config request response token session model user assistant
system tool call result file path line test data type name list dict string number please thanks don't can't it's we'll
I'd you're could've naïve café straße Москва данные 東京 测试 한국어 שלום मराठी
"""


def _document(chance: random.Random, length: int) -> str:
    """Text that looks like an agent's context: prose, code, JSON, logs and tables."""
    vocabulary = _WORDS.split()
    parts: list[str] = []
    while sum(map(len, parts)) < length:
        words = chance.choices(vocabulary, k=chance.randint(4, 30))
        style = chance.randrange(5)
        if style == 0:
            parts.append(" ".join(words).capitalize() + ".\n\n")
        elif style == 1:
            indent = "    " * chance.randint(0, 4)
            parts.append("".join(f"{indent}{w}.{w}({chance.randint(0, 99999)}, '{w}')  # {w}\n" for w in words[:5]))
        elif style == 2:
            parts.append(json.dumps({w: [chance.random(), w, None] for w in words}, indent=chance.choice((None, 2))))
        elif style == 3:
            parts.append(
                f"2026-11-{chance.randint(10, 30)}T12:{chance.randint(10, 59)}:07.{chance.random()}Z [INFO] {words}\r\n"
            )
        else:
            parts.append("|" + "|".join(f" {w} " for w in words) + "|\n" + "-" * chance.randint(3, 90) + "\n")
    return "".join(parts)
