"""Keys and what was put under each, latest last: the maps of the session store.

Invariants:
 - Putting, removing and asking for the latest cost the same however much lies under a key: thousands of conversations
   begin with one system prompt. (A dict keeps the order of putting and forgets any of its keys at once.)
 - Nearly all keys have one value, and then there is nothing but the value: a container would cost a third more.
"""

from __future__ import annotations

from itertools import islice
from typing import Generic, TypeVar, cast

T = TypeVar("T")
"""Hashable, and no dict."""


class Index(Generic[T]):
    """Not thread-safe."""

    __slots__ = ("_held",)

    def __init__(self) -> None:
        self._held: dict[bytes, T | dict[T, None]] = {}

    def __contains__(self, key: bytes) -> bool:
        return key in self._held

    def __len__(self) -> int:
        """How many pairs of key and value there are."""
        return sum(len(held) if isinstance(held, dict) else 1 for held in self._held.values())

    def __bool__(self) -> bool:
        return bool(self._held)

    def add(self, key: bytes, value: T) -> None:
        """``value`` must not be under ``key`` yet."""
        held = self._held.get(key)
        if held is None:
            self._held[key] = value
        elif isinstance(held, dict):
            held[value] = None
        else:
            self._held[key] = {held: None, value: None}

    def remove(self, key: bytes, value: T) -> None:
        """Raises `KeyError` where ``value`` is not under ``key``."""
        held = self._held[key]
        if isinstance(held, dict):
            del held[value]
            if len(held) == 1:
                self._held[key] = next(iter(held))
        elif held is value:
            del self._held[key]
        else:
            raise KeyError(key)

    def latest(self, key: bytes, count: int) -> list[T]:
        """The last ``count`` values that were put under ``key``, or all, in the order of putting."""
        held = self._held.get(key)
        if held is None:
            return []
        if isinstance(held, dict):
            return list(islice(reversed(cast("dict[T, None]", held)), count))[::-1]
        return [held]

    def popitem(self) -> None:
        """Forget all values of some key."""
        self._held.popitem()
