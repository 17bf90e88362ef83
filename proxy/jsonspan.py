"""A JSON object's value and the places of its top-level members, from one pass of Python's own C scanner.

Members can then be added, replaced or removed in the original bytes without touching any other byte.

Invariants
1. ``parse(raw).value == json.loads(raw)`` for every UTF-8 object that json.loads accepts (NaN, big integers, last of
   duplicate keys included), and `parse` refuses what json.loads refuses. vLLM and SGLang read bodies with json.loads.
2. `Parsed.edit` of an object whose members are m1..mn gives an object whose members are the kept ones, in order, with
   their own bytes, followed by the added ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any

_SCAN = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_SPACE = re.compile(r"[ \t\n\r]*").match
_BOM = "\ufeff"


class NotAnObject(ValueError):
    """The text is JSON, but not an object."""


@dataclass(frozen=True, slots=True)
class Member:
    """``name`` and the span from its opening quote to the end of its value, in characters of the text."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Parsed:
    """A JSON object: its bytes, its value, and where its members stand."""

    raw: bytes
    text: str
    value: dict[str, Any]
    members: tuple[Member, ...]

    @property
    def repeats(self) -> bool:
        """Whether a name stands more than once at the top level."""
        return len(self.members) != len(self.value)

    def edit(self, remove: Collection[str] = (), add: Iterable[tuple[str, bytes]] = ()) -> bytes:
        """The object's bytes without the members named in ``remove`` and with ``add`` (name, JSON) at the end."""
        cuts = self._cuts(remove) if remove else []
        kept = len(self.members) - sum(m.name in remove for m in self.members)
        # Between the last member and the end of the text there is only white space and the brace: one byte each.
        last = self.members[-1].end if self.members else self.text.index("{") + 1
        insert = len(self.raw) - (len(self.text) - last)
        pieces: list[bytes] = []
        position = 0
        for start, end in cuts:
            pieces.append(self.raw[position:start])
            position = end
        pieces.append(self.raw[position:insert])
        for name, value in add:
            pieces += [b"," if kept else b"", json.dumps(name).encode(), b":", value]
            kept += 1
        pieces.append(self.raw[insert:])
        return b"".join(pieces)

    def _cuts(self, remove: Collection[str]) -> list[tuple[int, int]]:
        """Byte spans to leave out, ascending: each removed member with one comma beside it."""
        spans = []
        first_kept = True
        for i, member in enumerate(self.members):
            if member.name not in remove:
                first_kept = False
            elif not first_kept:
                spans.append((self.members[i - 1].end, member.end))
            elif i + 1 < len(self.members):
                spans.append((member.start, self.members[i + 1].start))
            else:
                spans.append((member.start, member.end))
        return [(self._byte(start), self._byte(end)) for start, end in spans]

    def _byte(self, character: int) -> int:
        return character if len(self.raw) == len(self.text) else len(self.text[:character].encode())


def parse(raw: bytes) -> Parsed:
    """Parse a UTF-8 JSON object (a byte order mark is allowed, as json.loads allows it).

    Raises ValueError (JSONDecodeError, UnicodeDecodeError, too many digits) for what is no JSON, RecursionError for
    what is nested too deeply, and `NotAnObject` for another JSON value.
    """
    text = raw.decode("utf-8")
    start = _SPACE(text, 1 if text.startswith(_BOM) else 0).end()  # type: ignore[union-attr]
    if not text.startswith("{", start):
        json.loads(text[1:] if text.startswith(_BOM) else text)
        raise NotAnObject("not a JSON object")
    value: dict[str, Any] = {}
    members: list[Member] = []
    i = _SPACE(text, start + 1).end()  # type: ignore[union-attr]
    if text.startswith("}", i):
        return _finish(raw, text, value, members, i + 1)
    while True:
        if not text.startswith('"', i):
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, i)
        name, j = scanstring(text, i + 1, True)
        j = _SPACE(text, j).end()  # type: ignore[union-attr]
        if not text.startswith(":", j):
            raise JSONDecodeError("Expecting ':' delimiter", text, j)
        j = _SPACE(text, j + 1).end()  # type: ignore[union-attr]
        try:
            value[name], end = _SCAN(text, j)
        except StopIteration as stop:
            raise JSONDecodeError("Expecting value", text, stop.value) from None
        members.append(Member(name, i, end))
        i = _SPACE(text, end).end()  # type: ignore[union-attr]
        if text.startswith("}", i):
            return _finish(raw, text, value, members, i + 1)
        if not text.startswith(",", i):
            raise JSONDecodeError("Expecting ',' delimiter", text, i)
        i = _SPACE(text, i + 1).end()  # type: ignore[union-attr]


def _finish(raw: bytes, text: str, value: dict[str, Any], members: list[Member], end: int) -> Parsed:
    end = _SPACE(text, end).end()  # type: ignore[union-attr]
    if end != len(text):
        raise JSONDecodeError("Extra data", text, end)
    return Parsed(raw, text, value, tuple(members))
