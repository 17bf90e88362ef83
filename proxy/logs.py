"""The structured log: one JSON object per line, for every event of the process.

Invariants
1. No line holds text of a request or reply, a credential or a list of IDs. Exceptions become type and location, since
   messages of exceptions may quote what they failed on; values that are not short and plain become their size. Records
   of other libraries (the logging module) become logger name and location.
2. Writing never blocks a request and never fails it. A thread writes; lines that do not fit in its queue, or that the
   disk does not take, are dropped and counted, and the next line that gets through says how many.
3. Every line that was put is whole in exactly one file, or counted as dropped. `proxy.logfile` keeps lines whole and
   rotates.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import MutableMapping, Sized
from enum import Enum
from pathlib import Path
from typing import Any

import orjson
import structlog

from proxy.audit import SCHEMA
from proxy.config import Log
from proxy.logfile import LogFile

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_LONGEST_STRING = 300
_LONGEST_LIST = 32
_FRAMES = 8
_RETRY_S = 0.2
_GATHER_S = 0.05
"""How long lines are gathered before they are written. The thread does not wait for the queue meanwhile: to wake it up
takes whoever puts a line longer than all else about the line."""
_BATCH = 256
"""Lines that are written together; where as many wait already nothing is gathered."""

Event = MutableMapping[str, Any]


class Writer:
    """Takes lines from any thread; a thread of its own appends them to ``file``."""

    def __init__(self, file: LogFile, queue_lines: int) -> None:
        self._file = file
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._most = queue_lines
        self._dropped = 0
        self._told = 0
        self._told_problem: str | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="toktier-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """Lines lost since the start."""
        return self._dropped

    def put(self, line: bytes) -> None:
        """Queues a line (without its newline). Never blocks, never raises."""
        if self._queue.qsize() < self._most:  # threads that ask at the same time may be one over it, each
            self._queue.put(line)
        else:
            self._drop(1)

    def close(self, timeout: float = 5.0) -> None:
        """Writes what is queued, as far as that is possible within ``timeout`` seconds, and stops the thread."""
        self._closing.set()
        self._queue.put(None)  # wakes it
        self._thread.join(timeout)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count

    def _run(self) -> None:
        while True:
            batch = self._take()
            if batch:
                self._write(batch)
            if self._closing.is_set() and self._queue.empty():
                break
        self._file.close()

    def _take(self) -> list[bytes]:
        batch = [self._queue.get()]
        if self._queue.qsize() < _BATCH:
            self._closing.wait(_GATHER_S)
        with contextlib.suppress(queue.Empty):
            while len(batch) < _BATCH:
                batch.append(self._queue.get_nowait())
        return [line for line in batch if line is not None]

    def _write(self, batch: list[bytes]) -> None:
        dropped, done, failed = self._dropped, 0, False
        notice = dropped > self._told
        if notice:
            batch = [_own("log_dropped", lines=dropped - self._told), *batch]
        try:
            self._file.begin()
            for line in batch:
                self._file.write(line)
                done += 1
        except OSError:
            failed = True
        done -= self._file.gone()
        self._drop(len(batch) - max(done, int(notice)))  # the notice is not one of the lost lines
        if notice and done:
            self._told = dropped
        if self._file.problem != self._told_problem:
            self._told_problem = self._file.problem
            if self._told_problem is not None:
                self.put(_own("log_not_rotated", reason=self._told_problem))
        if failed:
            self._file.close()
            # A full disk stays full for a while: let the queue fill instead of trying for every line.
            self._closing.wait(_RETRY_S)


def _own(event: str, **fields: Any) -> bytes:
    """A line about the log itself."""
    return render(None, "", _stamp(None, "", {"event": event, "level": "warning", **fields}))


class Logs:
    """The process's log once `configure` was called."""

    def __init__(self, settings: Log, stream: int) -> None:
        self._file = LogFile(settings.path, stream, settings.max_bytes, settings.keep_files)
        self.writer = Writer(self._file, settings.queue_lines)
        self.level = LEVELS[settings.level]

    def apply(self, settings: Log) -> None:
        """From now on: the level, and when the file is rotated. The rest stays as it was configured."""
        self.level = LEVELS[settings.level]
        self._file.max_bytes, self._file.keep_files = settings.max_bytes, settings.keep_files

    def close(self, timeout: float = 5.0) -> None:
        """Writes what waits, then stops. Lines after this are lost."""
        self.writer.close(timeout)


_current: Logs | None = None


def configure(settings: Log, stream: int = 1) -> Logs:
    """Routes structlog and the logging module to one log. A second call closes the first one's log.

    ``stream`` is the file descriptor that is used where the settings name no file.
    """
    global _current
    if _current is not None:
        _current.close()
    _current = logs = Logs(settings, stream)

    def line(_: Any, method: str, event: Event) -> bytes:
        if LEVELS.get(method, 20) < logs.level:
            raise structlog.DropEvent
        for step in (add_level, _stamp, exception_to_location, plain):
            event = step(_, method, event)
        return render(_, method, event)

    structlog.configure(
        processors=[line],
        wrapper_class=structlog.BoundLogger,
        logger_factory=lambda *args: _Sink(logs.writer, *args),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _FromLogging):
            root.removeHandler(handler)
    root.addHandler(_FromLogging())
    root.setLevel(logging.WARNING)
    return logs


def dropped_lines() -> int:
    """Lines that the present log lost; 0 where none is configured."""
    return 0 if _current is None else _current.writer.dropped


class _Sink:
    """What structlog calls with the rendered line."""

    def __init__(self, writer: Writer, *_: Any) -> None:
        self._writer = writer

    def msg(self, line: bytes) -> None:
        self._writer.put(line)

    debug = info = warning = error = critical = exception = log = msg


class _FromLogging(logging.Handler):
    """Records of other libraries. Their text may quote a request, so only where they come from is kept."""

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            level = record.levelname.lower()
            fields: dict[str, Any] = {"logger": record.name, "at": f"{_short(record.pathname)}:{record.lineno}"}
            if record.exc_info and record.exc_info[1] is not None:
                fields["exc_info"] = record.exc_info[1]
            log = structlog.get_logger()
            getattr(log, level if level in LEVELS else "info")("library", **fields)


# Processors ---------------------------------------------------------------------------------------------------------


def add_level(_: Any, method: str, event: Event) -> Event:
    """``level``: the method's name; ``exception`` is error, with the exception that is being handled."""
    event["level"] = "error" if method == "exception" else method
    if method == "exception":
        event.setdefault("exc_info", True)
    return event


_second = (0, "")
"""The last second that was written out."""


def _stamp(_: Any, __: str, event: Event) -> Event:
    global _second
    now = time.time()
    second, text = _second
    if second != int(now):
        second, text = _second = int(now), time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
    event["ts"] = f"{text}.{int(now % 1 * 1e6):06d}Z"
    event["schema"] = SCHEMA
    return event


def exception_to_location(_: Any, __: str, event: Event) -> Event:
    """``exc_info`` becomes ``exception``: types from the outermost cause on, and the innermost frames; no message."""
    info = event.pop("exc_info", None)
    if info is True:
        info = sys.exc_info()
    if isinstance(info, tuple):
        info = info[1]
    if isinstance(info, BaseException):
        event["exception"] = describe(info)
    event.pop("stack_info", None)
    return event


def describe(error: BaseException) -> dict[str, Any]:
    """An exception without its message: ``{"type": [...], "at": ["proxy/x.py:12 f", ...]}``, innermost frame last."""
    types: list[str] = []
    seen: BaseException | None = error
    while seen is not None and len(types) < 5:
        types.append(type(seen).__name__)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    frames = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return {"type": types, "at": [f"{_short(f.filename)}:{f.lineno} {f.name}" for f in frames]}


def _short(filename: str) -> str:
    """The last three parts of a file's path: enough to find it, without the machine's folders."""
    return "/".join(Path(filename).parts[-3:])


def plain(_: Any, __: str, event: Event) -> Event:
    """Every value short and plain; anything else becomes its type and size."""
    return {key: value if type(value) in _SCALARS else _plain(value) for key, value in event.items()}


_SCALARS = frozenset({type(None), bool, int})


def _plain(value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind in _SCALARS or (kind is str and len(value) <= _LONGEST_STRING):
        return value
    if isinstance(value, Enum):
        return _plain(value._value_, depth)
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, str):
        return value if len(value) <= _LONGEST_STRING else f"<str of {len(value)}>"
    if isinstance(value, BaseException):
        return describe(value)
    if isinstance(value, dict) and depth < 3 and len(value) <= _LONGEST_LIST:
        return {str(key)[:_LONGEST_STRING]: _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset) and depth < 3 and len(value) <= _LONGEST_LIST:
        items = list(value)
        if not any(isinstance(item, int) for item in items):  # even a short list of IDs is a prompt
            return [_plain(item, depth + 1) for item in items]
    size = f" of {len(value)}" if isinstance(value, Sized) else ""
    return f"<{type(value).__name__}{size}>"


_FIRST = ("ts", "level", "schema", "event")


def render(_: Any, __: str, event: Event) -> bytes:
    """One line of ASCII JSON without its newline; time, level, schema and event first."""
    ordered = {key: event[key] for key in _FIRST if key in event} | dict(event)
    with contextlib.suppress(orjson.JSONEncodeError):  # a lone surrogate, an integer beyond 64 bits
        line = orjson.dumps(ordered)
        if line.isascii():
            return line
    return json.dumps(ordered, separators=(",", ":"), allow_nan=False).encode("ascii")
