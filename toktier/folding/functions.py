"""What a rewritten body calls where it reads something from outside its iteration (see `tracker`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jinja2
from jinja2.runtime import Context, Macro
from jinja2.sandbox import MAX_RANGE, safe_range

from toktier.folding import loop_object
from toktier.folding.indexes import Index
from toktier.folding.notes import ANY_LIST
from toktier.folding.reasons import Fallback
from toktier.folding.strict import plain
from toktier.folding.tracker import FAR, TRACKER, Tracker, Untold, tracker_of


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
    tracker = tracker_of(context)
    part = slice(start, stop, step)
    if tracker.plan is not None:
        slot = tracker.list_slot(number, value)
        if slot >= 0:
            tracker.read(slot, *_reach(value, part))
    return value[part]  # as Jinja writes it: no item that may be undefined


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
    tracker = tracker_of(context)
    if tracker.plan is not None:
        slot = tracker.list_slot(number, value)
        if slot >= 0:
            return _walk(tracker, slot, value, range(len(value)), FAR)
    return value


def _look_up(context: Context, value: Any, number: int, scan: int, key: Any) -> Any:
    """The items in which the loop's body finds the key, in order."""
    tracker = tracker_of(context)
    if tracker.plan is None:
        return value
    slot = tracker.list_slot(number, value)
    if slot < 0 or type(key) is not str:
        return _iterate(context, value, number)
    indexes = tracker.lookups.indexes
    made = dict.fromkeys(tracker.made)
    for one in (slot, *tracker.twins.get(slot, ())):
        if (scan, one) not in indexes:
            indexes[scan, one] = Index()
            indexes[scan, one].update(value, (0, FAR), partial(tracker.collect, scan))
        made[(scan, one), key] = None
    tracker.made = tuple(made)
    return [value[place] for place in indexes[scan, slot].places(key)]


def _collect(context: Context, value: Any) -> None:
    if type(value) is str:
        tracker_of(context).collected.append(value)
    elif not plain(value):
        raise Untold(Fallback.STATEFUL, type(value).__name__)


def _iterate_slice(context: Context, value: Any, number: int, start: Any, stop: Any, step: Any) -> Any:
    tracker = tracker_of(context)
    part = slice(start, stop, step)
    if tracker.plan is not None:
        slot = tracker.list_slot(number, value)
        if slot >= 0:
            low, high = _reach(value, part)
            if part.step is not None and part.step != 1:
                tracker.read(slot, low, high)
                return value[part]
            places = range(*part.indices(len(value)))
            if (type(start) is int and start < 0) or (type(stop) is int and stop < 0):
                tracker.read(slot, low, high)
            return _walk(tracker, slot, value, places, high)
    return value[part]


def _walk(tracker: Tracker, slot: int, value: list[Any], places: range, end: int) -> Iterator[Any]:
    """The items at ``places``, read one by one; ``end`` is read where the loop comes to its end."""
    for place in places:
        tracker.read(slot, place, place)
        yield value[place]
    tracker.read(slot, min(len(value), end), end)


def _iterate_range(context: Context, value: Any, number: int, function: Any, start: Any) -> Any:
    tracker = tracker_of(context)
    size = len(value)
    if function is not safe_range or type(start) is not int or size - start > MAX_RANGE:
        raise Untold(Fallback.SEQUENCE, "range")
    slot = tracker.list_slot(number, value) if tracker.plan is not None else -1
    return safe_range(start, size) if slot < 0 else _count(tracker, slot, start, size)


def _count(tracker: Tracker, slot: int, start: int, stop: int) -> Iterator[int]:
    yield from range(start, stop)
    tracker.read(slot, stop, FAR)


def _length(context: Context, value: Any) -> int:
    tracker = tracker_of(context)
    if tracker.plan is not None:
        slot = tracker.list_slot(ANY_LIST, value)
        if slot >= 0:
            tracker.read(slot, FAR, FAR)
    return len(value)


def _whole(context: Context, value: Any) -> Any:
    tracker = tracker_of(context)
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
    tracker_of(context).taken[number] = value
    return ""


def _hold(context: Context, body: Macro, number: int) -> str:
    tracker_of(context).bodies[number] = body
    return ""


def _recall(context: Context, _: None, number: int) -> str | None:
    """What stretch ``number`` prints for the item, where that is known."""
    tracker = context.parent[TRACKER]
    kept = tracker.kept
    if kept is None:
        return None
    place = tracker.place
    items = kept.items
    if place >= len(items) or items[place] is not tracker.items[place]:
        return None
    start = kept.starts[number][place]
    if start < 0:
        return None
    text: str = kept.chunks[place][start : kept.ends[number][place]]
    tracker.printed = (*tracker.printed, (number, text))
    return text


def _remember(context: Context, text: str, number: int) -> str:
    tracker = tracker_of(context)
    tracker.printed = (*tracker.printed, (number, text))
    return text


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "\0" + function.__name__[1:]: jinja2.pass_context(function)
    for function in (
        *loop_object.FUNCTIONS,
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
        _hold,
        _recall,
        _remember,
    )
} | {"\0threshold": jinja2.pass_context(_value)}
"""By the names under which rewritten bodies call them."""
