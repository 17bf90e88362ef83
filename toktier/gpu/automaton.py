"""One split pattern as an ordered automaton over character classes.

Invariants:
- A state is a tuple of program points in the order in which a backtracking engine would try them, each once. So the
  match that a state finds first is the one that the engine prefers (leftmost-first).
- A match is seen one character late: reading the class at position i settles the lookaheads at i, and then whether a
  match ends at i. Lookaheads and the end of the text are ordinary transitions that way.
- A state holds no counter: ``{n,m}`` is written out.

Every construct is either exact here or refused by name. A possessive repeat of one character is exact as a repeat that
is left only where the next character does not continue it. Under ``(?i)`` a run that matches other than one code point
each (``ss`` for ``ß``) has no rule here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from toktier.certificate.classes import Mask
from toktier.certificate.follow import Positions
from toktier.certificate.regex import GREEDY, LAZY, POSSESSIVE, Alt, Atom, Atomic, Look, Node, Repeat
from toktier.errors import Refusal

MOST_COPIES = 64
MOST_POINTS = 4_000

PIECE, GAP = 0, 1
"""What a match is: a piece, or one character of the text between matches, which joins with what follows it."""

DROPPED = "text that no match covers and that is dropped"

Classes = frozenset[int]
State = tuple[int, ...]


@dataclass(frozen=True)
class _Read:
    classes: Classes
    then: int


@dataclass(frozen=True)
class _Fork:
    """``first`` is preferred."""

    first: int
    second: int


@dataclass(frozen=True)
class _Ahead:
    """Goes on where the next class is in ``classes`` (``negative``: is not, or the text ends)."""

    negative: bool
    classes: Classes
    then: int


@dataclass(frozen=True)
class _Match:
    kind: int


_Point = _Read | _Fork | _Ahead | _Match


class Automaton:
    """``holds[i, c]``: atom i of ``positions`` holds class c. Class ``classes`` is the end of the text.

    What no match covers is a piece of its own: maximal runs of it.
    """

    def __init__(self, node: Node, positions: Positions, holds: Mask, place: str, gaps: bool) -> None:
        """``gaps``: whether what no match covers is kept. Raises `Refusal`."""
        self.classes = holds.shape[1]
        self.end = self.classes
        self.place = place
        self.gaps = gaps
        self._positions = positions
        self._holds = [frozenset(row.nonzero()[0].tolist()) for row in holds]
        self._points: list[_Point | None] = []
        self._steps: dict[tuple[State, int], tuple[int | None, State]] = {}
        self._certain: dict[State, bool] = {}
        entry = self._compile(node, self._add(_Match(PIECE)))
        self.start = self._closure((entry,))
        self.start = self._closure((self._with_gaps(entry),))
        self._steps.clear()
        self._certain.clear()

    def step(self, state: State, cls: int) -> tuple[int | None, State]:
        """(the kind of the match that ends before the class, the state after it). Either may be missing: None, ()."""
        key = (state, cls)
        if key not in self._steps:
            self._steps[key] = self._step(state, cls)
        return self._steps[key]

    def certain(self, state: State) -> bool:
        """Whether a match is seen sooner or later, whatever is read."""
        if state not in self._certain:
            self._judge(state)
        return self._certain[state]

    def _judge(self, state: State) -> None:
        """`certain` of the state and of all that follow it: those from which no dead end is reached without a match."""
        before: dict[State, list[State]] = {state: []}
        waiting, dead = [state], []
        for at in waiting:
            for cls in range(self.classes + 1):
                match, after = self.step(at, cls)
                if match is not None:
                    continue
                if not after:
                    dead.append(at)
                    continue
                if after not in before:
                    before[after] = []
                    waiting.append(after)
                before[after].append(at)
        uncertain = set(dead)
        for at in dead:
            for earlier in before[at]:
                if earlier not in uncertain:
                    uncertain.add(earlier)
                    dead.append(earlier)
        self._certain |= {at: at not in uncertain for at in before}

    def _step(self, state: State, cls: int) -> tuple[int | None, State]:
        def passed(point: _Point) -> State:
            if isinstance(point, _Ahead) and (cls in point.classes) != point.negative:
                return self._closure((point.then,))
            return ()

        after: list[int] = []
        for _, point in self._walk(state, passed):
            if isinstance(point, _Match):
                return point.kind, self._closure(after)  # what comes later is less preferred
            if isinstance(point, _Read) and cls in point.classes:
                after.append(point.then)
        return None, self._closure(after)

    def _closure(self, points: Iterable[int]) -> State:
        """The points that read, look or match, in order of preference."""
        walk = self._walk(points, lambda point: (point.first, point.second) if isinstance(point, _Fork) else ())
        return tuple(at for at, point in walk if not isinstance(point, _Fork))

    def _walk(self, points: Iterable[int], onward: Callable[[_Point], Sequence[int]]) -> Iterator[tuple[int, _Point]]:
        """Each point once, in order of preference; what it leads ``onward`` to comes before what stands behind it."""
        seen: set[int] = set()
        waiting = list(reversed(tuple(points)))
        while waiting:
            at = waiting.pop()
            if at in seen:
                continue
            seen.add(at)
            point = self._points[at]
            assert point is not None
            yield at, point
            waiting += reversed(onward(point))

    def _with_gaps(self, entry: int) -> int:
        """The program with what stands between matches, which is less preferred than every match.

        Where each class that may begin a match surely does, gaps are the runs of the other classes, and those are
        matches like any other. Otherwise a gap is found one character at a time.
        """
        first = self._first(entry)
        every = frozenset(range(self.classes))
        sure = all((after := self.step(self.start, cls)[1]) and self.certain(after) for cls in first)
        if not sure:
            return self._add(_Fork(entry, self._add(_Read(every, self._add(_Match(GAP))))))
        if first == every:
            return entry
        if not self.gaps:
            raise Refusal(DROPPED, self.place)
        loop = self._add(None)
        again = self._add(_Read(every - first, loop))
        self._points[loop] = _Fork(again, self._add(_Match(PIECE)))
        return self._add(_Fork(entry, again))

    def _first(self, entry: int) -> Classes:
        """The classes that a match may begin with, lookaheads taken as passed."""

        def onward(point: _Point) -> Sequence[int]:
            if isinstance(point, _Fork):
                return point.first, point.second
            return (point.then,) if isinstance(point, _Ahead) else ()

        read = (point.classes for _, point in self._walk((entry,), onward) if isinstance(point, _Read))
        return frozenset().union(*read)

    def _add(self, point: _Point | None) -> int:
        if len(self._points) == MOST_POINTS:
            raise Refusal(f"pattern of more than {MOST_POINTS:,} points written out", self.place)
        self._points.append(point)
        return len(self._points) - 1

    def _compile(self, node: Node, then: int) -> int:
        """The entry of the program that matches ``node`` and goes on at ``then``."""
        if isinstance(node, Atom):
            return self._add(_Read(self._of((node,)), then))
        if isinstance(node, Look):
            return self._add(_Ahead(node.negative, self._of(node.atoms), then))
        if isinstance(node, Alt):
            *rest, entry = (self._compile(branch, then) for branch in node.branches)
            for other in reversed(rest):
                entry = self._add(_Fork(other, entry))
            return entry
        if isinstance(node, Atomic):
            if isinstance(node.body, Atom):
                return self._compile(node.body, then)
            if isinstance(node.body, Repeat) and isinstance(node.body.body, Atom) and node.body.kind == GREEDY:
                return self._repeat(Repeat(node.body.body, node.body.low, node.body.high, POSSESSIVE), then)
            raise Refusal("atomic group of more than one repeated character", self.place)
        if isinstance(node, Repeat):
            return self._repeat(node, then)
        for item in reversed(node.items):
            then = self._compile(item, then)
        return then

    def _repeat(self, node: Repeat, then: int) -> int:
        if _nullable(node.body):
            raise Refusal("repeat of what may be empty", self.place)
        if node.kind == POSSESSIVE and not isinstance(node.body, Atom):
            raise Refusal("possessive repeat of more than one character", self.place)
        if max(node.low, node.high or 0) > MOST_COPIES:
            raise Refusal(f"repeat of more than {MOST_COPIES} times", self.place)
        leave = then
        if node.kind == POSSESSIVE:
            assert isinstance(node.body, Atom)
            leave = self._add(_Ahead(True, self._of((node.body,)), then))
        if node.high is None:
            entry = self._add(None)
            self._points[entry] = self._choice(self._compile(node.body, entry), leave, node.kind)
        else:
            entry = then
            for _ in range(node.high - node.low):
                entry = self._add(self._choice(self._compile(node.body, entry), leave, node.kind))
        for _ in range(node.low):
            entry = self._compile(node.body, entry)
        return entry

    def _choice(self, again: int, leave: int, kind: str) -> _Fork:
        return _Fork(leave, again) if kind == LAZY else _Fork(again, leave)

    def _of(self, atoms: Sequence[Atom]) -> Classes:
        return frozenset().union(*(self._holds[self._positions.index[id(atom)]] for atom in atoms))


def _nullable(node: Node) -> bool:
    if isinstance(node, Atom):
        return False
    if isinstance(node, Look):
        return True
    if isinstance(node, Alt):
        return any(map(_nullable, node.branches))
    if isinstance(node, Repeat):
        return node.low == 0 or _nullable(node.body)
    return _nullable(node.body) if isinstance(node, Atomic) else all(map(_nullable, node.items))
