"""What a rewritten body calls while it runs: it notes what the iteration reads.

Invariants
1. Every function returns what the template's own expression returns, whether a fold is running or not (macros are also
   called from outside of loops).
2. The positions that an iteration has read of a list lie within ``[low, high]`` of that list's slot. A position beyond
   the end, or the length, counts as read up to `FAR`: it changes when the list grows. What an iteration asks about its
   own neighbours is noted in slot 0, in places counted from the start of what the loop runs over, also where it runs
   backwards.
3. A site's bit is in ``mask`` if the iteration has evaluated it; ``values`` has the value of each site that any
   iteration of this render has evaluated.
4. No value that may change while the loop runs gets past `Tracker.admit`: it raises `Untold`.

A list that changed in ``[a, b)`` (up to `FAR` if its length did) can only make a difference to iterations with
``low < b`` and ``high >= a``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.runtime import Context, Macro, Undefined
from jinja2.sandbox import MAX_RANGE, safe_range

from toktier.folding.indexes import Index, Lookups, Scan
from toktier.folding.notes import ANY_LIST
from toktier.folding.reasons import Fallback
from toktier.folding.strict import ATOMS, is_function, plain

if TYPE_CHECKING:
    from toktier.folding.plan import LoopPlan

TRACKER = "\0tracker"
"""Where the context of a render holds its `Tracker`. No template can write the name."""

FAR = 1 << 30
"""Beyond every position of a list. With one more it fits the records' arrays of 32 bits."""
UNREAD = -1
_MISSING = object()


class Untold(Exception):
    """The incremental path cannot go on; the request is rendered in full."""

    def __init__(self, reason: Fallback, detail: str = "") -> None:
        super().__init__(reason.value)
        self.reason = reason
        self.detail = detail


class Tracker:
    """What is noted of the iteration that runs. ``plan`` is None outside of folded loops."""

    __slots__ = (
        "backwards",
        "broke",
        "collected",
        "collectors",
        "getitem",
        "high",
        "items",
        "lookups",
        "low",
        "made",
        "mask",
        "place",
        "plan",
        "size",
        "slots",
        "taken",
        "undefined",
        "values",
        "vouched",
    )

    def __init__(self, env: jinja2.Environment) -> None:
        self.getitem = env.getitem
        self.collected: list[str] = []
        self.collectors: dict[int, Macro] = {}
        self.lookups = Lookups()
        self.undefined = env.undefined
        self.plan: LoopPlan | None = None
        self.taken: dict[int, Any] = {}
        self.vouched: dict[int, Any] = {}
        """By `id`, arguments of the request that are known to be plain data."""
        self.close()

    def close(self) -> None:
        self.plan = None
        self.values: dict[int, Any] = {}
        self.slots: list[Any] = []
        self.items: list[Any] = []

    def open(self, plan: LoopPlan, items: list[Any], slots: list[Any], values: dict[int, Any], backwards: bool) -> None:
        """Before a loop. ``values``: by number, those of the sites that were evaluated before it."""
        self.plan = plan
        self.items = items
        self.size = len(items)
        self.slots = slots
        self.values = values
        self.backwards = backwards
        self.broke = False

    def start(self, place: int) -> None:
        """Before an iteration."""
        self.place = place
        self.mask = 0
        self.made: Sequence[tuple[Scan, str]] = ()
        self.low = [FAR + 1] * len(self.slots)
        self.high = [UNREAD] * len(self.slots)

    # --- notes -----------------------------------------------------------------------------------------------------

    def read(self, slot: int, low: int, high: int) -> None:
        if low < self.low[slot]:
            self.low[slot] = low
        if high > self.high[slot]:
            self.high[slot] = min(high, FAR)

    def admit(self, number: int, value: Any) -> None:
        """The first time in this render that a site's value is seen."""
        kind = type(value)
        known = kind in ATOMS or kind is Undefined or self.is_vouched(value)
        if not known and not is_function(value) and not plain(value):
            raise Untold(Fallback.STATEFUL, kind.__name__)
        self.values[number] = value

    def collect(self, number: int, item: Any) -> list[str]:
        """The strings that look-up ``number`` compares of an item."""
        plan, self.plan = self.plan, None  # the collector reads the item only
        self.collected = []
        try:
            self.collectors[number]._func(item)
        finally:
            self.plan = plan
        return self.collected

    def is_vouched(self, value: Any) -> bool:
        return self.vouched.get(id(value), _MISSING) is value

    def list_slot(self, number: int, value: Any) -> int:
        """The slot to note positions of ``value`` in, or -1 where it is noted as a whole, or need not be."""
        plan = self.plan
        assert plan is not None
        if number == ANY_LIST:  # which one it is shows by which object it is
            places = [one for one, slot in plan.slots.items() if self.slots[slot] is value]
            if not places:
                return -1
            number = places[0]
        if type(value) is list:
            return plan.slots[number]
        self.mask |= plan.bits[number]
        if number not in self.values:
            self.admit(number, value)
        return -1


def _tracker(context: Context) -> Tracker:
    return context.parent[TRACKER]  # type: ignore[no-any-return]


def _value(context: Context, value: Any, number: int) -> Any:
    tracker = context.parent[TRACKER]
    plan = tracker.plan
    if plan is not None:
        bit = plan.bits[number]
        if bit:  # else it is carried by this loop
            tracker.mask |= bit
            if number not in tracker.values:
                tracker.admit(number, value)
    return value


def _item(context: Context, value: Any, number: int, argument: Any) -> Any:
    tracker = context.parent[TRACKER]
    plan = tracker.plan
    if plan is not None:
        if number >= 0 and type(value) is list and type(argument) is int and 0 <= argument < len(value):
            # What is below, for nearly every call. The sandbox gives the item of a list as it is.
            tracker.read(plan.slots[number], argument, argument)
            return value[argument]
        slot = tracker.list_slot(number, value)
        if slot >= 0:
            if type(argument) is int and argument >= 0:
                tracker.read(slot, argument, argument)
            elif type(argument) is int:
                tracker.read(slot, max(0, len(value) + argument), FAR)
            else:
                tracker.read(slot, 0, FAR)
    return tracker.getitem(value, argument)


def _slice(context: Context, value: Any, number: int, start: Any, stop: Any, step: Any) -> Any:
    tracker = _tracker(context)
    part = slice(start, stop, step)
    if tracker.plan is not None:
        slot = tracker.list_slot(number, value)
        if slot >= 0:
            tracker.read(slot, *_reach(value, part))
    return tracker.getitem(value, part)


def _reach(value: list[Any], part: slice) -> tuple[int, int]:
    """The positions that a slice depends on."""
    start, stop, step = part.start, part.stop, part.step
    forward = step is None or (type(step) is int and step > 0)
    known = (start is None or type(start) is int) and type(stop) is int
    if forward and known and (start is None or start >= 0) and 0 <= stop <= len(value):
        return start or 0, stop - 1
    if forward and type(start) is int and start >= 0:
        return start, FAR
    return 0, FAR


def _iterate(context: Context, value: Any, number: int) -> Any:
    tracker = _tracker(context)
    if tracker.plan is not None:
        slot = tracker.list_slot(number, value)
        if slot >= 0:
            return _walk(tracker, slot, value, range(len(value)), FAR)
    return value


def _look_up(context: Context, value: Any, number: int, scan: int, key: Any) -> Any:
    """The items in which the loop's body finds the key, in order."""
    tracker = _tracker(context)
    if tracker.plan is None:
        return value
    slot = tracker.list_slot(number, value)
    if slot < 0 or type(key) is not str:
        return _iterate(context, value, number)
    one = (scan, slot)
    index = tracker.lookups.indexes.get(one)
    if index is None:
        index = tracker.lookups.indexes[one] = Index()
        index.update(value, (0, FAR), partial(tracker.collect, scan))
    tracker.made = [*tracker.made, (one, key)]
    return [value[place] for place in index.places(key)]


def _collect(context: Context, value: Any) -> None:
    if type(value) is str:
        _tracker(context).collected.append(value)
    elif not plain(value):
        raise Untold(Fallback.STATEFUL, type(value).__name__)


def _iterate_slice(context: Context, value: Any, number: int, start: Any, stop: Any, step: Any) -> Any:
    tracker = _tracker(context)
    part = slice(start, stop, step)
    if tracker.plan is not None:
        slot = tracker.list_slot(number, value)
        if slot >= 0:
            low, high = _reach(value, part)
            if part.step is not None and part.step != 1:
                tracker.read(slot, low, high)
                return tracker.getitem(value, part)
            places = range(*part.indices(len(value)))
            if (type(start) is int and start < 0) or (type(stop) is int and stop < 0):
                tracker.read(slot, low, high)
            return _walk(tracker, slot, value, places, high)
    return tracker.getitem(value, part)


def _walk(tracker: Tracker, slot: int, value: list[Any], places: range, end: int) -> Iterator[Any]:
    """The items at ``places``, read one by one; ``end`` is read where the loop comes to its end."""
    for place in places:
        tracker.read(slot, place, place)
        yield value[place]
    tracker.read(slot, min(len(value), end), end)


def _iterate_range(context: Context, value: Any, number: int, function: Any, start: Any) -> Any:
    tracker = _tracker(context)
    size = len(value)
    if function is not safe_range or type(start) is not int or size - start > MAX_RANGE:
        raise Untold(Fallback.SEQUENCE, "range")
    slot = tracker.list_slot(number, value) if tracker.plan is not None else -1
    return safe_range(start, size) if slot < 0 else _count(tracker, slot, start, size)


def _count(tracker: Tracker, slot: int, start: int, stop: int) -> Iterator[int]:
    yield from range(start, stop)
    tracker.read(slot, stop, FAR)


def _length(context: Context, value: Any) -> int:
    tracker = _tracker(context)
    if tracker.plan is not None:
        slot = tracker.list_slot(ANY_LIST, value)
        if slot >= 0:
            tracker.read(slot, FAR, FAR)
    return len(value)


def _whole(context: Context, value: Any) -> Any:
    tracker = _tracker(context)
    if tracker.plan is not None:
        slot = tracker.list_slot(ANY_LIST, value)
        if slot >= 0:
            tracker.read(slot, 0, FAR)
    return value


def _mappings(context: Context, value: Any) -> Any:
    if type(value) is not list or not all(type(one) is dict for one in value):
        raise Untold(Fallback.SEQUENCE, "not of mappings")
    return value


def _take(context: Context, value: Any, number: int) -> str:
    _tracker(context).taken[number] = value
    return ""


# --- the loop object -------------------------------------------------------------------------------------------------


def _loop_index0(context: Context, _: None) -> int:
    tracker: Tracker = context.parent[TRACKER]
    if tracker.backwards:
        tracker.read(0, FAR, FAR)
        return tracker.size - 1 - tracker.place
    return tracker.place


def _loop_index(context: Context, _: None) -> int:
    return _loop_index0(context, None) + 1


def _loop_revindex0(context: Context, _: None) -> int:
    tracker = _tracker(context)
    if tracker.backwards:
        return tracker.place
    tracker.read(0, FAR, FAR)
    return tracker.size - 1 - tracker.place


def _loop_revindex(context: Context, _: None) -> int:
    return _loop_revindex0(context, None) + 1


def _loop_length(context: Context, _: None) -> int:
    tracker = _tracker(context)
    tracker.read(0, FAR, FAR)
    return tracker.size


def _beside(context: Context, step: int, missing: str) -> Any:
    """The item after (1) or before (-1) this one in the order of the loop."""
    tracker = _tracker(context)
    place = tracker.place - step if tracker.backwards else tracker.place + step
    if place < 0:
        return tracker.undefined(missing)
    tracker.read(0, place, place)
    return tracker.items[place] if place < tracker.size else tracker.undefined(missing)


def _loop_previtem(context: Context, _: None) -> Any:
    return _beside(context, -1, "there is no previous item")


def _loop_nextitem(context: Context, _: None) -> Any:
    return _beside(context, 1, "there is no next item")


def _ends(tracker: Tracker, upper: bool) -> bool:
    """Whether this is the place at the upper end (which moves as the list grows), or place 0."""
    place = tracker.place
    if not upper:
        return place == 0
    tracker.read(0, place + 1, place + 1)
    return place == tracker.size - 1


def _loop_first(context: Context, _: None) -> bool:
    tracker: Tracker = context.parent[TRACKER]
    return _ends(tracker, tracker.backwards)


def _loop_last(context: Context, _: None) -> bool:
    tracker: Tracker = context.parent[TRACKER]
    return _ends(tracker, not tracker.backwards)


def _loop_depth(context: Context, _: None) -> int:
    return 1


def _loop_depth0(context: Context, _: None) -> int:
    return 0


def _loop_cycle(context: Context, _: None, *values: Any) -> Any:
    if not values:
        raise TypeError("no items for cycling given")
    return values[_loop_index0(context, None) % len(values)]


def _loop_break(context: Context, _: None) -> None:
    _tracker(context).broke = True


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "\0" + function.__name__[1:]: jinja2.pass_context(function)
    for function in (
        _value,
        _item,
        _slice,
        _iterate,
        _look_up,
        _collect,
        _iterate_slice,
        _iterate_range,
        _length,
        _whole,
        _mappings,
        _take,
        _loop_index0,
        _loop_index,
        _loop_revindex0,
        _loop_revindex,
        _loop_length,
        _loop_previtem,
        _loop_nextitem,
        _loop_first,
        _loop_last,
        _loop_depth,
        _loop_depth0,
        _loop_cycle,
        _loop_break,
    )
} | {"\0threshold": jinja2.pass_context(_value)}
"""By the names under which rewritten bodies call them."""
