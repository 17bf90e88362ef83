"""Runs a folded loop: the iterations that a change may have touched, and no others.

The loop is a left fold. Iteration i maps the state before it (the attributes of namespaces that the loop writes) to the
state after it, and prints something; besides the state it reads what its record says (`records`). So:

1. An iteration must run if something that it has read differs today (`Record.touched`), if it never ran, or if the
   state before it differs from the one that it last ran in.
2. The last is known without running: where the state after an iteration equals the recorded one, the next iteration
   finds what it found then, and so on up to the next iteration that must run for another reason. These are skipped; the
   state is set to what it was after the last of them, and what they wrote without reading it is written again.
3. Only attributes that the loop reads count as state here. Of the others nobody in the loop can tell the value; what
   remains after the loop is what the last writer wrote. A writer is told from a non-writer by a mark that is put in
   place of the value before the iteration, so that writing the same value again counts too.
4. A loop that breaks has no iterations after it. The one that broke runs again every time, and those after it have no
   record.

What is carried must be small and plain: everything that is kept is kept for each iteration.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from time import perf_counter
from types import GeneratorType
from typing import Any

from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace

from toktier.folding.change import UNWRITTEN, Change
from toktier.folding.plan import LoopPlan
from toktier.folding.reasons import Fallback
from toktier.folding.records import NOTHING, Lists, Record, equal_states
from toktier.folding.sites import Read
from toktier.folding.strict import plain
from toktier.folding.tracker import Tracker, Untold
from toktier.template_limit import OverLimit

MAX_STATE = 4096
"""Characters, items and keys that one carried attribute may hold; the loop runs in full beyond that."""

_INTEGERS = list(range(1 << 12))
_ITERATORS = frozenset({GeneratorType, type({}.keys()), type({}.values()), type({}.items()), type(reversed([]))})
_ABSENT = Undefined
"""Stands for an attribute that a namespace does not have (a class: no template can put it there)."""


class Runner:
    """Runs the loops of one render. ``records`` are not changed. ``iterations``: how many have run. ``deadline``: a
    time of `time.perf_counter`, looked at before each of them."""

    def __init__(
        self, tracker: Tracker, records: dict[int, Record], lists: Lists, pure: frozenset[int], deadline: float
    ) -> None:
        self.tracker = tracker
        self.deadline = deadline
        self.records = records
        self.changes: dict[int, Change] = {}
        """By number, of the loops that have run."""
        self.iterations = 0
        self._lists = lists
        self._pure = pure

    def run(
        self,
        plan: LoopPlan,
        body: Macro,
        evaluated: tuple[Any, ...],
        spaces: tuple[Any, ...],
        collectors: tuple[Macro, ...],
    ) -> tuple[Change, bool]:
        """What becomes of the loop's record, and whether it ran backwards. Leaves the namespaces as the loop would."""
        source = self.tracker.taken.pop(plan.number)
        items, backwards = _sequence(plan, source)
        cells = {
            name: space._Namespace__attrs
            for name, space in zip(plan.namespaces, spaces, strict=True)
            if type(space) is Namespace
        }
        keys = tuple(key for key in plan.attributes if key[0] in cells)
        record = self.records.get(plan.number)
        known = record is not None and record.keys == keys
        if record is None or not known:
            record = Record(plan, keys)
        elif record.items is items and record.broke is None and not (keys or plan.sites or plan.lookups):
            # Nothing but the items is read, and they are what they were: the loop over the tools, in most templates.
            change = self.changes[plan.number] = Change(record, items, record.slots, record.outer)
            change.values = record.values
            return change, backwards
        slots, values, outer = self._sites(plan, record, items, evaluated)
        change = Change(record, items, slots, outer)
        walk = _Walk(self, plan, change, body, backwards, cells)
        self.tracker.lookups = record.lookups
        self.tracker.collectors = dict(zip(plan.lookups, collectors, strict=True))
        touched = record.touched(plan, slots, values, outer, self._lists, self._pure) if known else None
        looked_up = self._looked_up(record, slots) if plan.lookups else ()
        if touched is not None and looked_up:
            touched = sorted({*touched, *looked_up})
        self.tracker.open(plan, items, slots, values, backwards)
        walk.run(touched)
        change.values = self.tracker.values
        self.tracker.close()
        self.changes[plan.number] = change
        return change, backwards

    def _sites(
        self, plan: LoopPlan, record: Record, items: list[Any], evaluated: tuple[Any, ...]
    ) -> tuple[list[Any], dict[int, Any], dict[int, Any]]:
        """What the sites are today: lists by slot, values and outer names by number."""
        slots: list[Any] = [items]
        values: dict[int, Any] = {}
        outer: dict[int, Any] = {}
        for site, value in zip(plan.sites, evaluated, strict=True):
            if site.read is Read.LIST:
                slots.append(value)
            elif site.read is Read.OUTER:
                outer[site.number] = _rest_of(value, plan) if type(value) is Namespace else value
            elif site.number in record.values:
                values[site.number] = value
        for number, value in values.items():
            if value is not record.values[number]:
                self.tracker.admit(number, value)
        for number, value in outer.items():
            if value is not record.outer.get(number, UNWRITTEN):
                self.tracker.admit(number, value)
        for old, new in zip(record.slots, slots, strict=True):
            self._admit_list(old, new)
        return slots, values, outer

    def _looked_up(self, record: Record, slots: list[Any]) -> list[int]:
        """Brings the indexes up to date; the places whose look-ups may have another outcome."""
        lookups = record.lookups
        for (number, slot), index in list(lookups.indexes.items()):
            new = slots[slot]
            if type(new) is not list:
                lookups.owe((number, slot), None)
                del lookups.indexes[number, slot]
                continue
            region = self._lists.region(index.items, new)
            if region != NOTHING:
                lookups.owe((number, slot), index.update(new, region, partial(self.tracker.collect, number)))
        size = min(len(slots[0]), len(record.chunks))
        return [place for place in lookups.touched() if place < size]

    def _admit_list(self, old: Any, new: Any) -> None:
        """Positions of a list are noted one by one, so what is new in it must be plain by itself."""
        if type(new) is not list or self.tracker.is_vouched(new):
            return
        region = self._lists.region(old, new) if type(old) is list else (0, len(new))
        if not all(map(plain, new[region[0] : region[1]])):
            raise Untold(Fallback.STATEFUL, "list")


def _rest_of(space: Namespace, plan: LoopPlan) -> dict[str, Any]:
    """What a body can read of a namespace besides the attributes that are carried."""
    carried = {attribute for _, attribute in plan.attributes}
    return {name: value for name, value in space._Namespace__attrs.items() if name not in carried}


def _sequence(plan: LoopPlan, source: Any) -> tuple[list[Any], bool]:
    """What the loop runs over, by place, and whether it runs backwards."""
    kind = type(source)
    if kind is list:
        return source, plan.backwards
    if kind is range and not plan.backwards and source.step in (1, -1):
        up = source if source.step == 1 else source[::-1]
        if not up or (up.start >= 0 and up.stop <= 1 << 24):
            while len(_INTEGERS) < up.stop:
                _INTEGERS.extend(range(len(_INTEGERS), 2 * len(_INTEGERS)))
            return _INTEGERS[up.start : up.stop], source.step == -1  # the same objects each time
    if kind is Undefined and not plan.backwards:
        return list(source), False
    if kind is tuple or kind is str:
        return list(source), plan.backwards
    if kind is dict and not plan.backwards:
        return list(source), False
    if kind in _ITERATORS and not plan.breaks:
        # The loop reads it to its end. The body does not see it meanwhile: `Tracker.admit` would raise.
        return list(source), False
    raise Untold(Fallback.SEQUENCE, kind.__name__)


class _Walk:
    """One loop of one render. A step is a place in the order in which the loop runs."""

    def __init__(
        self,
        runner: Runner,
        plan: LoopPlan,
        change: Change,
        body: Macro,
        backwards: bool,
        cells: dict[str, dict[str, Any]],
    ) -> None:
        self.runner = runner
        self.change = change
        self.record = record = change.record
        self.body = body._func
        self.items = change.items
        self.backwards = backwards
        self.places = [(cells[name], attribute) for name, attribute in record.keys]
        self.read = [at for at, key in enumerate(record.keys) if key in plan.read]
        self.unread = [at for at, key in enumerate(record.keys) if key not in plan.read]
        for value in self._now(range(len(self.places))):
            _check_state(value, None)

    def _now(self, attributes: Iterable[int]) -> tuple[Any, ...]:
        places = self.places
        return tuple([places[at][0].get(places[at][1], _ABSENT) for at in attributes])

    def run(self, touched: list[int] | None) -> None:
        change, record, size = self.change, self.record, len(self.items)
        old, broke = len(record.chunks), record.broke
        now = self._now(self.read)
        steps: Iterable[int] = range(size)
        settled = False
        if touched is not None:
            before: tuple[Any, ...] | None = record.initial
            if self.backwards and old > size:
                before = record.states[size] if self.read else ()
            settled = before is not None and equal_states(before, now, self.runner._pure)
            steps = self._due(touched, size, old, broke)
        if self.backwards and 0 < old < size:
            # What was the first iteration found the initial state; now the one at place ``old`` comes before it.
            change.expected[old] = record.initial
        change.initial = now
        if self.places:
            self._walk(steps, settled)
        else:
            self._each(steps)

    def _due(self, touched: Sequence[int], size: int, old: int, broke: int | None) -> Iterable[int]:
        """The steps that must run, in order: of the places that were touched, of those that are new, and of those
        beyond the last break (``broke``), of which there are no records."""
        if not self.backwards:
            open_from = min(size, old if broke is None else broke)
            return chain((step for step in touched if step < open_from), range(open_from, size))
        open_from = size if broke is None else max(0, size - 1 - broke)
        steps = (size - 1 - place for place in reversed(touched))
        return chain(range(size - old), (step for step in steps if step < open_from), range(open_from, size))

    def _each(self, steps: Iterable[int]) -> None:
        """Where nothing is carried: every iteration finds what it found, whatever the others do."""
        items, backwards, body, change = self.items, self.backwards, self.body, self.change
        runner, tracker = self.runner, self.runner.tracker
        chunks, texts, runs = self.record.chunks, change.texts, change.runs
        old_size, last, deadline = len(chunks), len(items) - 1, runner.deadline
        for step in steps:
            place = last - step if backwards else step
            if perf_counter() > deadline:
                raise OverLimit("time")
            tracker.start(place)
            text = body(items[place])
            runner.iterations += 1
            # As `Change.put`, which takes a tenth of the time of a short body.
            old = chunks[place] if place < old_size else ""
            if text != old:
                texts[place] = text
                change.chars += len(text) - len(old)
                if place < change.first_changed:
                    change.first_changed = place
            runs.append((place, (), tracker.mask, tracker.low, tracker.high, tracker.made))
            if tracker.broke:
                change.stop(place, backwards)
                return

    def _walk(self, steps: Iterable[int], settled: bool) -> None:
        size = len(self.items)
        step = 0
        due = iter(steps)
        following = next(due, size)
        while step < size:
            while following < step:
                following = next(due, size)
            if settled and step < following:
                self._skip(step, following)
                step = following
                continue
            place = size - 1 - step if self.backwards else step
            settled = self._iterate(place)
            if self.runner.tracker.broke:
                self.change.stop(place, self.backwards)
                return
            step += 1

    def _iterate(self, place: int) -> bool:
        """Runs one iteration; True if the state after it is what it was."""
        change, tracker = self.change, self.runner.tracker
        item = self.items[place]
        saved = []
        for at in self.unread:
            cell, name = self.places[at]
            saved.append(cell.get(name, _ABSENT))
            cell[name] = UNWRITTEN
        if perf_counter() > self.runner.deadline:
            raise OverLimit("time")
        tracker.start(place)
        text = self.body(item)
        self.runner.iterations += 1
        for at, value in zip(self.unread, saved, strict=True):
            cell, name = self.places[at]
            now = cell[name]
            change.wrote(at, place, now)
            if now is not UNWRITTEN:
                _check_state(now, item)
            elif value is _ABSENT:
                del cell[name]
            else:
                cell[name] = value
        after = self._now(self.read) if self.read else ()
        for value in after:
            _check_state(value, item)
        change.put(place, text, after, tracker.mask, tracker.low, tracker.high, tracker.made)
        if not after:
            return True
        before = change.state_before(place)
        return before is not None and equal_states(before, after, self.runner._pure)

    def _skip(self, start: int, end: int) -> None:
        """The steps [start, end) find what they found: their effects again."""
        size, record = len(self.items), self.record
        low, high = (size - end, size - start) if self.backwards else (start, end)
        state = record.states[low if self.backwards else high - 1]
        assert state is not None
        for at, value in zip(self.read, state, strict=True):
            cell, name = self.places[at]
            if value is _ABSENT:
                cell.pop(name, None)
            else:
                cell[name] = value
        for at in self.unread:
            writer = record.last_writer(at, low, high, self.backwards)
            if writer is not None:
                cell, name = self.places[at]
                cell[name] = record.written[at][writer]


def _check_state(value: Any, item: Any) -> None:
    """Raises `Untold` for what cannot be kept for every iteration."""
    kind = type(value)
    if kind is bool or kind is int or value is None or value is _ABSENT or value is item:
        return
    if kind is str:
        if len(value) > MAX_STATE:
            raise Untold(Fallback.STATE, "long")
        return
    if not plain(value) or _weight(value) > MAX_STATE:
        raise Untold(Fallback.STATE, kind.__name__)


def _weight(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is list or kind is tuple:
        return 1 + sum(map(_weight, value))
    if kind is dict:
        return 1 + sum(len(key) + _weight(one) for key, one in value.items())
    return 1
