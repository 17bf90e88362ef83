"""A JSON object's value and the places of its top-level members, from one pass (`toktier.json_pieces`).

Members can then be added, replaced or removed in the original bytes without touching any other byte.

Invariants
1. ``parse(raw).value == json.loads(raw)`` for every UTF-8 object that json.loads accepts (NaN, big integers, last of
   duplicate keys included), and `parse` refuses what json.loads refuses. vLLM and SGLang read bodies with json.loads.
2. `Parsed.edit` of an object whose members are m1..mn gives an object whose members are the kept ones, in order, with
   their own bytes, followed by the added ones.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from json.decoder import JSONDecodeError
from typing import Any

from toktier.json_pieces import JsonLimits, JsonReader, TooManyValues

_BOM = "\ufeff"
_DECODE = 512 << 10
"""Bytes that are decoded at once: at most about a millisecond."""
_LIMITS = JsonLimits()
MAX_MEMBERS = 10_000
"""Members of the object itself. They are read one by one, and no request has more than some dozens."""


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

    def values_of(self, name: str) -> Iterator[Any]:
        """The value of each member of this name, where `value` has the last one only."""
        reader = JsonReader(self.text, _LIMITS)
        for member in self.members:
            if member.name == name:
                yield reader.value(reader.name(member.start)[1], 2)[0]

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


def parse(raw: bytes, limits: JsonLimits = _LIMITS, within_s: float | None = None) -> Parsed:
    """Parse a UTF-8 JSON object (a byte order mark is allowed, as json.loads allows it).

    Raises ValueError (JSONDecodeError, UnicodeDecodeError, too many digits) for what is no JSON, `TooDeep` and
    `TooManyValues` for what is beyond ``limits``, `NotAnObject` for another JSON value, and `TakesLong` after
    ``within_s`` seconds, where that is given.
    """
    deadline = None if within_s is None else time.perf_counter() + within_s
    text = _decode(raw)
    reader = JsonReader(text, limits, deadline)
    i = reader.skip(1 if text.startswith(_BOM) else 0)
    if not text.startswith("{", i):
        _end(text, reader.skip(reader.value(i)[1]))
        raise NotAnObject("not a JSON object")
    value: dict[str, Any] = {}
    members: list[Member] = []
    i = reader.skip(i + 1)
    if not text.startswith("}", i):
        while True:
            name, start = reader.name(i)
            value[name], end = reader.value(start, 2)
            members.append(Member(name, i, end))
            if len(members) > MAX_MEMBERS:
                raise TooManyValues
            i = reader.skip(end)
            if text.startswith("}", i):
                break
            if not text.startswith(",", i):
                raise JSONDecodeError("Expecting ',' delimiter", text, i)
            i = reader.skip(i + 1)
    _end(text, reader.skip(i + 1))
    return Parsed(raw, text, value, tuple(members))


def _end(text: str, end: int) -> None:
    if end != len(text):
        raise JSONDecodeError("Extra data", text, end)


def _decode(raw: bytes) -> str:
    """``raw`` as UTF-8, in pieces: the decoder keeps the interpreter to itself. Raises UnicodeDecodeError."""
    if len(raw) <= _DECODE or raw.isascii():
        return raw.decode("utf-8")
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        pieces = [decoder.decode(raw[start : start + _DECODE]) for start in range(0, len(raw), _DECODE)]
        return "".join([*pieces, decoder.decode(b"", True)])
    except UnicodeDecodeError:
        return raw.decode("utf-8")  # fails too, and knows the place in the whole
