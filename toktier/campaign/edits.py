"""Ropes against the reference: random and adversarial changes, the IDs compared with a full encode after every one.

A rope case is one rope and `OPERATIONS` changes of it, the first of which sets its text. Of every hundred ropes one has
a text over `HUGE` characters, and nine one over `LARGE`, after each of its operations. Fifty of the others are cut as
closely as a rope can be (`CloseEncoder`): short texts then have as many seams as long ones. Changes are made anywhere,
on the seams of the rope's chunks, on cuts, and on the borders of literals; what is put in is drawn from `Texts`.

After an operation these must hold: the IDs are the reference's for the whole text, the text is the text, and
`Splice.first_changed` is exact.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from toktier.campaign.subject import Subject
from toktier.campaign.texts import MARKS, Texts
from toktier.chunks import SMALL, ChunkEncoder
from toktier.ids import Ids, shared_prefix
from toktier.rope import Rope, Splice

OPERATIONS = 10
LARGE, HUGE = 20_000, 200_000
_ACTIONS = {
    "append": 5, "insert": 3, "replace": 3, "delete": 3, "edit": 3, "seam": 5, "literal": 3, "truncate": 2, "set": 3,
    "run": 1,
}  # fmt: skip
FAMILIES = ("begin", *_ACTIONS)

Fault = Literal["ids", "text", "first_changed", "error"]


@dataclass(frozen=True)
class Change:
    """Characters ``[start, end)`` replaced by ``new``. ``whole``: told to the rope as its whole new text."""

    family: str
    start: int
    end: int
    new: str
    whole: bool

    def of(self, text: str) -> str:
        """``text`` after the change."""
        return text[: self.start] + self.new + text[self.end :]


@dataclass(frozen=True)
class BadChange:
    """A change after which something did not hold. ``change`` is number ``step`` of its rope."""

    fault: Fault
    step: int
    before: str
    change: Change


@dataclass
class Account:
    """What was done. ``full``: operations that kept nothing, by reason; the others repaired. ``gpu``: what a GPU did,
    where there is one."""

    operations: int = 0
    large: int = 0
    huge: int = 0
    repaired: int = 0
    chars: int = 0
    scanned: int = 0
    full: Counter[str] = field(default_factory=Counter)
    gpu: Counter[str] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)

    def add(self, other: Account) -> None:
        """Sums."""
        for name in ("operations", "large", "huge", "repaired", "chars", "scanned"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for counter in ("full", "families", "failures", "gpu"):
            getattr(self, counter).update(getattr(other, counter))


def floor_of(case: int) -> int:
    """How many characters the texts of rope number ``case`` have at least."""
    if case % 10 != 5:
        return 0
    return HUGE + 1 if case % 100 == 55 else LARGE + 1


def is_close(case: int) -> bool:
    """Whether rope number ``case`` is cut as closely as can be."""
    return case % 2 == 0


@dataclass(frozen=True)
class CloseEncoder(ChunkEncoder):
    """Chunks end at the first cut that leaves ``least`` characters, below which a rope keeps none."""

    alone = 0
    seal = SMALL

    def pieces(self, text: str, at_end: bool) -> list[str]:
        assert self.rule is not None
        out: list[str] = []
        start = 0
        for cut in self.rule.cuts(text).tolist():
            if cut - start >= self.least and (at_end or len(text) - cut >= self.least):
                out.append(text[start:cut])
                start = cut
        return [*out, text[start:]]


def close(encoder: ChunkEncoder, least: int = SMALL) -> CloseEncoder:
    """The same rule and engines."""
    return CloseEncoder(encoder.rule, encoder.window, encoder.reference, encoder.marker, least, encoder.gpu)


def run_rope(subject: Subject, case: int, rng: random.Random, account: Account) -> BadChange | None:
    """One rope; the first change after which something did not hold, or None."""
    floor = floor_of(case)
    size = floor + rng.randint(0, floor // 50)
    if not floor:
        least = 100 if is_close(case) else 500
        size = int(least * 12 ** rng.random()) if rng.random() < 0.9 else rng.randint(1, 300)
    rope, text = subject.rope(close(subject.encoder) if is_close(case) else subject.encoder), ""
    ids = subject.reference.encode(text)
    change = Change("begin", 0, 0, subject.texts.long(rng, size), whole=True)
    for step in range(OPERATIONS):
        if step:
            change = draw(subject.texts, subject, rope, text, floor, rng)
        before, text, old = text, change.of(text), ids
        ids = subject.reference.encode(text)
        account.operations += 1
        account.families[change.family] += 1
        account.large += len(text) > LARGE
        account.huge += len(text) > HUGE
        account.chars += len(text)
        fault = apply(rope, change, text, old, ids, account)
        if fault is not None:
            account.failures[change.family] += 1
            return BadChange(fault, step, before, change)
    return None


def apply(rope: Rope, change: Change, text: str, old: Ids, ids: Ids, account: Account | None = None) -> Fault | None:
    """Make the change, after which the text is to be ``text`` and the IDs ``ids``; before, they were ``old``."""
    try:
        splice = tell(rope, change, text)
    except Exception:  # a rope that raises on valid text is a finding like any other
        return "error"
    if account is not None:
        account.scanned += splice.scanned
        if splice.gpu is not None:
            account.gpu[splice.gpu.value] += 1
        if splice.full is not None:
            account.full[splice.full.value] += 1
        else:
            account.repaired += 1
    if not np.array_equal(rope.ids, ids):
        return "ids"
    if rope.chars != len(text) or rope.text() != text:
        return "text"
    return None if splice.first_changed == shared_prefix(old, ids) else "first_changed"


def tell(rope: Rope, change: Change, text: str) -> Splice:
    """The change by the narrowest of the rope's own verbs, or as a whole new text."""
    if change.whole:
        return rope.set(text)
    if change.start == change.end == rope.chars:
        return rope.append(change.new)
    if change.end == rope.chars and not change.new:
        return rope.truncate(change.start)
    return rope.replace(change.start, change.end, change.new)


def draw(texts: Texts, subject: Subject, rope: Rope, text: str, floor: int, rng: random.Random) -> Change:
    """A change of ``text`` that leaves at least ``floor`` characters."""
    family = rng.choices(list(_ACTIONS), list(_ACTIONS.values()))[0] if text else "append"
    size = len(text)
    start = end = _place(subject, rope, text, rng)
    new = ""
    if family == "append":
        start = end = size
        new = rng.choice(
            (texts.piece(rng), texts.pieces(rng, rng.randint(1, 12)), texts.long(rng, rng.randint(1, 1500)))
        )
    elif family == "insert":
        new = rng.choice((texts.piece(rng), texts.pieces(rng, rng.randint(1, 8)), texts.slice(rng, 300)))
    elif family == "replace":
        end = min(size, start + rng.choice((1, 2, 7, 60, 900)))
        new = rng.choice((texts.piece(rng), texts.pieces(rng, rng.randint(1, 20)), texts.slice(rng, 600)))
    elif family == "delete":
        end = min(size, start + rng.choice((1, 1, 2, 3, 40, 2500)))
    elif family == "edit":
        start = min(start, size - 1)
        end = start + 1
        new = rng.choice((texts.char(rng), texts.border(rng), rng.choice(MARKS)))
    elif family == "seam":
        # beside or on a seam between chunks: the characters that make it a cut go, or get another neighbour
        start = max(0, min(size, rng.choice(rope.seams() or [0]) + rng.choice((-2, -1, -1, 0, 0, 1, 1))))
        end = min(size, start + rng.choice((0, 0, 1, 1, 2)))
        new = rng.choice((rng.choice(MARKS), texts.char(rng), texts.border(rng), texts.fragment(rng), ""))
    elif family == "literal":
        start, end, new = _at_literal(texts, text, start, rng)
    elif family == "truncate":
        start, end = max(0, size - rng.choice((1, 2, 3, 50, 700, 2500))), size
    elif family == "run":
        new = texts.char(rng) * rng.randint(200, 3000)
    elif family == "set":
        # two changes at once, as when a client prunes its history and goes on
        other = rng.randint(0, size)
        start, end = min(start, other), max(start, other)
        inner = text[start:end]
        gone = rng.choice((0, 1, 30, 1000))
        new = texts.piece(rng) + inner[gone:] + texts.pieces(rng, rng.randint(1, 6))
    missing = floor - (size - (end - start) + len(new))
    if missing > 0:
        new += texts.long(rng, missing + rng.randint(0, 200))
    return Change(family, start, end, new, whole=family == "set" or rng.random() < 0.3)


def _place(subject: Subject, rope: Rope, text: str, rng: random.Random) -> int:
    roll = rng.random()
    near = rng.randint(0, len(text))
    if roll < 0.4:
        return near
    if roll < 0.7:
        return rng.choice(rope.seams() or [near])
    found = subject.rule.cuts(text, near, min(len(text), near + 64)).tolist()
    return rng.choice(found) if found else near


def _at_literal(texts: Texts, text: str, near: int, rng: random.Random) -> tuple[int, int, str]:
    """On a border of a literal, or inside it: broken, doubled, joined to something; or a new one."""
    for literal in rng.sample(texts.literals, min(8, len(texts.literals))):
        at = text.find(literal, near)
        if at < 0:
            at = text.rfind(literal, 0, near)
        if at >= 0:
            start = at + rng.choice((0, len(literal), len(literal), rng.randint(0, len(literal))))
            end = min(len(text), start + rng.choice((0, 0, 1)))
            return start, end, rng.choice((" ", "\n", "a", literal, texts.fragment(rng), texts.piece(rng), ""))
    return near, near, texts.fragment(rng)
