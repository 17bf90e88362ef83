"""A body read beside an earlier one: what has the same bytes is not read again, and only the rest is parsed.

A client sends its whole conversation with every turn. What changes is the end of the list of messages, now and then a
message in it, and hardly ever what stands before and after the list. So the three parts are compared apart: bytes
before the list, the messages, bytes after it.

Invariant: `read` gives what `proxy.jsonspan.parse` gives for the same bytes, but for messages that ``before`` has too,
which `Parsed.shared` names; or None. None costs time only: whoever gets it parses the whole. Why the values are the
same:

1. A scanner of JSON goes from left to right, and where a value begins at p, an object's end and value follow from the
   bytes from p up to the brace that closes it. So where the bytes of a whole object stand at p again, and a value
   begins at p, it is that object, and what comes next begins behind it. All messages of ``before`` are objects; of the
   other members also arrays and strings are taken over, which end by themselves too. Numbers and names do not.
2. Everything else is read by `JsonReader`, in a piece of the text that goes on for longer than the value. A value that
   is not complete in the piece is read again in a longer one, at last to the end of the body. What cannot be read is
   left to `parse`, which says what is wrong.
3. The bytes taken over were UTF-8 and stood between quotes and brackets, so they were whole characters; all other bytes
   are decoded, strictly.
4. Limits: nesting is a property of each value and of where it stands, which is the same. Values are counted by a bound
   (`Parsed.weight`): the earlier body's, and what is read anew or stands once more. Where that is over the limit there
   is None.
5. A body that names a member twice gives None.
"""

from __future__ import annotations

import codecs
import re
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import repeat
from json.decoder import JSONDecodeError
from typing import Any

import numpy as np

from proxy.displaced import Displaced
from proxy.jsonspan import MAX_MEMBERS, MESSAGES, Listed, Member, Parsed, Places, in_bytes, weight_of
from toktier.errors import TakesLong
from toktier.fingerprint import agreed
from toktier.json_pieces import PIECE, PLACES, JsonLimits, JsonReader
from toktier.known import Run

_WINDOW = 32 << 10
_HEAD = 4096
"""Bytes by which what stands before the list may have grown."""
_AT_ONCE = 64 << 10
"""Bytes around the list that are looked at for a caller without much time: nothing in between looks at the clock."""
_NEAR = (0, -1, 1, 2, 3)
"""Which of the old messages, from the expected one on, are likely to come next: after an insertion the one before it,
after deletions one behind it."""
_space = re.compile(rb"[ \t\n\r]*").match


class _Unlike(Exception):
    """The body is to be parsed as a whole."""


def read(raw: bytes, before: Parsed, limits: JsonLimits, within_s: float | None = None) -> Parsed | None:
    """``raw`` read beside ``before``, or None. Raises `TakesLong` after ``within_s`` seconds, where that is given."""
    if before.listed is None or before.limits != limits:
        return None
    deadline = None if within_s is None else time.perf_counter() + within_s
    try:
        return _Reading(raw, before, before.listed, limits, deadline).parsed()
    except (_Unlike, ValueError, RecursionError):
        return None


def common_prefix(a: bytes, at: int, b: memoryview, bt: int, most: int) -> int:
    """How many bytes are the same from ``at`` and ``bt`` on, at most ``most`` (and what there is)."""
    most = min(most, len(a) - at, len(b) - bt)
    if a.startswith(b[bt : bt + most], at):
        return most
    return agreed(most, lambda m, n: a.startswith(b[bt + m : bt + n], at + m))


def common_suffix(a: bytes, a_end: int, b: memoryview, b_end: int, most: int) -> int:
    """How many bytes are the same before ``a_end`` and ``b_end``, at most ``most`` (and what there is)."""
    return agreed(min(most, a_end, b_end), lambda m, n: a.endswith(b[b_end - n : b_end - m], 0, a_end - m))


class _Reading:
    def __init__(self, raw: bytes, before: Parsed, listed: Listed, limits: JsonLimits, deadline: float | None) -> None:
        self.raw, self.before, self.listed = raw, before, listed
        self.limits, self.deadline = limits, deadline
        self.old = before.raw
        self.view = memoryview(before.raw)
        """For `bytes.startswith` and `endswith`: no copy is made. (`==` of two views is a hundred times slower.)"""
        self.messages: list[Any] = []
        self.starts: list[Places] = []
        self.ends: list[Places] = []
        self.runs: list[Run] = []
        self.window = _Window(raw, limits, deadline)
        self.number = next(k for k, member in enumerate(before.members) if member.name == MESSAGES)
        self.read = 0
        """Bytes parsed."""
        self.same_head = self.same_tail = 0
        self._equal_from: int | None = None
        self._led = 0
        """Leading old messages that stand here again."""
        self._ended = False
        """Whether the last run ends with the last old message."""
        self._jumped = False
        """Whether an old message was found elsewhere than expected."""
        self._displaced: Displaced | None = None

    def parsed(self) -> Parsed:
        members, value, name_at, start = self._head()
        end = self._list(start)
        value[MESSAGES] = self.messages
        members.append(Member(MESSAGES, name_at, end + 1))
        self._tail(end, members, value)
        if len(members) != len(value) or len(members) > MAX_MEMBERS:
            raise _Unlike
        none = np.empty(0, np.int64)
        starts, ends = np.concatenate([none, *self.starts]), np.concatenate([none, *self.ends])
        listed = Listed(start, end, starts, ends)
        runs, head, tail = tuple(self.runs), self.same_head, self.same_tail
        made = Parsed(self.raw, value, tuple(members), self.limits, 0, listed, self.read, runs, head, tail)
        spans = [*made.fresh(), *self._repeated(starts, ends)]
        weight = self.before.weight + sum(weight_of(self.raw[a:b], self.limits) for a, b in spans)
        if weight > self.limits.values:
            weight = weight_of(self.raw, self.limits)
            if weight > self.limits.values:
                raise _Unlike
        return replace(made, weight=weight)

    def _repeated(self, starts: Places, ends: Places) -> Iterator[tuple[int, int]]:
        """Where old messages stand that may stand elsewhere as well: the old weight counts them once."""
        known = 0
        for run in self.runs:
            if run.old < known:
                yield int(starts[run.at]), int(ends[run.at + run.size - 1])
            known = max(known, run.old + run.size)

    # before the list

    def _head(self) -> tuple[list[Member], dict[str, Any], int, int]:
        """Members before the list, their values, where the list's name begins, and where the list's first bracket
        ends."""
        before, start = self.before, self.listed.start
        if self.raw.startswith(self.view[:start]):
            self.same_head = start
            known = list(before.members[: self.number])
            return known, {one.name: self._old(one) for one in known}, before.members[self.number].start, start
        self._in_time_for(start)
        text = _cut(self.raw[: start + _HEAD])
        reader = JsonReader(text, self.limits, self.deadline)
        found: list[tuple[str, int, int]] = []
        value: dict[str, Any] = {}
        at = reader.skip(0)
        _expect(text, at, "{")
        while True:
            at = reader.skip(at + 1)
            name, begins = reader.name(at)
            if name == MESSAGES:
                _expect(text, begins, "[")
                break
            value[name], end = reader.value(begins, 2)
            found.append((name, at, end))
            at = reader.skip(end)
            _expect(text, at, ",")
        self.read += begins
        places = in_bytes(self.raw[: start + _HEAD], {at, begins, *(place for one in found for place in one[1:])})
        return [Member(n, places[a], places[b]) for n, a, b in found], value, places[at], places[begins] + 1

    # the list

    def _list(self, start: int) -> int:
        """Reads the messages; where the closing bracket stands."""
        raw, listed = self.raw, self.listed
        at = self._skip(start)
        if raw[at : at + 1] == b"]":
            return at
        expected = 0
        while True:
            found = self._same(at, expected)
            if found is not None:
                self._in_time_for(0)
                old, count = found
                shift = at - int(listed.starts[old])
                self.runs.append(Run(len(self.messages), old, count))
                if old <= self._led:
                    self._led = max(self._led, old + count)
                self._ended = old + count == len(listed.starts)
                self.messages += repeat(None, count)
                self.starts.append(listed.starts[old : old + count] + shift)
                self.ends.append(listed.ends[old : old + count] + shift)
                expected = old + count
                at = int(self.ends[-1][-1])
            else:
                message, end = self.window.read(at)
                self.read += end - at
                self.messages.append(message)
                self.starts.append(np.array((at,), np.int64))
                self.ends.append(np.array((end,), np.int64))
                expected += 1
                at = end
            if len(self.messages) > PLACES:
                raise _Unlike
            at = self._skip(at)
            following = raw[at : at + 1]
            if following == b"]":
                return at
            if following != b",":
                raise _Unlike
            at = self._skip(at + 1)

    def _same(self, at: int, expected: int) -> tuple[int, int] | None:
        """Old messages that stand at ``at`` again: the first one, and how many."""
        starts = self.listed.starts
        for step in _NEAR:
            if count := self._standing(at, expected + step):
                return expected + step, count
        place = self._from_the_end(at)
        if place is not None:
            number = int(starts.searchsorted(place))
            if number < len(starts) and int(starts[number]) == place:
                return number, len(starts) - number
        if self._ended and not self._jumped:
            return None  # what comes after the last one is new
        if self._displaced is None:
            self._displaced = Displaced(self.old, starts, self._led)
        self._in_time_for(0)
        for number in self._displaced.like(self.raw, at, expected):
            if count := self._standing(at, number):
                self._jumped = True
                return number, count
        return None

    def _standing(self, at: int, number: int) -> int:
        """How many old messages, from this one on, stand at ``at``."""
        starts, ends = self.listed.starts, self.listed.ends
        if not 0 <= number < len(starts):
            return 0
        begins = int(starts[number])
        if not self.raw.startswith(self.view[begins : int(ends[number])], at):
            return 0
        common = common_prefix(self.raw, at, self.view, begins, int(ends[-1]) - begins)
        return int(ends.searchsorted(begins + common, "right")) - number

    def _from_the_end(self, at: int) -> int | None:
        """The old place that corresponds to ``at`` counted from the list's end, if all is the same from there on."""
        raw, end = self.raw, self.listed.end
        ends = len(raw) - (len(self.old) - end)
        if self._equal_from is None:
            self._equal_from = len(raw)
            if ends > at and raw.endswith(self.view[end:]):
                most = min(ends - at, end - self.listed.start)
                self._equal_from = ends - common_suffix(raw, ends, self.view, end, most)
        return end - (ends - at) if self._equal_from <= at < ends else None

    # after the list

    def _tail(self, end: int, members: list[Member], value: dict[str, Any]) -> None:
        raw, old, before = self.raw, self.old, self.before
        known = before.members[self.number + 1 :]
        if len(raw) - end == len(old) - self.listed.end and raw.endswith(self.view[self.listed.end :]):
            self.same_tail = len(raw) - end
            shift = end - self.listed.end
            for one in known:
                members.append(Member(one.name, one.start + shift, one.end + shift))
                value[one.name] = self._old(one)
            return
        self._in_time_for(len(raw) - end)
        text = raw[end + 1 :].decode()
        reader = JsonReader(text, self.limits, self.deadline)
        likely = iter(known)
        at, byte = reader.skip(0), end + 1
        char = 0
        while text.startswith(",", at):
            at = reader.skip(at + 1)
            char, byte = at, byte + len(text[char:at].encode())
            old_one = next(likely, None)
            if old_one is not None and self._stands(old_one, byte):
                length = old_one.end - old_one.start
                name = old_one.name
                value[name] = self._old(old_one)
                at += len(raw[byte : byte + length].decode())
            else:
                name, begins = reader.name(at)
                value[name], at = reader.value(begins, 2)
                length = len(text[char:at].encode())
                self.read += length
            members.append(Member(name, byte, byte + length))
            if len(members) > MAX_MEMBERS:
                raise _Unlike
            char, byte = at, byte + length
            at = reader.skip(at)
        _expect(text, at, "}")
        if reader.skip(at + 1) != len(text):
            raise _Unlike

    def _skip(self, at: int) -> int:
        """Where what is no white space begins, from ``at`` on."""
        end = _space(self.raw, at, at + PIECE).end()  # type: ignore[union-attr]
        while end - at == PIECE:
            self._in_time_for(0)
            at = end
            end = _space(self.raw, at, at + PIECE).end()  # type: ignore[union-attr]
        return end

    def _in_time_for(self, size: int) -> None:
        """Raises `TakesLong` where there is no time left, or not enough for so many bytes."""
        if self.deadline is not None and (size > _AT_ONCE or time.perf_counter() > self.deadline):
            raise TakesLong("JSON")

    def _old(self, one: Member) -> Any:
        """The value of an old member: of the object that was kept, or read again from the same bytes."""
        kept = self.before.outline
        if one.name in kept:
            return kept[one.name]
        self._in_time_for(one.end - one.start)
        reader = JsonReader(self.old[one.start : one.end].decode(), self.limits, self.deadline)
        self.read += one.end - one.start
        return reader.value(reader.name(0)[1], 2)[0]

    def _stands(self, one: Member, place: int) -> bool:
        """Whether an old member stands at ``place`` again, and ends by itself."""
        old = self.old
        ends = old[one.end - 1 : one.end] in (b'"', b"]", b"}")
        return ends and self.raw.startswith(self.view[one.start : one.end], place)


class _Window:
    """A piece of the body as text, in which objects are read."""

    def __init__(self, raw: bytes, limits: JsonLimits, deadline: float | None) -> None:
        self._raw, self._limits, self._deadline = raw, limits, deadline
        self._start = self._end = 0
        """Bytes of the body that the text stands for; a character that is cut at the end is left out."""
        self._known = (0, 0)
        """A place as a byte of the body and as a character of the text."""

    def read(self, at: int) -> tuple[Any, int]:
        """The object that begins at byte ``at``, and where it ends."""
        if self._raw[at : at + 1] != b"{":
            raise _Unlike
        if not self._known[0] <= at < self._end:
            self._open(at, _WINDOW)
        while True:
            byte, char = self._known
            char += at - byte if self._ascii else len(self._raw[byte:at].decode())
            try:
                value, end = self._reader.value(char, 3)
            except (JSONDecodeError, RecursionError):
                if self._end == len(self._raw):
                    raise
                self._open(at, _WINDOW if self._start != at else 4 * (self._end - self._start))
                continue
            length = end - char if self._ascii else len(self._text[char:end].encode())
            self._known = at + length, end
            return value, at + length

    def _open(self, at: int, size: int) -> None:
        self._start, self._end = at, min(at + size, len(self._raw))
        piece = self._raw[at : self._end]
        self._text = _cut(piece) if self._end < len(self._raw) else piece.decode()
        self._ascii = len(self._text) == len(piece)
        self._reader = JsonReader(self._text, self._limits, self._deadline)
        self._known = at, 0


def _cut(piece: bytes) -> str:
    """``piece`` as text, without a character that is cut at its end. Raises UnicodeDecodeError for any other bytes."""
    return codecs.getincrementaldecoder("utf-8")().decode(piece)


def _expect(text: str, at: int, character: str) -> None:
    if not text.startswith(character, at):
        raise _Unlike
