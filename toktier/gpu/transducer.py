"""A split as a machine that reads each character once, from left to right, and tells where pieces begin.

A backtracking engine that has found a match and tries for a longer one may fail and go back. This machine does not:
while it tries for the longer one it also runs on as if there were none. So a state is a stack of *levels*: level 0 is
the match in progress, level 1 the one that would begin where level 0 last could have ended, and so on. Register k holds
where level k began. When level 0 dies, its last end is settled: that is register 1, a piece begins there, and the
stack moves up.

- A level is dropped as soon as the one above it is certain to match again: it will never be needed.
- A boundary that would have to be told on condition that an upper level dies is not expressible: refused.
- A run of characters that no match covers is one piece. Its characters are matches of kind `GAP`; ``gap`` in a state
  says that level 0 began at the end of one, so that its own beginning is told together with its end, if it is a match.

Emissions of a transition are registers (as they were before it) and `HERE`, the position of the class that is read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from toktier.errors import Refusal
from toktier.gpu.automaton import DROPPED, GAP, Automaton, State

HERE = 3
REGISTERS = 3
MOST_STATES = 512
STILL = (0, 1, 2)
"""Every register keeps what it holds."""

Emits = frozenset[int]
NOTHING: Emits = frozenset()


@dataclass(frozen=True)
class Transition:
    """``sources[k]``: the register, or `HERE`, whose value register k has afterwards."""

    target: int
    emits: Emits = NOTHING
    sources: tuple[int, int, int] = STILL


@dataclass(frozen=True)
class Transducer:
    """``rows[q][c]``, for classes c from 0 on; the last column is the end of the text, whose target means nothing."""

    rows: tuple[tuple[Transition, ...], ...]

    @property
    def end(self) -> int:
        return len(self.rows[0]) - 1


_Levels = tuple[tuple[State, int | None], ...]


class _Builder:
    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton

    def build(self) -> Transducer:
        start: tuple[bool, _Levels] = (False, ((self._automaton.start, None),))
        numbers = {start: 0}
        order = [start]
        rows: list[tuple[Transition, ...]] = []
        while len(rows) < len(order):
            gap, levels = order[len(rows)]
            row = []
            for cls in range(self._automaton.classes + 1):
                step = _Step(self._automaton, gap, levels, cls)
                step.run()
                if cls == self._automaton.end:
                    row.append(Transition(0, step.emits - {HERE}))
                    continue
                if len(step.left) > REGISTERS:
                    raise Refusal("more matches under way at once than the kernels have registers", step.place)
                state = (step.gap, tuple((q, kind) for q, kind, _ in step.left))
                if state not in numbers:
                    if len(order) == MOST_STATES:
                        raise Refusal(f"more than {MOST_STATES} states", step.place)
                    numbers[state] = len(order)
                    order.append(state)
                sources = [source for _, _, source in step.left] + list(STILL[len(step.left) :])
                row.append(Transition(numbers[state], step.emits, (sources[0], sources[1], sources[2])))
            rows.append(tuple(row))
        return minimised(Transducer(tuple(rows)))


class _Step:
    """One read. ``left``: the levels afterwards, each with the source of its register."""

    def __init__(self, automaton: Automaton, gap: bool, levels: _Levels, cls: int) -> None:
        self.place = automaton.place
        self.gap = gap
        self.emits: Emits = NOTHING
        self.left: list[tuple[State, int | None, int]] = []
        self._automaton = automaton
        self._levels = levels
        self._cls = cls

    def run(self) -> None:
        automaton, cls = self._automaton, self._cls
        ends = cls == automaton.end
        for k, (state, kind) in enumerate(self._levels):
            match, after = automaton.step(state, cls)
            if match is not None:  # a match of level k ends here; what had been tried behind an earlier one is void
                fresh = () if ends else automaton.step(automaton.start, cls)[1]
                if not after:
                    self._piece(match, k, HERE)
                    if not ends:
                        self.left.append((fresh, None, HERE))
                elif automaton.certain(after):
                    self.left.append((after, None, k))
                else:
                    self.left += ((after, match, k), (fresh, None, HERE))
                return
            if after:
                if automaton.certain(after):
                    self.left.append((after, None, k))
                    return
                self.left.append((after, kind, k))
                if kind is None:
                    return
            elif kind is not None:  # level k has failed to match more than it had
                self._piece(kind, k, k + 1)
            elif ends and state == automaton.start:  # nothing was read
                return
            else:
                raise Refusal("text that no match covers", self.place)

    def _piece(self, kind: int, begin: int, end: int) -> None:
        """A match of ``kind`` from what register ``begin`` holds to what ``end`` tells is settled."""
        if self.left:
            raise Refusal("boundary that depends on a match still under way", self.place)
        if kind == GAP:
            if not self._automaton.gaps:
                raise Refusal(DROPPED, self.place)
            self.gap = True
            return
        self.emits |= {begin, end} if self.gap else {end}
        self.gap = False


def transducer(automaton: Automaton) -> Transducer:
    """The transducer of one split; state 0 is the beginning of a text. Raises `Refusal`."""
    return _Builder(automaton).build()


def product(stages: Sequence[Transducer]) -> Transducer:
    """Splits in a row as one transducer: each later one begins anew at every boundary of an earlier one.

    All but the last must tell each boundary at once, on the character behind it. Raises `Refusal`.
    """
    if len(stages) == 1:
        return stages[0]
    for k, stage in enumerate(stages[:-1]):
        for row in stage.rows:
            if row[-1].emits or any(not move.emits <= {HERE} for move in row[:-1]):
                raise Refusal("split before the last that tells a boundary late", f"split {k + 1}")
    start = (0,) * len(stages)
    numbers = {start: 0}
    order = [start]
    rows: list[tuple[Transition, ...]] = []
    end = stages[0].end
    while len(rows) < len(order):
        states = order[len(rows)]
        moves = []
        for cls in range(end):
            target, emits, sources = _product_step(stages, states, cls)
            if target not in numbers:
                if len(order) == MOST_STATES:
                    raise Refusal(f"more than {MOST_STATES} states", "splits together")
                numbers[target] = len(order)
                order.append(target)
            moves.append(Transition(numbers[target], emits, sources))
        moves.append(Transition(0, stages[-1].rows[states[-1]][end].emits))
        rows.append(tuple(moves))
    return minimised(Transducer(tuple(rows)))


def _product_step(
    stages: Sequence[Transducer], states: tuple[int, ...], cls: int
) -> tuple[tuple[int, ...], Emits, tuple[int, int, int]]:
    broken = False
    target = []
    for stage, state in zip(stages[:-1], states[:-1], strict=True):
        move = stage.rows[0 if broken else state][cls]
        broken = broken or HERE in move.emits
        target.append(move.target)
    last, state = stages[-1], states[-1]
    if not broken:
        move = last.rows[state][cls]
        return (*target, move.target), move.emits, move.sources
    move = _begun(last, cls)
    return (*target, move.target), last.rows[state][last.end].emits | move.emits, move.sources


def _begun(stage: Transducer, cls: int) -> Transition:
    """What the first character of a text does, where the text begins at that character: its piece begins there."""
    move = stage.rows[0][cls]
    assert not move.emits
    return Transition(move.target, frozenset((HERE,)), (HERE, *move.sources[1:]))


def with_breaks(stage: Transducer) -> Transducer:
    """The same machine over several texts with a *break* between them: the last column is the break.

    A break is a piece of its own and ends what stands before it. State 0 is "behind a break"; a text begins in it, so
    that the first piece is told like any other.
    """
    behind = [_begun(stage, cls) for cls in range(stage.end)]
    shifted = [Transition(move.target + 1, move.emits, move.sources) for move in behind]
    rows = [(*shifted, Transition(0, frozenset((HERE,))))]
    for row in stage.rows:
        moves = [Transition(move.target + 1, move.emits, move.sources) for move in row[:-1]]
        rows.append((*moves, Transition(0, row[-1].emits | {HERE})))
    return minimised(Transducer(tuple(rows)))


def live_registers(machine: Transducer) -> list[frozenset[int]]:
    """Per state, the registers whose value may still be emitted."""
    live: list[frozenset[int]] = [NOTHING] * len(machine.rows)
    changed = True
    while changed:
        changed = False
        for q, row in enumerate(machine.rows):
            found = set(live[q])
            for cls, move in enumerate(row):
                found |= move.emits - {HERE}
                if cls < machine.end or move.target:
                    found |= {move.sources[k] for k in live[move.target]} - {HERE}
            if found != live[q]:
                live[q] = frozenset(found)
                changed = True
    return live


def minimised(machine: Transducer) -> Transducer:
    """Without states that cannot be reached or told apart, and without moves of registers that nothing reads."""
    live = live_registers(machine)
    rows = [
        tuple(
            Transition(m.target, m.emits, _only(m.sources, live[m.target] if c < machine.end else NOTHING))
            for c, m in enumerate(row)
        )
        for row in machine.rows
    ]
    part = [0] * len(rows)
    while True:
        known: dict[tuple[object, ...], int] = {}
        finer = [
            known.setdefault((part[q], *((part[m.target], m.emits, m.sources) for m in row)), len(known))
            for q, row in enumerate(rows)
        ]
        if len(set(finer)) == len(set(part)):
            break
        part = finer
    example: dict[int, int] = {}
    for q, p in enumerate(part):
        example.setdefault(p, q)
    order = list(_reached(part[0], lambda p: (part[m.target] for m in rows[example[p]][:-1])))
    number = {p: k for k, p in enumerate(order)}
    return Transducer(
        tuple(
            tuple(Transition(number.get(part[m.target], 0), m.emits, m.sources) for m in rows[example[p]])
            for p in order
        )
    )


def _only(sources: tuple[int, int, int], live: frozenset[int]) -> tuple[int, int, int]:
    a, b, c = (source if k in live else k for k, source in enumerate(sources))
    return a, b, c


def _reached(start: int, after: Callable[[int], Iterable[int]]) -> Iterator[int]:
    seen = {start}
    waiting = [start]
    for at in waiting:
        yield at
        for other in after(at):
            if other not in seen:
                seen.add(other)
                waiting.append(other)


def merged_classes(machine: Transducer) -> tuple[Transducer, list[int]]:
    """The machine over fewer classes, and the new class of each old one: classes that no state tells apart are one."""
    columns: dict[tuple[Transition, ...], int] = {}
    of = []
    kept: dict[int, int] = {}
    for cls in range(machine.end):
        column = tuple(row[cls] for row in machine.rows)
        number = columns.setdefault(column, len(columns))
        kept.setdefault(number, cls)
        of.append(number)
    chosen = [*kept.values(), machine.end]
    return Transducer(tuple(tuple(row[c] for c in chosen) for row in machine.rows)), of


def starts(machine: Transducer, classes: Sequence[int]) -> list[int]:
    """Where pieces begin in a text given by its classes: the slow, plain reading of a machine `with_breaks`.

    A class ``machine.end`` is a break. Used by tests as the oracle of the kernels.
    """
    found: dict[int, int] = defaultdict(int)
    registers = [0, 0, 0]
    state = 0
    for at, cls in enumerate([*classes, machine.end]):
        move = machine.rows[state][cls]
        values = [*registers, at]
        for source in move.emits:
            found[values[source]] += 1
        registers = [values[source] for source in move.sources]
        state = move.target
    assert all(count == 1 for count in found.values()), "a boundary told twice"
    return sorted(at for at in found if at < len(classes))
