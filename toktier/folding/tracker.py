"""What is noted of the iteration that runs; `functions` and `loop_object` are what a rewritten body calls to that end.

Invariants
1. Every such function returns what the template's own expression returns, whether a fold is running or not (macros are
   also called from outside of loops).
2. The positions that an iteration has read of a list lie within ``[low, high]`` of that list's slot. A position beyond
   the end, or the length, counts as read up to `FAR`: it changes when the list grows. What an iteration asks about its
   own neighbours is noted in slot 0, in places counted from the start of what the loop runs over, also where it runs
   backwards.
   A list that is in several slots today may be in one of them tomorrow. Where a macro reads it that does not know by
   which name its caller has it, it is noted in all of them (``twins``).
3. A site's bit is in ``mask`` if the iteration has evaluated it; ``values`` has the value of each site that any
   iteration of this render has evaluated.
4. No value that may change while the loop runs gets past `Tracker.admit`: it raises `Untold`.

A list that changed in ``[a, b)`` (up to `FAR` if its length did) can only make a difference to iterations with
``low < b`` and ``high >= a``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.runtime import Context, Macro, Undefined

from toktier.folding.indexes import Lookups, Scan
from toktier.folding.notes import ANY_LIST
from toktier.folding.reasons import Fallback
from toktier.folding.strict import ATOMS, is_function, plain

if TYPE_CHECKING:
    from toktier.folding.plan import LoopPlan
    from toktier.folding.records import Record

TRACKER = "\0tracker"
"""Where the context of a render holds its `Tracker`. No template can write the name."""

FAR = 1 << 30
"""Beyond every position of a list. With one more it fits the records' arrays of 32 bits."""
UNREAD = -1
_NOTHING: list[int] = []
"""Of an iteration that has read no position of any list. Never changed."""
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
        "bodies",
        "broke",
        "collected",
        "collectors",
        "getitem",
        "high",
        "items",
        "kept",
        "lookups",
        "low",
        "made",
        "mask",
        "place",
        "plan",
        "printed",
        "size",
        "slots",
        "taken",
        "twins",
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
        self.bodies: dict[int, Macro] = {}
        """By number, what loops run over, and their bodies, until they run."""
        self.vouched: dict[int, Any] = {}
        """By `id`, arguments of the request that are known to be plain data."""
        self.close()

    def close(self) -> None:
        self.plan = None
        self.values: dict[int, Any] = {}
        self.slots: list[Any] = []
        self.twins: dict[int, list[int]] = {}
        """By slot, the others with the same list, where such a list was read without a name."""
        self.items: list[Any] = []
        self.kept: Record | None = None

    def open(
        self,
        plan: LoopPlan,
        items: list[Any],
        slots: list[Any],
        values: dict[int, Any],
        backwards: bool,
        kept: Record | None,
    ) -> None:
        """Before a loop. ``values``: by number, those of the sites that were evaluated before it. ``kept``: the record
        that stretches may be taken from."""
        self.plan = plan
        self.kept = kept
        self.items = items
        self.size = len(items)
        self.slots = slots
        self.twins = {}
        self.values = values
        self.backwards = backwards
        self.broke = False

    def start(self, place: int) -> None:
        """Before an iteration."""
        self.place = place
        self.mask = 0
        self.made: Sequence[tuple[Scan, str]] = ()
        self.printed: Sequence[tuple[int, str]] = ()
        self.low = self.high = _NOTHING

    # --- notes -----------------------------------------------------------------------------------------------------

    def read(self, slot: int, low: int, high: int) -> None:
        lows = self.low
        if not lows:
            lows = self.low = [FAR + 1] * len(self.slots)
            self.high = [UNREAD] * len(self.slots)
        if low < lows[slot]:
            lows[slot] = low
        if high > self.high[slot]:
            self.high[slot] = min(high, FAR)
        if self.twins:
            for twin in self.twins.get(slot, ()):
                lows[twin] = min(low, lows[twin])
                self.high[twin] = max(min(high, FAR), self.high[twin])

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
        numbers = [number]
        if number == ANY_LIST:
            numbers = self.sites_of(value)
            if not numbers:
                return -1
        if type(value) is list:
            first, *others = [plan.slots[one] for one in numbers]
            if others:
                self.twins[first] = others
            return first
        for one in numbers:
            self.mask |= plan.bits[one]
            if one not in self.values:
                self.admit(one, value)
        return -1

    def sites_of(self, value: Any) -> list[int]:
        """The sites that a macro's argument may come from: which ones shows by which object it is, but for what is
        undefined, which is another object each time."""
        assert self.plan is not None
        slots = self.plan.slots.items()
        if type(value) is Undefined:
            return [one for one, slot in slots if type(self.slots[slot]) is Undefined]
        return [one for one, slot in slots if self.slots[slot] is value]


def tracker_of(context: Context) -> Tracker:
    return context.parent[TRACKER]  # type: ignore[no-any-return]
