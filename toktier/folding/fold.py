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

from functools import partial
from types import GeneratorType
from typing import Any

from jinja2.runtime import Macro, Undefined
from jinja2.utils import Namespace

from toktier.folding.plan import LoopPlan
from toktier.folding.reasons import Fallback
from toktier.folding.records import NOTHING, Lists, Record, equal_states
from toktier.folding.sites import Read
from toktier.folding.strict import plain
from toktier.folding.tracker import Tracker, Untold

MAX_STATE = 4096
"""Characters, items and keys that one carried attribute may hold; the loop runs in full beyond that."""

_INTEGERS = list(range(1 << 12))
_ITERATORS = frozenset({GeneratorType, type({}.keys()), type({}.values()), type({}.items()), type(reversed([]))})
_ABSENT = Undefined
"""Stands for an attribute that a namespace does not have (a class: no template can put it there)."""
_UNWRITTEN = object()


class Runner:
    """Runs the loops of one render. ``iterations``: how many have run."""

    def __init__(self, tracker: Tracker, records: dict[int, Record], lists: Lists, pure: frozenset[int]) -> None:
        self.tracker = tracker
        self.records = records
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
    ) -> tuple[Record, bool]:
        """The record of the loop, brought up to date, and whether it ran backwards. Leaves the namespaces as the loop
        would."""
        source = self.tracker.taken.pop(plan.number)
        items, backwards = _sequence(plan, source)
        cells = {
            name: space._Namespace__attrs
            for name, space in zip(plan.namespaces, spaces, strict=True)
            if type(space) is Namespace
        }
        keys = tuple(key for key in plan.attributes if key[0] in cells)
        record = self.records.pop(plan.number, None)
        known = record is not None and record.keys == keys
        if record is None or not known:
            record = Record(plan, keys)
        slots, values, outer = self._sites(plan, record, items, evaluated)
        walk = _Walk(self, plan, record, body, items, backwards, cells)
        self.tracker.lookups = record.lookups
        self.tracker.collectors = dict(zip(plan.lookups, collectors, strict=True))
        touched = record.touched(plan, slots, values, outer, self._lists, self._pure) if known else None
        looked_up = self._looked_up(record, slots)
        if touched is not None and looked_up:
            touched = sorted(looked_up.union(touched))
        self.tracker.open(plan, items, slots, values, backwards)
        walk.run(touched)
        record.items, record.slots, record.outer, record.values = items, slots, outer, self.tracker.values
        self.tracker.close()
        self.records[plan.number] = record
        return record, backwards

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
            if value is not record.outer.get(number, _UNWRITTEN):
                self.tracker.admit(number, value)
        for old, new in zip(record.slots, slots, strict=True):
            self._admit_list(old, new)
        return slots, values, outer

    def _looked_up(self, record: Record, slots: list[Any]) -> set[int]:
        """Brings the indexes up to date; the places whose look-ups may have another outcome."""
        lookups, places = record.lookups, set[int]()
        for (number, slot), index in list(lookups.indexes.items()):
            new = slots[slot]
            if type(new) is not list:
                places |= lookups.all_users((number, slot))
                del lookups.indexes[number, slot]
                continue
            region = self._lists.region(index.items, new)
            if region != NOTHING:
                changed = index.update(new, region, partial(self.tracker.collect, number))
                places |= lookups.users((number, slot), changed)
        size = len(slots[0])
        return {place for place in places if place < size}

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
    """One loop of one render."""

    def __init__(
        self,
        runner: Runner,
        plan: LoopPlan,
        record: Record,
        body: Macro,
        items: list[Any],
        backwards: bool,
        cells: dict[str, dict[str, Any]],
    ) -> None:
        self.runner = runner
        self.plan = plan
        self.record = record
        self.body = body._func
        self.items = items
        self.backwards = backwards
        self.places = [(cells[name], attribute) for name, attribute in record.keys]
        self.read = [at for at, key in enumerate(record.keys) if key in plan.read]
        self.unread = [at for at, key in enumerate(record.keys) if key not in plan.read]
        for value in self._now(range(len(self.places))):
            _check_state(value, None)

    def _now(self, attributes: Any) -> tuple[Any, ...]:
        places = self.places
        return tuple([places[at][0].get(places[at][1], _ABSENT) for at in attributes])

    def run(self, touched: list[int] | None) -> None:
        record, size, backwards = self.record, len(self.items), self.backwards
        old, broke = len(record.chunks), record.broke
        if touched is None:
            touched, settled = [*range(size)], False
        else:
            before = record.initial
            if backwards and old > size:
                before = record.states[size] if self.read else ()  # type: ignore[assignment]
            settled = before is not None and equal_states(before, self._now(self.read), self.runner._pure)
            if broke is not None:  # beyond it there are no records
                touched = sorted({*touched, *(range(min(size, broke + 1)) if backwards else range(broke, size))})
        record.resize(size)
        if backwards and 0 < old < size:
            # What was the first iteration found the initial state; now the one at place ``old`` comes before it.
            record.states[old] = record.initial
        record.first_changed = size
        record.initial = self._now(self.read)
        record.broke = None
        if old < size:
            touched = sorted({*touched, *range(old, size)})
        if backwards:
            touched = [size - 1 - place for place in reversed(touched)]
        self._walk(touched, settled)

    def _walk(self, touched: list[int], settled: bool) -> None:
        """``touched``: iterations, in order."""
        size = len(self.items)
        step = 0
        due = iter(touched)
        following = next(due, size)
        while step < size:
            while following < step:
                following = next(due, size)
            if settled and step < following:
                self._skip(step, following)
                step = following
                continue
            settled = self._iterate(size - 1 - step if self.backwards else step)
            if self.runner.tracker.broke:
                self._break(size - 1 - step if self.backwards else step)
                return
            step += 1

    def _iterate(self, place: int) -> bool:
        """Runs one iteration; True if the state after it is what it was."""
        record, tracker = self.record, self.runner.tracker
        item = self.items[place]
        saved = []
        for at in self.unread:
            cell, name = self.places[at]
            saved.append(cell.get(name, _ABSENT))
            cell[name] = _UNWRITTEN
        tracker.start(place)
        text = self.body(item)
        self.runner.iterations += 1
        for at, value in zip(self.unread, saved, strict=True):
            cell, name = self.places[at]
            now = cell[name]
            if now is not _UNWRITTEN:
                _check_state(now, item)
                record.wrote(at, place, now)
                continue
            record.did_not_write(at, place)
            if value is _ABSENT:
                del cell[name]
            else:
                cell[name] = value
        record.put(place, text)
        record.lookups.put(place, tracker.made)
        record.mask[place] = tracker.mask
        for slot, (low, high) in enumerate(zip(tracker.low, tracker.high, strict=True)):
            record.low[slot, place] = low
            record.high[slot, place] = high
        before = record.states[place]
        after = self._now(self.read)
        for value in after:
            _check_state(value, item)
        record.states[place] = after
        return not after or (before is not None and equal_states(before, after, self.runner._pure))

    def _skip(self, start: int, end: int) -> None:
        """Iterations [start, end) find what they found: their effects again."""
        size = len(self.items)
        low, high = (size - end, size - start) if self.backwards else (start, end)
        state = self.record.states[low if self.backwards else high - 1]
        assert state is not None
        for at, value in zip(self.read, state, strict=True):
            cell, name = self.places[at]
            if value is _ABSENT:
                cell.pop(name, None)
            else:
                cell[name] = value
        for at in self.unread:
            writer = self.record.last_writer(at, low, high, self.backwards)
            if writer is not None:
                cell, name = self.places[at]
                cell[name] = self.record.written[at][writer]

    def _break(self, place: int) -> None:
        self.record.broke = place
        if self.backwards:
            self.record.forget(0, place)
        else:
            self.record.forget(place + 1, len(self.items))


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
