"""The splits of a tokenizer as the arrays that the kernels walk.

What cannot be walked is refused by name: behaviours other than Isolated (and, as tiktoken splits, keeping the matches
alone, where they cover every text), text put before pieces, rewrites other than ByteLevel's, and what `automaton` and
`transducer` refuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import CODE_POINTS, SURROGATES, Mask, Probe, partition
from toktier.certificate.ops import Op, Rewrite, Split
from toktier.certificate.regex import parse
from toktier.errors import Refusal
from toktier.gpu.automaton import Automaton
from toktier.gpu.synchronise import Synchroniser, synchroniser
from toktier.gpu.transducer import (
    STILL,
    Transducer,
    Transition,
    live_registers,
    merged_classes,
    minimised,
    product,
    transducer,
    with_breaks,
)
from toktier.gpu.vocabulary import BREAK_BYTE

PAGE = 128
"""Code points of a page of the class table."""
MOST_CLASSES = 238
MOVES_LIMIT, SYNC_LIMIT, STATES_LIMIT = 1024, 2560, 64
"""What the kernels have room for: entries of both automata, and states (``cuda_src/tables.cuh``)."""

EMIT, SOURCE, MOVES, QUIET = 16, 20, 26, 27
"""Bits of an entry: emissions, sources of two bits each, whether a register moves, and whether the target reads none.
Below: the target's row."""
FIRST_ROW, LOOK = 240, 255
ROWS = (0x80, 0xC0, 0x400, 0x440, 0x900, 0x940, 0xE00, 0xE40, 0x2000, *range(0x3000, 0x3100, 64), 0xFF00, 0xFF40)
"""Of the 64 characters from each of these on the class of each is kept at hand (``cuda_src/classes.cuh``): Latin,
Cyrillic, Devanagari, Thai, punctuation, kana and the wide forms."""
MEMBERS = 4
"""States of a subset that are kept (``cuda_src/settle.cuh``)."""


@dataclass(frozen=True)
class Splits:
    """``machine`` is over ``classes`` merged classes; ``of_point``: the class of each code point, ``(0x110000,)``.

    Class ``classes`` is the break, as a column of ``machine``. In ``arrays`` it is one further, behind the class of the
    continuation bytes of UTF-8, at which every state stays as it is.
    """

    machine: Transducer
    sync: Synchroniser
    of_point: npt.NDArray[np.uint8]

    @property
    def classes(self) -> int:
        return self.machine.end

    @property
    def stride(self) -> int:
        """Entries of a row: odd, so that neighbouring states lie in other banks."""
        return (self.classes + 2) | 1

    @property
    def open_rows(self) -> bool:
        """Whether nothing synchronises in a row of CJK, however long: it may be upper or lower case to the pattern."""
        cls = self.of_point[0x4E2D]
        known, at, seen = False, 0, set[int]()
        while not known and at not in seen:
            seen.add(at)
            known, at = self.sync.rows[at][cls]
        return not known

    @cached_property
    def live(self) -> list[frozenset[int]]:
        """Per state, the registers that it reads."""
        return live_registers(self.machine)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """``blocks``, ``moves``, ``sync``, ``pages`` and ``page_classes`` of `tables.Tables`. Raises `Refusal`."""
        moves, sync = self._moves(), self._sync()
        sizes = (
            ("states", len(self.machine.rows), STATES_LIMIT),
            ("transitions", moves.size, MOVES_LIMIT),
            ("synchronising transitions", sync.size, SYNC_LIMIT),
        )
        for name, size, limit in sizes:
            if size > limit:
                raise Refusal(f"{size:,} {name}, more than the {limit:,} that the kernels hold", "splits")
        pages: dict[bytes, int] = {}
        of_page = [pages.setdefault(page.tobytes(), len(pages)) for page in self.of_point.reshape(-1, PAGE)]
        return {
            "blocks": self._blocks(),
            "moves": moves.ravel(),
            "sync": sync.ravel(),
            "members": self._members(),
            "pages": np.array(of_page, np.uint16),
            "page_classes": np.frombuffer(b"".join(pages), np.uint8),
        }

    def _blocks(self) -> npt.NDArray[np.uint8]:
        """By a byte: of ASCII, of a continuation, of the 64 characters that begin with the first of two bytes, of the
        break; from 256 on by the first two bytes of three; then `ROWS`. In place of a class, where there is more than
        one: `FIRST_ROW` and the number of the row, or `LOOK`."""
        rows = self.of_point[: 1 << 16].reshape(-1, 64)
        alike = np.where((rows == rows[:, :1]).all(axis=1), rows[:, 0], LOOK).astype(np.uint8)
        kept = np.zeros((len(ROWS), 64), np.uint8)
        for k, number in enumerate(point >> 6 for point in ROWS):
            if alike[number] == LOOK:
                alike[number], kept[k] = FIRST_ROW + k, rows[number]
        still = np.full(64, self.classes, np.uint8)
        rest = np.full(32, LOOK, np.uint8)
        rest[BREAK_BYTE - 0xE0] = self.classes + 1
        return np.concatenate([self.of_point[:128], still, alike[:32], rest, alike, kept.ravel()])

    def _moves(self) -> npt.NDArray[np.uint32]:
        rows = self.machine.rows
        table = np.zeros((len(rows), self.stride), np.uint32)
        for q, row in enumerate(rows):
            entries = [self._entry(move) for move in row]
            still = self._entry(Transition(q))
            table[q, : self.classes + 2] = [*entries[:-1], still, entries[-1]]
        return table

    def _entry(self, move: Transition) -> int:
        value = move.target * self.stride
        for source in move.emits:
            value |= 1 << (EMIT + source)
        for k, source in enumerate(move.sources):
            value |= source << (SOURCE + 2 * k)
        return value | (move.sources != STILL) << MOVES | (not self.live[move.target]) << QUIET

    def _members(self) -> npt.NDArray[np.uint64]:
        """Beside each row of ``sync``."""
        table = np.full((len(self.sync.subsets), self.stride, MEMBERS), 0xFFFF, "<u2")
        for row, states in zip(table, self.sync.subsets, strict=True):
            if len(states) <= MEMBERS:
                row[0, : len(states)] = [q * self.stride for q in sorted(states)]
        return table.view("<u8").ravel()

    def _sync(self) -> npt.NDArray[np.uint16]:
        states = len(self.machine.rows)
        if (states + len(self.sync.rows)) * self.stride >= 1 << 16:
            raise Refusal("synchronising automaton beyond 16 bits", "splits")
        table = np.zeros((len(self.sync.rows), self.stride), np.uint16)
        for s, row in enumerate(self.sync.rows):
            entries = [(to if known else states + to) * self.stride for known, to in row]
            table[s, : self.classes + 2] = [*entries[:-1], (states + s) * self.stride, entries[-1]]
        return table


def splits_of(ops: Sequence[Op], probe: Probe) -> Splits:
    """The splits of a pre-tokenizer, or of a rank file's pattern. Raises `Refusal`."""
    splits = []
    for op in ops:
        if isinstance(op, Split):
            splits.append(op)
        elif not isinstance(op, Rewrite):
            raise Refusal(f"text put before pieces ({op.scheme})", op.place)
    if not splits:
        raise Refusal("text that nothing splits", "pre_tokenizer")
    sets = [probe.atoms(_exact(op).positions.atoms) for op in splits]
    classes, holds = _of_text(*partition([flips for atoms in sets for flips in atoms]))
    stages = []
    at = 0
    for op, atoms in zip(splits, sets, strict=True):
        own = holds[at : at + len(atoms)]
        at += len(atoms)
        stages.append(transducer(Automaton(op.node, op.positions, own, op.place, op.behaviour == "Isolated")))
    machine, merged = merged_classes(with_breaks(product(stages)))
    machine = minimised(machine)
    if machine.end > MOST_CLASSES:
        raise Refusal(f"more than {MOST_CLASSES} classes of characters", "splits")
    of_point = np.array(merged, np.uint8)[classes]
    assert of_point.shape == (CODE_POINTS,)
    return Splits(machine, synchroniser(machine), of_point)


def _of_text(classes: npt.NDArray[np.uint16], holds: Mask) -> tuple[npt.NDArray[np.uint16], Mask]:
    """A partition without the class of the surrogates: no text has them, and no set does."""
    classes[SURROGATES.start : SURROGATES.stop] = classes[0]
    used = np.flatnonzero(np.bincount(classes, minlength=holds.shape[1]))  # sorting all code points would take longer
    number = np.zeros(holds.shape[1], np.uint16)
    number[used] = np.arange(len(used))
    return number[classes], holds[:, used]


def _exact(op: Split) -> Split:
    """``op``, if its matches are told by its tree and its behaviour by a transducer. Raises `Refusal`."""
    if (op.behaviour, op.invert) not in (("Isolated", False), ("Isolated", True), ("Removed", True)):
        raise Refusal(f"split behaviour {op.behaviour}{' inverted' if op.invert else ''}", op.place)
    folds = any(atom.unfolded is not None for atom in op.positions.atoms)
    if folds and parse(op.pattern, op.place) != op.node:
        raise Refusal("case folding of several characters to one", op.place)
    return op
