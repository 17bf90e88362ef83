"""JSON read in pieces: what `json.loads` reads, without holding the interpreter for the whole of it.

Python's C scanner keeps the interpreter's lock from the first character of a value to the last, 6 to 125 ns a character
by what stands there. In a process that also runs an event loop that is seconds for a hostile body. Here containers that
are longer than a few thousand characters are walked in Python, which lets other threads in between any two calls of
the scanner, and strings longer than that are read in pieces.

Invariants
1. What is read equals what `json.loads` reads, repeated keys included; what it refuses is refused, and a number of more
   than `PIECE` characters too.
2. No call of the scanner reads more than `PIECE` characters.
3. A value that nests deeper, or has more values in it, than `JsonLimits` allow is refused as soon as that is seen: at
   most `PIECE` characters later.

The scanner reads from left to right and looks at most at `_AHEAD` characters behind what it consumes. So what it finds
in a cut of the text is what it would find in the text, if it ends that far from the cut. A run of elements is read at
once: where ``[`` + run + ``]`` is JSON and a comma follows the run, its elements are those that the scanner would find
one by one.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]
from typing import Any

from toktier.errors import TakesLong

__all__ = ["JsonLimits", "JsonReader", "TooDeep", "TooManyValues", "loads"]

_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined]
_space = re.compile(r"[ \t\n\r]*").match

PIECE = 32 << 10
_VALUE = 8 << 10
"""A value longer than this, in characters, is walked."""
PLACES = 20_000
"""Elements of an array that are read one by one, so that each one's place is known. Of a longer one whole runs are."""
CONTAINER = 4
"""Arrays and objects count as so many values: they take longer to make, to collect and to give back."""
_AHEAD = 16
"""A number is the one value that does not end by itself; its scanner looks at no more than "e+1" after it."""
_SHORT = 256
"""After a member shorter than this, in characters, a whole run of them is tried."""
_CONTAINERS = (dict, list)
_RUN_ENDS = ("},", "],", '",')
_HIGH = re.compile(r"\\u[dD][89abAB]").match


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """How deep containers may nest (1: a flat one), and how many values there may be; a container is `CONTAINER`."""

    depth: int = 128
    values: int = 1_000_000


class TooDeep(ValueError):
    """The text nests deeper than `JsonLimits.depth`."""


class TooManyValues(ValueError):
    """The text has more than `JsonLimits.values`."""


def loads(text: str, limits: JsonLimits) -> Any:
    """`json.loads` of ``text``, in pieces. Raises ValueError, `TooDeep` and `TooManyValues`."""
    reader = JsonReader(text, limits)
    value, end = reader.value(reader.skip(0))
    end = reader.skip(end)
    if end != len(text):
        raise JSONDecodeError("Extra data", text, end)
    return value


class JsonReader:
    """Reads values out of ``text``. ``deadline``: a time of `time.perf_counter` after which it raises `TakesLong`."""

    def __init__(self, text: str, limits: JsonLimits, deadline: float | None = None, *, few: bool = False) -> None:
        """``few``: the caller knows that there are no more values than the limit allows."""
        self._text = text
        self._size = len(text)
        self._limits = limits
        self._left = limits.values
        self._few = few or CONTAINER * self._size < limits.values
        self._deadline = deadline

    def value(self, at: int, depth: int = 1, *, long: bool = False) -> tuple[Any, int]:
        """The value that begins at ``at``, and where it ends. ``depth``: how deep it would nest as a container.
        ``long``: it is likely to be walked.

        Raises ValueError (JSONDecodeError with the place in the text, too many digits), `TooDeep`, `TooManyValues`
        and `TakesLong`.
        """
        text = self._text
        if self._deadline is not None and time.perf_counter() > self._deadline:
            raise TakesLong("JSON")
        first = text[at : at + 1]
        if first == '"':
            self.count(1)
            return self.string(at)
        if first not in ("[", "{"):
            return self._scalar(at)
        if not long:
            try:
                if self._size - at <= _VALUE:
                    value, end = _scan(text, at)
                    self._check(value, depth, at, end)
                    return value, end
                value, end = _scan(text[at : at + _VALUE], 0)
                self._check(value, depth, at, at + end)
                return value, at + end
            except StopIteration as stop:
                if self._size - at <= _VALUE:
                    raise JSONDecodeError("Expecting value", text, stop.value) from None
            except JSONDecodeError:
                if self._size - at <= _VALUE:
                    raise
            except RecursionError:
                raise TooDeep from None
        return self._array(at, depth) if first == "[" else self._object(at, depth)

    def elements(self, at: int, depth: int) -> tuple[list[Any], list[tuple[int, int]], int]:
        """The array whose bracket stands at ``at``, where each of its elements begins and ends, and where it ends.

        Of an array with more than `PLACES` elements no place is told: they are not read one by one then. Raises as
        `value`.
        """
        places: list[tuple[int, int]] = []
        found, end = self._array(at, depth, places)
        return found, places, end

    def string(self, at: int) -> tuple[str, int]:
        """The string whose opening quote stands at ``at``, and where it ends. Raises JSONDecodeError."""
        text, start = self._text, at + 1
        parts: list[str] = []
        size = _SHORT
        while True:
            stop = start + size
            if stop >= self._size:
                piece, end = scanstring(text, start, True)
                parts.append(piece)
                return "".join(parts), end
            stop = _between_escapes(text, start, stop)
            try:
                piece, end = scanstring(text[start:stop] + '"', 0, True)
            except JSONDecodeError as error:
                raise JSONDecodeError(error.msg, text, start + error.pos) from None
            parts.append(piece)
            if end <= stop - start:  # by a quote of the text, not by ours
                return "".join(parts) if len(parts) > 1 else piece, start + end
            start, size = stop, PIECE

    def count(self, values: int) -> None:
        """``values`` more were read. Raises `TooManyValues`."""
        self._left -= values
        if self._left < 0:
            raise TooManyValues

    def _scalar(self, at: int) -> tuple[Any, int]:
        text = self._text
        for size in (_SHORT, PIECE):
            try:
                value, end = _scan(text[at : at + size], 0)
            except StopIteration:
                raise JSONDecodeError("Expecting value", text, at) from None
            if end <= size - _AHEAD or self._size - at <= size:
                self.count(1)
                return value, at + end
        raise JSONDecodeError("Number too long", text, at)

    def _array(self, at: int, depth: int, places: list[tuple[int, int]] | None = None) -> tuple[list[Any], int]:
        self._enter(depth)
        text = self._text
        found: list[Any] = []
        at = self.skip(at + 1)
        if text.startswith("]", at):
            return found, at + 1
        runs = _Runs(_VALUE, 0)
        try:
            while True:
                run = self._run("[", "]", at, depth) if places is None and runs.due else None
                if run is None:
                    value, end = self.value(at, depth + 1, long=runs.last >= _VALUE)
                    found.append(value)
                    if places is not None:
                        places.append((at, end))
                        if len(places) > PLACES:
                            places.clear()
                            places = None
                else:
                    found += run[0]
                    end = run[1]
                runs.read(end - at, run is not None)
                at = self.skip(end)
                if text.startswith("]", at):
                    return found, at + 1
                if not text.startswith(",", at):
                    raise JSONDecodeError("Expecting ',' delimiter", text, at)
                at = self.skip(at + 1)
        except BaseException:
            while found:  # in pieces as well
                del found[-_VALUE:]
            raise

    def _object(self, at: int, depth: int) -> tuple[dict[str, Any], int]:
        self._enter(depth)
        text = self._text
        found: dict[str, Any] = {}
        at = self.skip(at + 1)
        if text.startswith("}", at):
            return found, at + 1
        runs = _Runs(_SHORT, 8)
        try:
            while True:
                run = self._run("{", "}", at, depth) if runs.due else None
                if run is None:
                    name, start = self.name(at)
                    found[name], end = self.value(start, depth + 1)
                else:
                    found.update(run[0])
                    end = run[1]
                runs.read(end - at, run is not None)
                at = self.skip(end)
                if text.startswith("}", at):
                    return found, at + 1
                if not text.startswith(",", at):
                    raise JSONDecodeError("Expecting ',' delimiter", text, at)
                at = self.skip(at + 1)
        except BaseException:
            while found:
                found.popitem()
            raise

    def name(self, at: int) -> tuple[str, int]:
        """The name of the member that begins at ``at``, and where its value begins. Raises JSONDecodeError."""
        text = self._text
        if not text.startswith('"', at):
            raise JSONDecodeError("Expecting property name enclosed in double quotes", text, at)
        name, end = self.string(at)
        end = self.skip(end)
        if not text.startswith(":", end):
            raise JSONDecodeError("Expecting ':' delimiter", text, end)
        return name, self.skip(end + 1)

    def skip(self, at: int) -> int:
        """Where what is no white space begins, from ``at`` on."""
        end = _space(self._text, at, at + PIECE).end()  # type: ignore[union-attr]
        while end - at == PIECE:
            at = end
            end = _space(self._text, at, at + PIECE).end()  # type: ignore[union-attr]
        return end

    def _run(self, opening: str, closing: str, at: int, depth: int) -> tuple[Any, int] | None:
        """Elements of a container at ``depth``, from ``at`` up to a comma not far away; None where none is clear."""
        window = self._text[at : at + _VALUE]
        after = next((place for mark in _RUN_ENDS if (place := window.rfind(mark) + 1)), 0)
        for end in dict.fromkeys((after, window.rfind(","))):
            if end <= 0:
                continue
            try:
                found, stop = _scan(opening + window[:end] + closing, 0)
            except (ValueError, StopIteration, RecursionError):
                continue  # it may end inside an element; what is wrong is found one by one
            if found and stop == end + 2:
                self._check(found, depth, at, at + end, itself=False)
                return found, at + end
        return None

    def _enter(self, depth: int) -> None:
        if depth > self._limits.depth:
            raise TooDeep
        self.count(CONTAINER)

    def _check(self, value: Any, depth: int, start: int, end: int, *, itself: bool = True) -> None:
        """``value``, a container that nests ``depth`` deep, was read whole from [``start``, ``end``). Counts its parts.

        ``itself``: and the container.
        """
        limit = self._limits.depth
        count = self._text.count
        if self._few and count("[", start, end) + count("{", start, end) <= limit - depth:
            return
        if depth > limit:
            raise TooDeep
        containers, values = int(itself), 0
        level = [value]
        while level:
            inner: list[Any] = []
            for container in level:
                values += len(container)
                items = container.values() if type(container) is dict else container
                found = [item for item in items if type(item) in _CONTAINERS]
                if found:
                    if depth == limit:
                        raise TooDeep
                    containers += len(found)
                    inner += found
            level = inner
            depth += 1
        self.count(values + int(itself) + (CONTAINER - 1) * containers)


class _Runs:
    """Whether to try a run of elements next: after ``first`` shorter ones than ``most`` characters, and the more seldom
    the more often there was none.
    """

    __slots__ = ("_most", "_pause", "_wait", "last")

    def __init__(self, most: int, first: int) -> None:
        self.last = 0
        """Length of the element before, in characters."""
        self._most = most
        self._wait = first
        self._pause = 1

    @property
    def due(self) -> bool:
        return self.last < self._most and not self._wait

    def read(self, size: int, run: bool) -> None:
        """``size`` characters were read, as a ``run`` or as one element."""
        if run:
            self.last, self._pause = 0, 1
            return
        if self.due:  # and there was none
            self._wait = self._pause = min(2 * self._pause, 1024)
        elif self._wait and size < self._most:
            self._wait -= 1
        self.last = size


def _between_escapes(text: str, start: int, stop: int) -> int:
    """The first place from ``stop`` on that is inside no escape, and between no two that make one character.

    ``start`` is such a place, in a string.
    """
    last = text.rfind("\\", max(start, stop - 6), stop)
    if last < 0:
        return stop
    before = text[start : last + 1]
    if (len(before) - len(before.rstrip("\\"))) % 2 == 0:
        return stop  # the second of a pair: "\\"
    if not text.startswith("u", last + 1):
        return max(stop, last + 2)
    end = last + 6
    if _HIGH(text, last) and text.startswith("\\u", end):
        end += 6
    return max(stop, end)
