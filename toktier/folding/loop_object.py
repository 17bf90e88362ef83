"""The ``loop`` of a folded loop: what its attributes are for the iteration that runs, and what that depends on."""

from __future__ import annotations

from typing import Any

from jinja2.runtime import Context

from toktier.folding.tracker import FAR, TRACKER, Tracker, tracker_of


def _loop_index0(context: Context, _: None) -> int:
    tracker: Tracker = context.parent[TRACKER]
    if tracker.backwards:
        tracker.read(0, FAR, FAR)
        return tracker.size - 1 - tracker.place
    return tracker.place


def _loop_index(context: Context, _: None) -> int:
    return _loop_index0(context, None) + 1


def _loop_revindex0(context: Context, _: None) -> int:
    tracker = tracker_of(context)
    if tracker.backwards:
        return tracker.place
    tracker.read(0, FAR, FAR)
    return tracker.size - 1 - tracker.place


def _loop_revindex(context: Context, _: None) -> int:
    return _loop_revindex0(context, None) + 1


def _loop_length(context: Context, _: None) -> int:
    tracker = tracker_of(context)
    tracker.read(0, FAR, FAR)
    return tracker.size


def _beside(context: Context, step: int, missing: str) -> Any:
    """The item after (1) or before (-1) this one in the order of the loop."""
    tracker = tracker_of(context)
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
    tracker_of(context).broke = True


FUNCTIONS = (
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
"""Called by these names."""
