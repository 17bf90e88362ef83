"""A JSON object's value and the places of its top-level members, from one pass (`toktier.json_pieces`).

Members can then be added, replaced or removed in the original bytes without touching any other byte, and a body that
repeats most of this one can be read beside it (`proxy.beside`).

Invariants
1. ``parse(in_utf8(raw)).value == json.loads(raw)`` for every object that json.loads accepts (NaN, big integers, last of
   duplicate keys included; but for lone surrogates outside of escapes, which no tokenizer can take), and what is
   refused there is refused here. vLLM and SGLang read bodies with json.loads.
2. `Parsed.pieces` of an object whose members are m1..mn are an object whose members are the kept ones, in order, with
   their own bytes, followed by the added ones.
3. All places are bytes of ``raw``.
"""

from __future__ import annotations

import codecs
import json
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from json.decoder import JSONDecodeError
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.json_pieces import CONTAINER, JsonLimits, JsonReader, TooManyValues
from toktier.known import Run

_BOM = "\ufeff"
_DECODE = 512 << 10
"""Bytes that are decoded at once: at most about a millisecond."""
_LIMITS = JsonLimits()
MAX_MEMBERS = 10_000
"""Members of the object itself. They are read one by one, and no request has more than some dozens."""
MESSAGES = "messages"
"""The member whose elements' places are kept."""

Buffer = bytes | memoryview
Places = npt.NDArray[np.int64]


class NotAnObject(ValueError):
    """The text is JSON, but not an object."""


@dataclass(frozen=True, slots=True)
class Member:
    """``name`` and the span from its opening quote to the end of its value."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Listed:
    """Where the elements of `MESSAGES` stand: ``[starts[i], ends[i])``; ``start`` is behind the opening bracket and
    ``end`` before the closing one."""

    start: int
    end: int
    starts: Places
    ends: Places


@dataclass(frozen=True, slots=True)
class Parsed:
    """A JSON object: its bytes, its value, and where its members stand."""

    raw: bytes
    outline: dict[str, Any]
    """The value; a message that is in `shared` is None here."""
    members: tuple[Member, ...]
    limits: JsonLimits
    """That it was read within."""
    weight: int
    """Values that it has, counted as `JsonLimits` counts them, or more."""
    listed: Listed | None
    """None where there is no such member, or more than one, where it holds anything but objects, or too many."""
    read: int
    """Bytes that were parsed for it."""
    shared: tuple[Run, ...] = ()
    """Messages that have the bytes of messages of the body that this one was read beside, and were not read again."""
    head: int = 0
    tail: int = 0
    """Bytes at the start and at the end, around the list of messages, that are that body's."""

    @property
    def value(self) -> dict[str, Any]:
        """The whole value. Where something is `shared` all of it is read again."""
        return parse(self.raw, self.limits).outline if self.shared else self.outline

    @property
    def repeats(self) -> bool:
        """Whether a name stands more than once at the top level."""
        return len(self.members) != len(self.outline)

    def fresh(self) -> Iterator[tuple[int, int]]:
        """Spans that are not the earlier body's, in order; some may be empty. All there is without one."""
        position = self.head
        listed = self.listed
        for run in self.shared:
            assert listed is not None
            yield position, int(listed.starts[run.at])
            position = int(listed.ends[run.at + run.size - 1])
        yield position, len(self.raw) - self.tail

    def values_of(self, name: str) -> Iterator[Any]:
        """The value of each member of this name, where `outline` has the last one only."""
        for member in self.members:
            if member.name == name:
                reader = JsonReader(self.raw[member.start : member.end].decode(), _LIMITS)
                yield reader.value(reader.name(0)[1], 2)[0]

    def edit(self, remove: Collection[str] = (), add: Iterable[tuple[str, Sequence[Buffer]]] = ()) -> bytes:
        """`pieces`, joined."""
        return b"".join(self.pieces(remove, add))

    def pieces(self, remove: Collection[str] = (), add: Iterable[tuple[str, Sequence[Buffer]]] = ()) -> list[Buffer]:
        """The object's bytes without the members named in ``remove`` and with ``add`` (name, JSON) at the end.

        To be written one after the other. Those of the body itself are views of it.
        """
        raw = memoryview(self.raw)
        kept = len(self.members) - sum(m.name in remove for m in self.members)
        insert = self.members[-1].end if self.members else self.raw.index(b"{") + 1
        pieces: list[Buffer] = []
        position = 0
        for start, end in self._cuts(remove) if remove else ():
            pieces.append(raw[position:start])
            position = end
        pieces.append(raw[position:insert])
        for name, value in add:
            pieces += [(b"," if kept else b"") + json.dumps(name).encode() + b":", *value]
            kept += 1
        pieces.append(raw[insert:])
        return pieces

    def _cuts(self, remove: Collection[str]) -> list[tuple[int, int]]:
        """Spans to leave out, ascending: each removed member with one comma beside it."""
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
        return spans


def is_utf8(raw: bytes) -> bool:
    """Whether ``raw`` begins as JSON in UTF-8 does, by the rule of json.loads."""
    return json.detect_encoding(raw).startswith("utf-8")


def in_utf8(raw: bytes) -> bytes:
    """``raw``, or the same text in UTF-8 where it is UTF-16 or UTF-32: json.loads takes them, so engines do.

    Raises UnicodeDecodeError.
    """
    if is_utf8(raw):
        return raw
    text = _decode(raw, json.detect_encoding(raw))
    return b"".join(text[start : start + _DECODE].encode() for start in range(0, len(text), _DECODE))


def parse(raw: bytes, limits: JsonLimits = _LIMITS, within_s: float | None = None) -> Parsed:
    """Parse a UTF-8 JSON object (a byte order mark is allowed, as json.loads allows it).

    Raises ValueError (JSONDecodeError, UnicodeDecodeError, too many digits) for what is no JSON, `TooDeep` and
    `TooManyValues` for what is beyond ``limits``, `NotAnObject` for another JSON value, and `TakesLong` after
    ``within_s`` seconds, where that is given.
    """
    deadline = None if within_s is None else time.perf_counter() + within_s
    text = _decode(raw)
    weight = weight_of(raw, limits)
    reader = JsonReader(text, limits, deadline, few=weight <= limits.values)
    i = reader.skip(1 if text.startswith(_BOM) else 0)
    if not text.startswith("{", i):
        _end(text, reader.skip(reader.value(i)[1]))
        raise NotAnObject("not a JSON object")
    value: dict[str, Any] = {}
    members: list[Member] = []
    places: list[tuple[int, int]] = []
    array = (0, 0)
    i = reader.skip(i + 1)
    if not text.startswith("}", i):
        while True:
            name, start = reader.name(i)
            if name == MESSAGES and text.startswith("[", start):
                value[name], places, end = reader.elements(start, 2)
                array = start, end
            else:
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
    inner = [place for both in places for place in both]
    known = array[1] and len(members) == len(value) and len(places) == len(value[MESSAGES])
    if not known or not all(type(one) is dict for one in value[MESSAGES]):
        array, inner = (0, 0), []
    outer = [place for member in members for place in (member.start, member.end)]
    all_places = {*outer, *inner, *array}
    at = {place: place for place in all_places} if len(text) == len(raw) else in_bytes(raw, all_places)
    listed = None
    if array[1]:
        both = np.array([at[place] for place in inner], np.int64).reshape(-1, 2)
        listed = Listed(at[array[0]] + 1, at[array[1]] - 1, both[:, 0].copy(), both[:, 1].copy())
    told = tuple(Member(one.name, at[one.start], at[one.end]) for one in members)
    return Parsed(raw, value, told, limits, weight, listed, len(raw))


def in_bytes(raw: bytes, places: Collection[int]) -> dict[int, int]:
    """For each of some places in the text, counted in characters, the place in its UTF-8 form ``raw``."""
    wanted = np.array(sorted(places), np.int64)
    found = np.full(len(wanted), len(raw), np.int64)  # where the end is wanted
    before = 0
    for start in range(0, len(raw), _DECODE):
        piece = np.frombuffer(raw, np.uint8, min(_DECODE, len(raw) - start), start)
        first = np.flatnonzero((piece & 0xC0) != 0x80)  # of each character
        low, high = wanted.searchsorted((before, before + len(first)))
        found[low:high] = start + first[wanted[low:high] - before]
        before += len(first)
    return dict(zip(wanted.tolist(), found.tolist(), strict=True))


def weight_of(raw: bytes, limits: JsonLimits) -> int:
    """Values in ``raw``, counted as `JsonLimits` counts them, or more: what stands in strings is counted with the rest.

    One stands at the start or after a bracket, a comma or a colon; a container counts as `CONTAINER`.
    """
    most = CONTAINER * len(raw)
    if most <= limits.values:
        return most
    weight = 1
    for start in range(0, len(raw), _DECODE):
        piece = np.frombuffer(raw, np.uint8, min(_DECODE, len(raw) - start), start)
        weight += int(np.count_nonzero(piece == ord(",")) + np.count_nonzero(piece == ord(":")))
        # a brace is a bracket and one bit more
        weight += CONTAINER * int(np.count_nonzero((piece & 0xDF) == ord("[")))
    return weight


def _end(text: str, end: int) -> None:
    if end != len(text):
        raise JSONDecodeError("Extra data", text, end)


def _decode(raw: bytes, encoding: str = "utf-8") -> str:
    """``raw`` as text, in pieces: the decoder keeps the interpreter to itself. Raises UnicodeDecodeError."""
    if len(raw) <= _DECODE or (encoding == "utf-8" and raw.isascii()):
        return raw.decode(encoding)
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        pieces = [decoder.decode(raw[start : start + _DECODE]) for start in range(0, len(raw), _DECODE)]
        return "".join([*pieces, decoder.decode(b"", True)])
    except UnicodeDecodeError:
        return raw.decode(encoding)  # fails too, and knows the place in the whole
