"""What is kept of a loop from one render to the next, and which iterations a change can have touched.

A `Record` holds, for every iteration that ran, its text, the state after it, and what it read. Iterations are known by
their place, counted from the start of what the loop runs over (also where it runs backwards), so that a list that grows
at its end leaves the places as they are. What a render makes of it is a `toktier.folding.change.Change`; until that is
committed the record is the last render's.

Invariants (between renders)
1. Place p holds what the iteration printed and wrote when it last ran, and it has not read anything since that differs
   today; or it lies beyond a ``break`` and holds nothing.
2. ``states[p]``: the attributes that the loop both writes and reads, after the iteration. ``writers`` and ``written``:
   for each attribute that it only writes, the places at which it did, sorted, and what it wrote there.
3. ``void``: the places beyond the ``break`` of the last render.
4. ``chunks[p][starts[n][p]:ends[n][p]]`` is what stretch n (`stretches`) prints for ``items[p]``; a start below zero
   where the iteration did not come by it.
5. ``ahead[slot]``: the places that have read beyond the end of the slot's list: those that its growth touches.

Arrays are numpy's, so that "which iterations have read beyond n" costs a nanosecond an iteration.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from sys import getsizeof
from typing import Any

import numpy as np

from toktier.folding.indexes import Lookups
from toktier.folding.plan import LoopPlan
from toktier.folding.sites import Read
from toktier.folding.strict import common_suffix, first_difference, same
from toktier.folding.tracker import FAR, UNREAD

Key = tuple[str, str]
Reads = tuple[list[int], list[int]]
"""The lowest and the highest position that an iteration has read, of each slot."""
Mark = tuple[int, int, int, int]
"""A stretch, an iteration, and where the one lies in the text of the other."""
Region = tuple[int, int]
"""Where two lists differ: [low, high). (0, 0) where they do not."""

NOTHING: Region = (0, 0)
_NO_READS: Reads = ([], [])
_FEW = 12
"""Iterations whose notes are written one by one: numpy's way costs some microseconds for any number."""


class Lists:
    """Differences of pairs of lists in one render. ``known``: (old, new, first difference), from whoever made them."""

    def __init__(self, known: tuple[list[Any], list[Any], int] | None) -> None:
        self._known = known
        self._found: dict[tuple[int, int], Region] = {}

    def region(self, old: list[Any], new: list[Any]) -> Region:
        if old is new:
            return NOTHING
        key = (id(old), id(new))
        found = self._found.get(key)
        if found is None:
            found = self._found[key] = self._compare(old, new)
        return found

    def _compare(self, old: list[Any], new: list[Any]) -> Region:
        known = self._known
        first = known[2] if known and old is known[0] and new is known[1] else first_difference(old, new)
        if len(old) != len(new):
            return first, FAR + 1
        return (first, len(new) - common_suffix(old, new)) if first < len(new) else NOTHING


class Record:
    __slots__ = (
        "ahead",
        "broke",
        "chars",
        "chunks",
        "ends",
        "high",
        "initial",
        "items",
        "keys",
        "large",
        "lookups",
        "low",
        "mask",
        "nbytes",
        "outer",
        "slots",
        "starts",
        "states",
        "tail",
        "values",
        "void",
        "writers",
        "written",
    )

    def __init__(self, plan: LoopPlan, keys: tuple[Key, ...]) -> None:
        """``keys``: the attributes of namespaces that exist outside of the loop, in the order of the states."""
        self.keys = keys
        self.items: list[Any] = []
        self.chunks: list[str] = []
        self.states: list[tuple[Any, ...] | None] = []
        self.initial: tuple[Any, ...] = ()
        self.writers: list[list[int]] = [[] for _ in keys]
        self.written: list[dict[int, Any]] = [{} for _ in keys]
        self.values: dict[int, Any] = {}
        self.outer: dict[int, Any] = {}
        self.slots: list[Any] = [self.items] + [None] * len(plan.slots)
        self.lookups = Lookups()
        self.broke: int | None = None
        self.large = 0
        """How much the states hold beyond small values, or held in earlier renders."""
        self.tail: int | None = None
        """The place of the last iteration, where the state after it is one too large to be kept otherwise."""
        self.void = NOTHING
        self.chars = 0
        self.nbytes = 0
        """That the chunks hold."""
        self.starts = [array("i") for _ in range(plan.stretches)]
        self.ends = [array("i") for _ in range(plan.stretches)]
        self.ahead: list[set[int]] = [set() for _ in self.slots]
        self.mask = np.zeros(16, np.uint64)
        self.low = np.full((1 + len(plan.slots), 16), FAR + 1, np.int32)
        self.high = np.full((1 + len(plan.slots), 16), UNREAD, np.int32)

    def clone(self) -> Record:
        """An independent record. What never changes (items, values, texts) is shared."""
        other = Record.__new__(Record)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other.chunks, other.states = self.chunks.copy(), self.states.copy()
        other.writers = [places.copy() for places in self.writers]
        other.written = [values.copy() for values in self.written]
        other.lookups = self.lookups.clone()
        other.ahead = [places.copy() for places in self.ahead]
        other.starts, other.ends = [one[:] for one in self.starts], [one[:] for one in self.ends]
        other.mask, other.low, other.high = self.mask.copy(), self.low.copy(), self.high.copy()
        return other

    @property
    def state_bytes(self) -> int:
        """About the bytes that states hold beyond small values."""
        tail = () if self.tail is None else self.states[self.tail] or ()
        return self.large + sum(getsizeof(value) for value in tail if type(value) is str)

    # --- size ------------------------------------------------------------------------------------------------------

    def resize(self, size: int) -> None:
        old = len(self.chunks)
        if size < old:
            self.forget(size, old)
            del self.chunks[size:], self.states[size:]
            for places in (*self.starts, *self.ends):
                del places[size:]
        elif size > old:
            self.chunks.extend([""] * (size - old))
            self.states.extend([None] * (size - old))
            for places in (*self.starts, *self.ends):
                places.extend([UNREAD] * (size - old))
            if size > len(self.mask):
                more = size + size // 8 + 16 - len(self.mask)
                self.mask = np.concatenate([self.mask, np.zeros(more, np.uint64)])
                rows = len(self.low)
                self.low = np.concatenate([self.low, np.full((rows, more), FAR + 1, np.int32)], axis=1)
                self.high = np.concatenate([self.high, np.full((rows, more), UNREAD, np.int32)], axis=1)

    def forget(self, low: int, high: int) -> None:
        """The iterations at [low, high) did not take place."""
        chunks = self.chunks[low:high]
        if any(chunks):
            self.chars -= sum(map(len, chunks))
            self.nbytes -= sum(map(getsizeof, chunks)) - len(chunks) * getsizeof("")
            self.chunks[low:high] = [""] * (high - low)
        self.states[low:high] = [None] * (high - low)
        self.mask[low:high] = 0
        self.low[:, low:high] = FAR + 1
        self.high[:, low:high] = UNREAD
        self.lookups.forget(low, high)
        for places in self.starts:
            places[low:high] = array("i", [UNREAD]) * (high - low)
        for writers, written in zip(self.writers, self.written, strict=True):
            start, end = bisect_left(writers, low), bisect_left(writers, high)
            for place in writers[start:end]:
                del written[place]
            del writers[start:end]

    # --- one iteration ---------------------------------------------------------------------------------------------

    def put(self, texts: Mapping[int, str]) -> None:
        """What iterations print, by place."""
        chunks = self.chunks
        old = [chunks[place] for place in texts]
        new = texts.values()
        self.chars += sum(map(len, new)) - sum(map(len, old))
        self.nbytes += sum(map(getsizeof, new)) - sum(map(getsizeof, old))
        for place, text in texts.items():
            chunks[place] = text

    def noted(self, places: Sequence[int], masks: Sequence[int], reads: Mapping[int, Reads]) -> None:
        """What the iterations at ``places`` have read: those that are not in ``reads`` no position of a list."""
        if len(places) > _FEW:
            where = np.array(places)
            self.mask[where] = np.array(masks, np.uint64)
            self.low[:, where] = FAR + 1
            self.high[:, where] = UNREAD
            if reads:
                where = np.array([*reads])
                both = np.array([*reads.values()], np.int32)  # by iteration, end and slot
                self.low[:, where], self.high[:, where] = both[:, 0].T, both[:, 1].T
            return
        low, high = self.low, self.high
        for place, mask in zip(places, masks, strict=True):
            self.mask[place] = mask
            lows, highs = reads.get(place, _NO_READS)
            if not lows:
                low[:, place], high[:, place] = FAR + 1, UNREAD
            for slot, (first, last) in enumerate(zip(lows, highs, strict=True)):
                low[slot, place] = first
                high[slot, place] = last

    def read_ahead(self, slots: Sequence[Any], places: Sequence[int]) -> None:
        """Before ``slots`` become this record's, and after what the iterations at ``places`` have read is noted."""
        count = len(self.chunks)
        for slot, (old, new) in enumerate(zip(self.slots, slots, strict=True)):
            if type(new) is not list:
                continue
            size, high = len(new), self.high[slot]
            if type(old) is list and len(old) <= size and len(places) <= _FEW:
                # Nobody else has read as far.
                both = (*self.ahead[slot], *places)
                self.ahead[slot] = {place for place in both if place < count and high[place] >= size}
            else:
                self.ahead[slot] = set((high[:count] >= size).nonzero()[0].tolist())

    def printed(self, places: Iterable[int], marks: Iterable[Mark]) -> None:
        """Where the stretches of the iterations at ``places`` lie; those that are not in ``marks`` were not met."""
        for starts in self.starts:
            for place in places:
                starts[place] = UNREAD
        for number, place, start, end in marks:
            self.starts[number][place] = start
            self.ends[number][place] = end

    def wrote(self, attribute: int, place: int, value: Any) -> None:
        written = self.written[attribute]
        if place not in written:
            writers = self.writers[attribute]
            writers.insert(bisect_left(writers, place), place)
        written[place] = value

    def did_not_write(self, attribute: int, place: int) -> None:
        if self.written[attribute].pop(place, self) is not self:
            writers = self.writers[attribute]
            del writers[bisect_left(writers, place)]

    def last_writer(self, attribute: int, low: int, high: int, backwards: bool) -> int | None:
        """Of the places [low, high), the one that wrote last, in the order in which the loop runs."""
        writers = self.writers[attribute]
        if backwards:
            found = bisect_left(writers, low)
            return writers[found] if found < len(writers) and writers[found] < high else None
        found = bisect_left(writers, high) - 1
        return writers[found] if found >= 0 and writers[found] >= low else None

    # --- what a change touches -------------------------------------------------------------------------------------

    def touched(
        self,
        plan: LoopPlan,
        slots: list[Any],
        values: Mapping[int, Any],
        outer: Mapping[int, Any],
        lists: Lists,
        pure: frozenset[int],
    ) -> list[int] | None:
        """The places whose iterations must run again, sorted; None: all of them. ``slots[0]`` is what the loop runs
        over now, ``values`` the sites that some iteration has evaluated, evaluated today."""
        for number, value in outer.items():
            if not same(self.outer.get(number, self), value, pure):
                return None
        size = min(len(self.chunks), len(slots[0]))
        places: set[int] = set()
        region = lists.region(self.items, slots[0])
        places.update(range(region[0], min(region[1], size)))
        regions: list[Region] = []
        for slot, (old, new) in enumerate(zip(self.slots, slots, strict=True)):
            if type(old) is list and type(new) is list:
                regions.append(lists.region(old, new))
            elif same(old, new, pure):
                regions.append(NOTHING)
            else:
                regions.append((0, FAR + 1))
                number = next(one for one, place in plan.slots.items() if place == slot)
                self._askers(places, plan.bits[number], 0, size)
        self._readers(places, regions, size)
        for site in plan.sites:
            if site.number not in values:
                continue
            before, now = self.values[site.number], values[site.number]
            if same(before, now, pure):
                continue
            low, high = 0, size
            if site.read is Read.THRESHOLD and type(before) is int and type(now) is int:
                base = self._base(plan)
                low = max(0, min(before, now) - site.offset - base)
                high = min(size, max(before, now) - site.offset - base + 1)
            self._askers(places, plan.bits[site.number], low, high)
        return sorted(places)

    def _base(self, plan: LoopPlan) -> int:
        """The item at place 0 of a loop over a range; where that changed, every item did."""
        return self.items[0] if plan.ranged and self.items and type(self.items[0]) is int else 0

    def _readers(self, places: set[int], regions: Sequence[Region], size: int) -> None:
        """Who has read where the lists of the slots differ."""
        for slot, region in enumerate(regions):
            if region == NOTHING:
                continue
            old = self.slots[slot]
            if region[1] > FAR and type(old) is list and region[0] == len(old):
                places.update(place for place in self.ahead[slot] if place < size)
                continue
            found = self.high[slot, :size] >= region[0]
            if region[1] <= FAR:  # else who has read anything has read below it
                found &= self.low[slot, :size] < region[1]
            places.update(found.nonzero()[0].tolist())

    def _askers(self, places: set[int], bit: int, low: int, high: int) -> None:
        if low < high:
            asked = self.mask[low:high] & np.uint64(bit)
            places.update((asked.nonzero()[0] + low).tolist())

    def text_before(self, count: int) -> int:
        """Characters of the first ``count`` chunks, counted from the nearer end."""
        if count * 2 <= len(self.chunks):
            return sum(map(len, self.chunks[:count]))
        return self.chars - sum(map(len, self.chunks[count:]))


def equal_states(a: Iterable[Any], b: Iterable[Any], pure: frozenset[int]) -> bool:
    for x, y in zip(a, b, strict=True):  # noqa: SIM110 - a generator takes twice the time
        if x is not y and not same(x, y, pure):
            return False
    return True
