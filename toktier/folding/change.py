"""What one render makes of a loop's record.

Invariants
1. The record is not touched before `Change.commit`: a render that is given up leaves every record as it was. (Indexes
   of look-ups are ahead then; `indexes.Lookups` remembers what is owed.)
2. Each place is put at most once. Chunks of places below ``first_changed`` are the record's.
3. ``gone``: the places beyond the ``break``, which hold nothing. Those that held nothing before cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from toktier.folding.indexes import Scan
from toktier.folding.records import NOTHING, Mark, Reads, Record
from toktier.folding.tracker import Tracker

Made = Sequence[tuple[Scan, str]]
UNWRITTEN = object()
"""Stands for the value of an attribute that an iteration did not write."""


class Change:
    """Of a loop that runs over ``size`` items now. ``chars``: of its text after the change."""

    __slots__ = (
        "_emptied", "_written", "broke", "chars", "expected", "first_changed", "gone", "initial", "items",
        "large", "made", "marks", "masks", "outer", "places", "reads", "record", "size", "slots", "states", "tail",
        "texts", "values",
    )  # fmt: skip

    def __init__(self, record: Record, items: list[Any], slots: list[Any], outer: dict[int, Any]) -> None:
        self.record = record
        self.items = items
        self.slots = slots
        self.outer = outer
        self.values: dict[int, Any] = {}
        self.size = size = len(items)
        old = len(record.chunks)
        self.chars = record.chars - sum(map(len, record.chunks[size:]))
        self.first_changed = size if size == old else min(size, old)
        self.initial: tuple[Any, ...] = ()
        self.broke: int | None = None
        self.gone = self._emptied = NOTHING
        self.expected: dict[int, tuple[Any, ...]] = {}
        """States after iterations that the record does not have, by place."""
        self.places: list[int] = []
        """The iterations that ran, and ``masks`` of what they have read, one for one."""
        self.masks: list[int] = []
        self.reads: dict[int, Reads] = {}
        self.made: dict[int, Made] = {}
        """What was looked up, by those that did."""
        self.states: dict[int, tuple[Any, ...] | None] = {}
        """After each iteration, where something is carried; None where it holds too much to be kept."""
        self.large = record.large
        self.tail: int | None = None
        """As in the record (`Record.large`, `Record.tail`)."""
        self.texts: dict[int, str] = {}
        """Those that are not the record's."""
        self.marks: list[Mark] = []
        self._written: list[tuple[int, int, Any]] = []

    # --- while the loop runs ---------------------------------------------------------------------------------------

    def state_before(self, place: int) -> tuple[Any, ...] | None:
        """The state that the iteration at ``place`` left when it last ran; None where there is none."""
        states = self.record.states
        return self.expected.get(place, states[place] if place < len(states) else None)

    def put(self, place: int, text: str, tracker: Tracker) -> None:
        """The iteration at ``place`` ran, and printed the text."""
        chunks = self.record.chunks
        old = chunks[place] if place < len(chunks) else ""
        if text != old:
            self.texts[place] = text
            self.chars += len(text) - len(old)
            if place < self.first_changed:
                self.first_changed = place
        self.places.append(place)
        self.masks.append(tracker.mask)
        if tracker.low:
            self.reads[place] = tracker.low, tracker.high
        if tracker.made:
            self.made[place] = tracker.made
        if tracker.printed:
            self.mark(place, text, tracker.printed)

    def mark(self, place: int, text: str, printed: Iterable[tuple[int, str]]) -> None:
        """Where in the text the stretches lie that the iteration came by: anywhere, as long as it is their text."""
        for number, part in printed:
            start = len(text) - len(part) if text.endswith(part) else text.find(part)
            self.marks.append((number, place, start, start + len(part)))

    def wrote(self, attribute: int, place: int, value: Any) -> None:
        """``value`` is `UNWRITTEN` where it did not."""
        self._written.append((attribute, place, value))

    def stop(self, place: int, backwards: bool) -> None:
        """The iteration at ``place`` broke: those after it did not take place."""
        record, void = self.record, self.record.void
        old = min(len(record.chunks), self.size)
        self.broke = place
        if backwards:
            self.gone = 0, place
            low, high = void[1], min(place, old)
        else:
            self.gone = place + 1, self.size
            low, high = place + 1, old if void == NOTHING else min(void[0], old)
        if low < high:
            self._emptied = low, high
            lost = sum(map(len, record.chunks[low:high]))
            if lost:
                self.chars -= lost
                self.first_changed = min(self.first_changed, low)

    # --- afterwards ------------------------------------------------------------------------------------------------

    def chunks(self) -> list[str]:
        """The loop's text by place, as it will be: a copy."""
        size, (low, high) = self.size, self._emptied
        out = self.record.chunks[:size]
        out += [""] * (size - len(out))
        out[low:high] = [""] * (high - low)
        for place, text in self.texts.items():
            out[place] = text
        return out

    def commit(self) -> Record:
        """Brings the record up to date."""
        record = self.record
        if self.items is record.items and self.slots is record.slots:
            return record  # it is what it was (`Runner.run`)
        record.resize(self.size)
        if self._emptied != NOTHING:
            record.forget(*self._emptied)
        record.void, record.broke, record.initial = self.gone, self.broke, self.initial
        record.put(self.texts)
        record.noted(self.places, self.masks, self.reads)
        record.read_ahead(self.slots, self.places)
        if record.starts:
            record.printed(self.places, self.marks)
        tail = record.tail
        if tail is not None and tail != self.tail and tail < self.size:
            record.states[tail] = None
        record.large, record.tail = self.large, self.tail
        for place, state in self.states.items():
            record.states[place] = state
        if self.made or record.lookups.any:
            for place in self.places:
                record.lookups.put(place, self.made.get(place, ()))
        for attribute, place, value in self._written:
            if value is UNWRITTEN:
                record.did_not_write(attribute, place)
            else:
                record.wrote(attribute, place, value)
        record.lookups.settle()
        record.items, record.slots, record.outer, record.values = self.items, self.slots, self.outer, self.values
        assert record.chars == self.chars, "the text that was told is not the text that is kept"
        return record
