"""Values of a log line, taken for what they should be: a log may have been damaged, or written by somebody else.

Invariant: nothing that comes out of here can change a terminal, a page or the memory that a report needs. A name is
short and printable, a number is a whole one below 2**53, and `Names` holds a bounded number of names.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

LARGEST = 2**53
OTHER = "(other)"
"""Stands for every name beyond what `Names` holds."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_LAST = (datetime.max.replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND


def name(value: Any, longest: int = 128) -> str | None:
    """A string of at most ``longest`` printable characters; what is not printable stands as its code point. None for
    anything but a string with at least one character."""
    if not isinstance(value, str) or not value:
        return None
    text: str = value if len(value) <= longest else value[: longest - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else f"<U+{ord(c):04X}>" for c in text)


def number(value: Any) -> int | None:
    """A whole number from 0 to `LARGEST`; None for anything else, True and False included."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST:
        return value
    return None


def moment(value: Any) -> int | None:
    """Microseconds since 1970 of an ISO time with an offset; None for anything else, and for times before 1970."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        return None
    since = (when - _EPOCH) // _MICROSECOND
    return since if 0 <= since <= _LAST else None


def iso(microseconds: int) -> str:
    """The moment as the log writes it, to the second."""
    when = _EPOCH + timedelta(microseconds=max(0, min(microseconds, _LAST)))
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"


class Names(Counter[str]):
    """Counts by name, for at most ``most`` names; further ones are counted under `OTHER`."""

    def __init__(self, most: int = 64) -> None:
        super().__init__()
        self._most = most

    def count(self, key: str, by: int = 1) -> None:
        """Adds ``by`` to a name."""
        if key not in self and len(self) >= self._most:
            key = OTHER
        self[key] += by

    def include(self, other: Names) -> None:
        """Adds all counts of another one."""
        for key, by in other.items():
            self.count(key, by)

    def sorted(self) -> dict[str, int]:
        """The most frequent first; names that are as frequent in their own order."""
        return dict(sorted(self.items(), key=lambda item: (-item[1], item[0])))
