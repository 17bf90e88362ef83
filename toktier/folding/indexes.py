"""What the items of a list hold that look-ups search for, and who has looked up what.

Invariants
1. ``keys[p]`` are the strings that the collector (`scans`) puts down for the item at p; ``at[key]`` are the places that
   have the key, sorted.
2. `Lookups` has, for each look-up and key, the iterations whose last run made it: an iteration is touched by a change
   of the list exactly if an item that changed has, or had, a key that it looked up.
3. An index belongs to ``items``, whatever became of the render that it was brought up to date for. What changed in it
   since the iterations last ran is owed to them (`Lookups.owe`) until a render is kept (`Lookups.settle`).
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Scan = tuple[int, int]
"""Number of the look-up, and the slot of its list."""


class Index:
    def __init__(self) -> None:
        self.items: list[Any] = []
        self._keys: list[tuple[str, ...]] = []
        self._at: dict[str, list[int]] = {}

    def clone(self) -> Index:
        other = Index()
        other.items, other._keys = self.items, self._keys.copy()
        other._at = {key: places.copy() for key, places in self._at.items()}
        return other

    def update(self, items: list[Any], region: tuple[int, int], collect: Callable[[Any], Iterable[str]]) -> set[str]:
        """Brings the index up to ``items``, which differ from what it has in ``region``; the keys of what changed."""
        low = min(region[0], len(self._keys))
        old_end, new_end = min(region[1], len(self._keys)), min(region[1], len(items))
        # Before anything changes: it may raise.
        fresh = [tuple(dict.fromkeys(collect(items[place]))) for place in range(low, new_end)]
        changed: set[str] = set()
        for place in range(low, old_end):
            for key in self._keys[place]:
                changed.add(key)
                self._at[key].remove(place)
        self._keys[low:old_end] = fresh
        for place, keys in enumerate(fresh, low):
            for key in keys:
                changed.add(key)
                insort(self._at.setdefault(key, []), place)
        for key in changed:
            if not self._at[key]:
                del self._at[key]
        self.items = items
        return changed

    def places(self, key: str) -> list[int]:
        return list(self._at.get(key, ()))


class Lookups:
    """Of one loop."""

    def __init__(self) -> None:
        self.indexes: dict[Scan, Index] = {}
        self._users: dict[tuple[Scan, str], set[int]] = {}
        self._made: dict[int, Sequence[tuple[Scan, str]]] = {}
        self._owed: dict[Scan, set[str] | None] = {}

    def clone(self) -> Lookups:
        other = Lookups()
        other._owed = {scan: None if keys is None else keys.copy() for scan, keys in self._owed.items()}
        other.indexes = {scan: index.clone() for scan, index in self.indexes.items()}
        other._users = {one: places.copy() for one, places in self._users.items()}
        other._made = self._made.copy()
        return other

    @property
    def any(self) -> bool:
        """Whether some iteration has looked something up."""
        return bool(self._made)

    def put(self, place: int, made: Sequence[tuple[Scan, str]]) -> None:
        """The iteration at ``place`` ran, and looked these up."""
        for one in self._made.pop(place, ()):
            self._users[one].discard(place)
            if not self._users[one]:
                del self._users[one]
        if made:
            self._made[place] = made
            for one in made:
                self._users.setdefault(one, set()).add(place)

    def forget(self, low: int, high: int) -> None:
        if self._made:
            for place in range(low, high):
                self.put(place, ())

    def owe(self, scan: Scan, keys: Iterable[str] | None) -> None:
        """Whoever looked up one of these keys, or anything where it is None, is to run again."""
        owed = self._owed.setdefault(scan, set())
        self._owed[scan] = None if owed is None or keys is None else owed.union(keys)

    def touched(self) -> set[int]:
        """The places that are to run again for what is owed to them."""
        places = set[int]()
        for scan, keys in self._owed.items():
            if keys is None:
                places |= {place for place, made in self._made.items() if any(one == scan for one, _ in made)}
            else:
                places |= {place for key in keys for place in self._users.get((scan, key), ())}
        return places

    def settle(self) -> None:
        """All that was owed has been done."""
        self._owed.clear()
