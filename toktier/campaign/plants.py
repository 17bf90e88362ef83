"""Faults put in on purpose, one at a time: a campaign that does not find them proves nothing.

A fault counts only if it does harm: the reference must contradict it on some text, the *witness*. Candidates without
one (a pair that the rule leaves out although no text tells, say) are skipped and counted. The witness is not shown to
the campaign, which draws its texts as ever.

- `pair`: one pair of classes becomes a cut; `next`: one pair no longer asks for the character after it; `boundary`:
  one class counts as a boundary of the normalizer;
- `class`: one code point moves to another class;
- `join`: one place of lemma 3's table says that two symbols are never joined;
- `interior`: parts are encoded as whole texts although something is put before a text;
- `splice`: one step of the rope is wrong (`toktier.campaign.splices`).
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.campaign.seams import Seams
from toktier.campaign.splices import FAULTS, OF_APPENDS
from toktier.campaign.subject import Subject
from toktier.campaign.texts import BASES, MARKS, Texts
from toktier.certificate.samples import COMMON
from toktier.certificate.table import IF_APART, IF_NEXT, NO, YES, Table, TableCuts

_CANDIDATES = 400
"""Tried at most for one fault."""
_CONTEXTS = 24
"""Texts tried for a witness of one candidate."""


@dataclass(frozen=True)
class Fault:
    """``subject``: with the fault in it; ``witness``: a text that it is wrong about, "" for a rope's fault, which is
    wrong by what it does; ``harmless``: candidates that were skipped before this one."""

    kind: str
    what: str
    subject: Subject
    witness: str
    harmless: int


@dataclass(frozen=True)
class Harmless:
    """No candidate of this kind did harm. ``candidates`` is 0 where the kind does not exist in this tokenizer."""

    kind: str
    candidates: int


@dataclass(frozen=True)
class _Candidate:
    what: str
    table: Table
    texts: Callable[[random.Random], str]
    """Draws a text that holds the changed place, with something around it."""


def kinds() -> list[str]:
    """Every kind of fault, splices by name."""
    return [*_TABLES, "interior", *(f"splice: {name}" for name in FAULTS)]


def plant(subject: Subject, kind: str, rng: random.Random, part: int = 0, parts: int = 1) -> Fault | Harmless:
    """A fault of this kind that does harm, or the news that none was found. Each of ``parts`` gets another."""
    if kind.startswith("splice: "):
        name = kind.removeprefix("splice: ")
        if subject.rule.interior and name in OF_APPENDS:
            return Harmless(kind, 0)
        return Fault(kind, name, replace(subject, rope=FAULTS[name]), "", 0)
    if kind == "interior":
        return _without_interior(subject, rng)
    tried = 0
    sound = Seams(subject)
    for candidate in islice(_TABLES[kind](subject, rng), _CANDIDATES * parts):
        if zlib.crc32(candidate.what.encode()) % parts != part % parts:
            continue
        rule = TableCuts(candidate.table, subject.rule.interior)
        for _ in range(_CONTEXTS):
            text = candidate.texts(rng)
            if _tells(subject.rule, rule, sound, text):
                planted = _planted(subject, rule)
                return Fault(kind, candidate.what, planted, text, tried)
        tried += 1
        if tried >= _CANDIDATES:
            break
    return Harmless(kind, tried)


def _tells(old: TableCuts, new: TableCuts, sound: Seams, text: str) -> bool:
    """Whether the IDs contradict a cut that only the new rule has."""
    added = set(new.cuts(text).tolist()) - set(old.cuts(text).tolist())
    return any((bad := sound.bad_at(text, cut)) is not None and bad.level == "ids" for cut in sorted(added))


def _planted(subject: Subject, rule: TableCuts) -> Subject:
    texts = Texts(rule.table, subject.texts.literals, subject.texts.real, subject.texts.merged)
    return replace(subject, rule=rule, encoder=replace(subject.encoder, rule=rule), texts=texts)


def _without_interior(subject: Subject, rng: random.Random) -> Fault | Harmless:
    if not subject.rule.interior:
        return Harmless("interior", 0)
    planted = _planted(subject, TableCuts(subject.rule.table, interior=False))
    broken = Seams(planted)
    for _ in range(_CANDIDATES):
        text = subject.texts.families["mixed"](rng)
        if broken.check(text)[1]:
            return Fault("interior", "parts encoded as whole texts", planted, text, 0)
    return Harmless("interior", 1)


# candidates, in random order


def _around(texts: Texts, rng: random.Random, middle: str) -> str:
    """``middle`` in a text: in a literal that holds it, where there is one, or among a few pieces."""
    if rng.random() < 0.3:
        some = texts.literals if len(texts.literals) <= 512 else rng.sample(texts.literals, 512)
        holding = [literal for literal in some if middle[:2] in literal]
        if holding:
            return rng.choice(holding)
    return texts.pieces(rng, rng.randint(0, 3)) + middle + texts.pieces(rng, rng.randint(0, 3))


def _shuffled(rng: random.Random, mask: npt.NDArray[np.bool_]) -> list[tuple[int, ...]]:
    found = [tuple(int(x) for x in place) for place in zip(*np.nonzero(mask), strict=True)]
    rng.shuffle(found)
    return found


def _pairs(subject: Subject, rng: random.Random) -> Iterator[_Candidate]:
    table, texts = subject.rule.table, subject.texts
    for a, b in _shuffled(rng, table.matrix == NO):
        if a not in texts.classes or b not in texts.classes:
            continue
        yield _Candidate(
            f"classes {a} and {b} made a cut",
            replace(table, matrix=_with(table.matrix, (a, b), YES)),
            lambda r, a=a, b=b: _around(texts, r, texts.char(r, a) + texts.char(r, b)),  # type: ignore[misc]
        )


def _next(subject: Subject, rng: random.Random) -> Iterator[_Candidate]:
    table, texts = subject.rule.table, subject.texts
    for a, b in _shuffled(rng, (table.matrix & IF_NEXT).astype(np.bool_)):
        kind = int(table.matrix[a, b]) & ~IF_NEXT or YES
        yield _Candidate(
            f"classes {a} and {b} made a cut whatever follows",
            replace(table, matrix=_with(table.matrix, (a, b), kind)),
            lambda r, a=a, b=b: _around(texts, r, texts.char(r, a) + _composing(texts, r, b)),  # type: ignore[misc]
        )


def _boundary(subject: Subject, rng: random.Random) -> Iterator[_Candidate]:
    table, texts = subject.rule.table, subject.texts
    asking = _shuffled(rng, (table.matrix & IF_NEXT).astype(np.bool_))
    if not asking:
        return
    for (k,) in _shuffled(rng, ~table.boundary):
        if k not in texts.classes:
            continue

        def text(r: random.Random, k: int = k) -> str:
            a, b = r.choice(asking)
            pair = next((t for t in (texts.taken_apart(r) for _ in range(8)) if texts.class_of(t[-1]) == k), "")
            return _around(texts, r, texts.char(r, a) + (pair or _first(texts, r, b) + texts.char(r, k)))

        yield _Candidate(f"class {k} made a boundary", replace(table, boundary=_with(table.boundary, (k,), True)), text)


def _classes(subject: Subject, rng: random.Random) -> Iterator[_Candidate]:
    table, texts = subject.rule.table, subject.texts
    while True:
        c = ord(rng.choice((rng.choice(COMMON), texts.border(rng), texts.char(rng))))
        k = rng.choice(texts.classes)
        if k == table.classes[c]:
            continue

        def text(r: random.Random, c: int = c) -> str:
            a, b = texts.char(r), texts.char(r)
            return _around(texts, r, r.choice((chr(c) + b, a + chr(c), a + chr(c) + b, chr(c) * 2)))

        yield _Candidate(
            f"U+{c:04X} moved from class {table.classes[c]} to {k}",
            replace(table, classes=_with(table.classes, (c,), k)),
            text,
        )


def _joins(subject: Subject, rng: random.Random) -> Iterator[_Candidate]:
    table, texts = subject.rule.table, subject.texts
    joins = table.joins
    asking = _shuffled(rng, (table.matrix & IF_APART).astype(np.bool_))
    if joins is None or not asking:
        return
    while True:
        text = texts.slice(rng, 2) if rng.random() < 0.5 else "".join(texts.char(rng, k) for k in rng.choice(asking))
        if len(text) < 2 or joins.apart(ord(text[0]), ord(text[1])):
            continue
        place = int(joins.left[ord(text[0])]) + int(joins.right[ord(text[1])])
        never = int(np.iinfo(np.uint32).max)
        yield _Candidate(
            f"U+{ord(text[0]):04X} and U+{ord(text[1]):04X} said to be never joined",
            replace(table, joins=replace(joins, table=_with(joins.table, (place,), never))),
            lambda r, text=text: _around(texts, r, text),  # type: ignore[misc]
        )


_TABLES: Mapping[str, Callable[[Subject, random.Random], Iterator[_Candidate]]] = {
    "pair": _pairs,
    "next": _next,
    "boundary": _boundary,
    "class": _classes,
    "join": _joins,
}


def _composing(texts: Texts, rng: random.Random, b: int) -> str:
    """A character of class ``b`` and something that may compose with it."""
    for _ in range(8):
        apart = texts.taken_apart(rng)
        if len(apart) > 1 and texts.class_of(apart[0]) == b:
            return apart
    return _first(texts, rng, b) + rng.choice((rng.choice(MARKS), rng.choice("\u0301\u0308\u030a\u0338\u0327")))


def _first(texts: Texts, rng: random.Random, b: int) -> str:
    common = [c for c in BASES + COMMON if texts.class_of(c) == b]
    return rng.choice(common) if common and rng.random() < 0.7 else texts.char(rng, b)


def _with(array: npt.NDArray[Any], place: tuple[int, ...], value: object) -> npt.NDArray[Any]:
    """A copy with one entry changed."""
    changed = array.copy()
    changed[place] = value
    return changed
