"""What a reply tells on its way to the client: how many prompt tokens the engine counted, whether it ended well, who
wrote it, and how the model's text begins.

Invariants
1. Memory is bounded, however the reply is cut into pieces: twice `MAX_LINE`, or `WHOLE` and `HEAD`.
2. Work is bounded: some 64 KiB of JSON are parsed at once. The parser keeps the interpreter to itself, in whatever
   thread it runs, so a thread would not help.
3. A count is the reply's own member ``usage`` or none: a wrong one would put a tokenizer into quarantine.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import orjson

from proxy.beginnings import Beginning
from proxy.marks import Marks, marks_of

MAX_LINE = 64 << 10
"""Longest SSE line, and event, that is looked into, in bytes; a longer one is relayed but not understood."""
WHOLE = 64 << 10
"""Longest JSON reply that is parsed as a whole, in bytes. Of longer ones both ends are looked into."""
HEAD = 4 << 10
"""Bytes of a long reply's start that are looked into; of its end `WHOLE` are."""
_TRIES = 4
"""Members near a long reply's end that are tried."""
_EMPTY_LINES = re.compile(rb"\n{3,}")
_FIRST = 8
"""Events of a stream that are looked into for how the model's text begins."""
_INTERESTING = re.compile(rb'"usage"\s*:\s*\{|"finish_reason"\s*:\s*"|"error"\s*:\s*[{"]')
# A quote inside of a string is escaped, so that no string can look like a member.
_MEMBER = re.compile(rb'(?<!\\)"(?:usage|system_fingerprint|model|error)"\s*:')
_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_LEADING = re.compile(rb"\s*\{((?:\s*" + _STRING + rb"\s*:\s*(?:" + _STRING + rb"|[-+.\w]+)\s*,)*)")


class SseObserver:
    """Reads usage and the end of a stream out of SSE bytes, in bounded memory, at any chunking.

    A line ends with LF, CR or CR LF; the ``data`` lines of an event are joined with LF (WHATWG HTML, 9.2.6).
    """

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """``headers``: the reply's, for `marks`."""
        self.events = 0
        self.done = False
        self.finished = False
        self.error = False
        self.prompt_tokens: int | None = None
        self.marks = Marks()
        self.beginning = Beginning()
        self._headers = headers or {}
        self._open = False
        self._line = b""
        self._after_cr = False
        self._skip = False
        self._data: bytearray | None = None
        self._size = 0

    @property
    def complete(self) -> bool:
        """Whether the stream said how it ended: `[DONE]`, a finish reason, or an error of its own."""
        return self.done or self.finished or self.error

    def feed(self, chunk: bytes) -> None:
        """Bytes in the order in which they were relayed."""
        if not chunk:
            return
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r") if chunk else False
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n\n\n" in chunk:
            chunk = _EMPTY_LINES.sub(b"\n\n", chunk)  # one empty line ends an event, further ones say nothing
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        for part in rest:
            line, self._line = self._line, b""
            skip, self._skip = self._skip, False
            self._end_line(b"" if skip else line, skip)
            self._hold(part)

    @property
    def boundary(self) -> bool:
        """Whether an event added now would not run into one that has begun."""
        return not self._open and not self._line and not self._skip

    def _hold(self, part: bytes) -> None:
        if len(self._line) + len(part) > MAX_LINE:
            self._line, self._skip = b"", True
        elif not self._skip:
            self._line += part

    def _end_line(self, line: bytes, skipped: bool) -> None:
        self._open = skipped or bool(line)
        if skipped:
            self._data, self._size = bytearray(), MAX_LINE + 1
            return
        if line:
            name, _, value = line.partition(b":")
            if name == b"data":
                value = value.removeprefix(b" ")
                self._size += len(value) + 1
                if self._data is None:
                    self._data = bytearray()
                if self._size <= MAX_LINE:
                    self._data += value + b"\n"
                else:
                    self._data.clear()  # an event that is too long is not looked into
            return
        if self._data is not None:
            self.events += 1
            self._event(bytes(self._data[:-1]))
            self._data, self._size = None, 0

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        first, telling = self.beginning.open and self.events <= _FIRST, _INTERESTING.search(data)
        if not first and not telling:
            return
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            return
        if not isinstance(value, dict):
            return
        if first:
            self.beginning.take(value)
        if telling:
            self.error = self.error or bool(value.get("error"))
            self.marks = marks_of(self._headers, value)
            self.prompt_tokens = _prompt_tokens(value, self.prompt_tokens)
            choices = value.get("choices")
            if isinstance(choices, list):
                self.finished = self.finished or any(isinstance(c, dict) and c.get("finish_reason") for c in choices)


class JsonObserver:
    """Reads usage, an error and the marks out of a JSON reply.

    Of one longer than `WHOLE` bytes: strings, numbers and the like that it begins with, and what stands near its end,
    where engines write the usage. How the model's text began is not looked for in such a one.
    """

    def __init__(self, headers: Mapping[str, str] | None = None) -> None:
        """``headers``: the reply's, for `marks`."""
        self.prompt_tokens: int | None = None
        self.error = False
        self.marks = Marks()
        self.beginning = Beginning()
        self._headers = headers or {}
        self._head = b""
        self._tail = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        """Bytes in the order in which they were relayed."""
        if self._size < HEAD:
            self._head += chunk[: HEAD - self._size]
        self._size += len(chunk)
        self._tail += chunk[-WHOLE:]
        del self._tail[:-WHOLE]

    def end(self) -> None:
        """The reply is complete."""
        if self._size > WHOLE:
            value: Any = {**_leading(self._head), **_trailing(bytes(self._tail))}
        else:
            value = _parsed(self._tail)
        if isinstance(value, dict):
            self.error = bool(value.get("error"))
            self.marks = marks_of(self._headers, value)
            self.prompt_tokens = _prompt_tokens(value, None)
            self.beginning.take(value)


def _leading(head: bytes) -> dict[str, Any]:
    """The members with which an object begins, up to the first array or object in it."""
    found = _LEADING.match(head)
    value = _parsed(b"{" + found[1].rstrip(b", \t\r\n") + b"}") if found is not None else None
    return value if isinstance(value, dict) else {}


def _trailing(tail: bytes) -> dict[str, Any]:
    """The last members of an object of which ``tail`` is the end.

    What follows a member closes exactly one object, where the member is the outermost object's; else one or more
    brackets are too many, and it does not parse.
    """
    members: dict[str, Any] = {}
    for match in reversed(deque(_MEMBER.finditer(tail), maxlen=_TRIES)):
        value = _parsed(b"{" + tail[match.start() :])
        if isinstance(value, dict):
            members = value
    return members


def _parsed(raw: bytes | bytearray) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None


def _prompt_tokens(value: dict[str, object], known: int | None) -> int | None:
    usage = value.get("usage")
    count = usage.get("prompt_tokens") if isinstance(usage, dict) else None
    return count if isinstance(count, int) and not isinstance(count, bool) else known
