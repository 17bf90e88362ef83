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

What is carried must be plain, and what is kept of it is bounded. Small values are kept for each iteration. A larger one
(a system prompt, say) costs once what it costs, however many iterations hand it on, as long as all of these together
are within `MAX_LARGE`. The state after an iteration beyond that is not kept, and those after it run whenever one before
them does: but for the last one, after which nothing has to run (`Record.tail`).
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
"""Characters, items and keys that one carried attribute may hold for each iteration."""
MAX_LARGE = 1 << 17
"""Characters, items and keys of larger ones that a loop may hold for all of its iterations together."""

_ITERATORS = frozenset({GeneratorType, type({}.keys()), type({}.values()), type({}.items()), type(reversed([]))})
Place = tuple[dict[str, Any], str]
"""The attributes of a namespace, and the name of one."""
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
        evaluated: tuple[Any, ...],
        spaces: tuple[Any, ...],
        collectors: tuple[Macro, ...],
    ) -> tuple[Change, bool]:
        """What becomes of the loop's record, and whether it ran backwards. Leaves the namespaces as the loop would."""
        source, body = self.tracker.taken.pop(plan.number), self.tracker.bodies.pop(plan.number)
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
        self.tracker.open(plan, items, slots, values, backwards, None if touched is None else record)
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
            if type(value) is not Undefined and value is not record.outer.get(number, UNWRITTEN):
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


_integers = list(range(1 << 12))
"""Never changed, as threads share it; a longer one takes its place."""


def _counted(low: int, high: int) -> list[int]:
    """The numbers ``[low, high)``, nearly always the same objects as before."""
    global _integers
    known = _integers
    if len(known) < high:
        known = _integers = [*known, *range(len(known), max(high, 2 * len(known)))]
    return known[low:high]


def _sequence(plan: LoopPlan, source: Any) -> tuple[list[Any], bool]:
    """What the loop runs over, by place, and whether it runs backwards."""
    kind = type(source)
    if plan.ranged and kind is not range:
        raise Untold(Fallback.SEQUENCE, "range")
    if kind is list:
        return source, plan.backwards
    if kind is range and not plan.backwards and source.step in (1, -1):
        up = source if source.step == 1 else source[::-1]
        if not up:
            return [], source.step == -1  # its ends may be below zero
        if up.start >= 0 and up.stop <= 1 << 24:
            return _counted(up.start, up.stop), source.step == -1
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
        self.read: list[Place] = []
        self.unread: list[tuple[int, Place]] = []
        """With their numbers in ``record.keys``."""
        for at, key in enumerate(record.keys):
            place = cells[key[0]], key[1]
            _large(place[0].get(key[1], _ABSENT), None)
            if key in plan.read:
                self.read.append(place)
            else:
                self.unread.append((at, place))

    def _now(self) -> tuple[Any, ...]:
        return tuple([cell.get(name, _ABSENT) for cell, name in self.read])

    def run(self, touched: list[int] | None) -> None:
        change, record, size = self.change, self.record, len(self.items)
        old, broke = len(record.chunks), record.broke
        self.before = now = self._now()
        self.held = True
        steps: Iterable[int] = range(size)
        settled = False
        if touched is None:
            change.large = 0
        else:
            before: tuple[Any, ...] | None = record.initial
            if self.backwards and old > size:
                before = record.states[size] if self.read else ()
            settled = before is not None and equal_states(before, now, self.runner._pure)
            steps = self._due(touched, size, old, broke)
        if self.backwards and 0 < old < size:
            # What was the first iteration found the initial state; now the one at place ``old`` comes before it.
            change.expected[old] = record.initial
        change.initial = now
        if record.keys:
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
        tracker, deadline = self.runner.tracker, self.runner.deadline
        chunks, texts, reads = self.record.chunks, change.texts, change.reads
        places, masks = change.places, change.masks
        old_size, last = len(chunks), len(items) - 1
        for step in steps:
            place = last - step if backwards else step
            if perf_counter() > deadline:
                raise OverLimit("time")
            tracker.start(place)
            text = body(items[place])
            # As `Change.put`, which takes a tenth of the time of a short body.
            old = chunks[place] if place < old_size else ""
            if text != old:
                texts[place] = text
                change.chars += len(text) - len(old)
                if place < change.first_changed:
                    change.first_changed = place
            places.append(place)
            masks.append(tracker.mask)
            if tracker.low:
                reads[place] = tracker.low, tracker.high
            if tracker.made:
                change.made[place] = tracker.made
            if tracker.printed:
                change.mark(place, text, tracker.printed)
            if tracker.broke:
                change.stop(place, backwards)
                break
        self.runner.iterations += len(places)

    def _walk(self, steps: Iterable[int], settled: bool) -> None:
        size = len(self.items)
        step = 0
        due = iter(steps)
        following = next(due, size)
        while step < size:
            while following < step:
                following = next(due, size)
            if settled and step < following and self._is_known(step, following):
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
        for _, (cell, name) in self.unread:
            saved.append(cell.get(name, _ABSENT))
            cell[name] = UNWRITTEN
        if perf_counter() > self.runner.deadline:
            raise OverLimit("time")
        tracker.start(place)
        text = self.body(item)
        self.runner.iterations += 1
        for (at, (cell, name)), value in zip(self.unread, saved, strict=True):
            now = cell[name]
            change.wrote(at, place, now)
            if now is not UNWRITTEN:
                change.large += _large(now, item)
                if change.large > MAX_LARGE:
                    raise Untold(Fallback.STATE, "large")
            elif value is _ABSENT:
                del cell[name]
            else:
                cell[name] = value
        change.put(place, text, tracker)
        if not self.read:
            return True
        large = 0
        for value, old in zip(after := self._now(), self.before, strict=True):
            size = _large(value, item)
            if size and not (value is old and self.held):
                large += size
        self.before, self.held = after, change.large + large <= MAX_LARGE
        if self.held:
            change.large += large
            change.states[place] = after
        elif tracker.broke or place == (0 if self.backwards else len(self.items) - 1):
            change.states[place] = after
            change.tail = place
        else:
            change.states[place] = None
        before = change.state_before(place)
        return before is not None and equal_states(before, after, self.runner._pure)

    def _is_known(self, start: int, end: int) -> bool:
        """Whether the state after the steps [start, end) is kept."""
        last = len(self.items) - end if self.backwards else end - 1
        return not self.read or self.record.states[last] is not None

    def _skip(self, start: int, end: int) -> None:
        """The steps [start, end) find what they found: their effects again."""
        size, record = len(self.items), self.record
        low, high = (size - end, size - start) if self.backwards else (start, end)
        last = low if self.backwards else high - 1
        state = record.states[last] if self.read else ()
        assert state is not None
        self.before, self.held = state, last != record.tail
        if end == size:
            self.change.tail = record.tail
        for (cell, name), value in zip(self.read, state, strict=True):
            if value is _ABSENT:
                cell.pop(name, None)
            else:
                cell[name] = value
        for at, (cell, name) in self.unread:
            writer = record.last_writer(at, low, high, self.backwards)
            if writer is not None:
                cell[name] = record.written[at][writer]


def _large(value: Any, item: Any) -> int:
    """How much a carried value holds, where that is more than `MAX_STATE`; else 0. Raises `Untold` for what is not
    plain."""
    kind = type(value)
    if kind is bool or kind is int or value is None or value is _ABSENT or value is item:
        return 0
    if kind is not str and not plain(value):
        raise Untold(Fallback.STATE, kind.__name__)
    weight = len(value) if kind is str else _weight(value)
    return weight if weight > MAX_STATE else 0


def _weight(value: Any) -> int:
    kind = type(value)
    if kind is str:
        return len(value)
    if kind is list or kind is tuple:
        return 1 + sum(map(_weight, value))
    if kind is dict:
        return 1 + sum(len(key) + _weight(one) for key, one in value.items())
    return 1
