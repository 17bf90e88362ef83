"""Which (tokenizer, path) is not trusted any more; on disk, so that a restart does not forget it.

The ladder. The first mismatch of a (tokenizer, path), whoever found it, puts it at `Level.REFERENCE`: its requests are
rendered and encoded whole by the reference from then on. A mismatch of a request that was served at that level raises
it to `Level.TEXT`: no IDs. Requests that were in flight before never raise it. Only an operator lifts it: a tokenizer
is named by the digest of its files alone (`TokenizerFiles.digest_of_files`), so that an upgrade of an engine does not.

Invariants:
 - Fail safe: a file that is damaged or cannot be read puts everything at `Level.REFERENCE`; so it stays, across
   restarts and additions, until all is lifted. A file that is not there is an empty one.
 - Nothing is lost quietly: what cannot be written counts in this process, and is written as soon as it can be;
   `unwritable` says why.
 - A file is replaced whole, under a lock that all writers take; a reader sees an old one or a new one.
 - `level`, `entries` and the properties wait for nothing. `add`, `lift` and `refresh` touch the disk: not for an event
   loop.

Files of schema 1 named tokenizers by a digest over the engines' versions as well, of which nobody can tell any more
which files they are. Their entries are `Entry.stale`: each counts for its path of every tokenizer.

The file: ``{"schema": 2, "everything": null, "entries": [...]}``; ``everything`` is a time while nothing is trusted.
Beside it lies ``NAME.lock``, which holds nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path as File
from threading import Lock
from typing import Any

import structlog

from toktier.reasons import Path
from toktier.whole_file import whole

SCHEMA = 2
_WITH_VERSIONS = 1
"""The schema whose digests hold versions."""
LOCK_WAIT_S = 5.0
"""Longest wait for another writer; after that the file counts as one that cannot be written."""
_SIZE_LIMIT = 16 << 20
_GONE = (-1,)

_log = structlog.get_logger("toktier.quarantine")


class Level(StrEnum):
    """How far requests are trusted."""

    REFERENCE = "reference"
    """IDs come from a full render and encode by the reference; nothing is kept between requests."""
    TEXT = "text"
    """No IDs: requests go upstream as text."""


class Source(StrEnum):
    """Who found a mismatch."""

    SHADOW = "shadow"
    """A shadow check."""
    USAGE = "usage"
    """The engine counted other prompt tokens than were sent."""
    TOKENIZE = "tokenize"
    """The upstream's ``/tokenize`` gave other IDs."""


Key = tuple[str, Path]
"""Digest of a tokenizer's files, and path."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One (tokenizer, path) in quarantine; source, model, time and request are those of its first mismatch."""

    tokenizer_digest: str
    path: Path
    level: Level
    source: Source
    model: str
    since: str
    """UTC, ISO 8601."""
    request_id: str
    count: int
    """Mismatches so far."""
    versions: str = ""
    """Of the engines at the first mismatch, for people; empty where that is not known."""
    stale: bool = False
    """From a file of schema 1: it counts for ``path`` of every tokenizer."""

    @property
    def key(self) -> Key:
        return self.tokenizer_digest, self.path


@dataclass(frozen=True, slots=True)
class Changes:
    """What `Quarantine.refresh` found; true where there is anything."""

    added: tuple[Entry, ...] = ()
    """New ones, and those at another level than before."""
    lifted: tuple[Entry, ...] = ()
    everything: bool = False
    """Whether the state in which nothing is trusted began or ended; `Quarantine.everything` says which."""

    def __bool__(self) -> bool:
        return bool(self.added or self.lifted or self.everything)


@dataclass(frozen=True, slots=True)
class _Content:
    """What a file says."""

    entries: Mapping[Key, Entry] = field(default_factory=dict)
    everything: str | None = None
    stamp: tuple[int, ...] | None = None
    """Tells a file from its predecessors; None where there is none."""
    error: str | None = None
    """Why it could not be read."""


class Quarantine:
    """The quarantine in one file, which several processes may share. Thread-safe."""

    def __init__(self, file: File) -> None:
        """Reads ``file``. Never raises: see the invariants."""
        self._file = file
        self._lock = Lock()
        self._unsaved: dict[Key, Entry] = {}  # to be merged into what is on disk
        self._content = _Content()
        self._entries: Mapping[Key, Entry] = {}
        self._stale: Mapping[Path, Level] = {}
        self.unwritable: str | None = None
        """Why the last write failed; None where it did not."""
        self._take(_read(file))

    # what there is: single reads of attributes that are replaced whole

    def level(self, tokenizer_digest: str, path: Path) -> Level | None:
        """How far requests of this tokenizer and path are trusted; None: wholly."""
        entry = self._entries.get((tokenizer_digest, path))
        levels = None if entry is None else entry.level, self._stale.get(path)
        if Level.TEXT in levels:
            return Level.TEXT
        return None if levels == (None, None) and self._content.everything is None else Level.REFERENCE

    def entries(self) -> list[Entry]:
        """All entries, oldest first."""
        return sorted(self._entries.values(), key=lambda entry: (entry.since, entry.key))

    @property
    def everything(self) -> str | None:
        """Since when nothing is trusted, because the file was damaged; None where that is not so."""
        return self._content.everything

    @property
    def unreadable(self) -> str | None:
        """What is wrong with the file; None where nothing is."""
        return self._content.error

    def __len__(self) -> int:
        """How much is in quarantine: the entries, and one more while nothing is trusted."""
        return len(self._entries) + (self._content.everything is not None)

    # changes

    def add(
        self,
        tokenizer_digest: str,
        path: Path,
        source: Source,
        *,
        model: str,
        request_id: str,
        at_reference: bool,
        versions: str = "",
    ) -> Entry:
        """Count a mismatch and climb the ladder; ``at_reference``: the request was served at `Level.REFERENCE`.

        ``versions`` is `Entry.versions`. It counts in this process at once, written or not. Never raises.
        """
        key = tokenizer_digest, path
        with self._lock:
            climbs = at_reference and self.level(*key) is not None
            level = Level.TEXT if climbs else Level.REFERENCE
            new = Entry(tokenizer_digest, path, level, source, model, _now(), request_id, 1, versions)
            self._unsaved[key] = _merged(self._unsaved.get(key), new)
            self._take(self._content)
            self._save()
            return self._entries[key]

    def lift(self, tokenizer_digest: str | None = None, path: Path | None = None) -> list[Entry]:
        """Trust again what matches (None matches all), and say what that was. Lifting all also ends `everything`.

        Raises `OSError` where the file cannot be written; nothing is lifted then.
        """

        def matches(entry: Entry) -> bool:
            return tokenizer_digest in (None, entry.tokenizer_digest) and path in (None, entry.path)

        with self._lock, _locked(self._file):
            content = _read(self._file)
            known = self._with_unsaved(content)
            lifted = [entry for entry in known.values() if matches(entry)]
            everything = None if tokenizer_digest is path is None else content.everything
            if lifted or everything != content.everything:
                kept = {key: entry for key, entry in known.items() if not matches(entry)}
                content = _written(self._file, kept, everything)
                self._unsaved = {}
                self.unwritable = None
            self._take(content)
            return lifted

    def refresh(self) -> Changes:
        """Read the file again if it was changed, by another process or by hand, and say what became different.

        What could not be written before is tried again. Never raises.
        """
        with self._lock:
            before, everything = self._entries, self._content.everything
            if self._unsaved:
                self._save()
            if _stamp(self._file) != self._content.stamp:
                self._take(_read(self._file))
            after = self._entries
            return Changes(
                added=tuple(e for key, e in after.items() if key not in before or before[key].level is not e.level),
                lifted=tuple(entry for key, entry in before.items() if key not in after),
                everything=(everything is None) is not (self._content.everything is None),
            )

    # all below: under the lock

    def _with_unsaved(self, content: _Content) -> dict[Key, Entry]:
        merged = {key: _merged(content.entries.get(key), entry) for key, entry in self._unsaved.items()}
        return {**content.entries, **merged}

    def _take(self, content: _Content) -> None:
        if content.error is not None and content.error != self._content.error:
            _log.error("quarantine_unreadable", file=str(self._file), problem=content.error)
        entries = self._with_unsaved(content)
        stale: dict[Path, Level] = {}
        for entry in entries.values():
            if entry.stale and stale.get(entry.path) is not Level.TEXT:
                stale[entry.path] = entry.level
        self._content, self._entries, self._stale = content, entries, stale

    def _save(self) -> None:
        try:
            with _locked(self._file):
                content = _read(self._file)
                content = _written(self._file, self._with_unsaved(content), content.everything)
        except OSError as error:
            problem = _problem(error)
            if problem != self.unwritable:
                _log.error("quarantine_unwritable", file=str(self._file), problem=problem)
            self.unwritable = problem
        else:
            self.unwritable = None
            self._unsaved = {}
            self._take(content)


def _merged(known: Entry | None, new: Entry) -> Entry:
    """``new`` on top of ``known``: who was first stays, the higher level counts."""
    if known is None:
        return new
    level = Level.TEXT if Level.TEXT in (known.level, new.level) else Level.REFERENCE
    return replace(known, level=level, count=known.count + new.count)


# the file


@contextmanager
def _locked(file: File) -> Iterator[None]:
    """Alone among the writers. Raises `OSError`, a `TimeoutError` after `LOCK_WAIT_S`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(file.with_name(f"{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _give_to_owner(handle, file.parent)
        _wait_for(lambda: fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


def _give_to_owner(handle: int, folder: File) -> None:
    """What an operator writes as root belongs to the folder's owner: the server is not to be locked out of its file."""
    if os.geteuid() == 0:
        found = folder.stat()
        os.fchown(handle, found.st_uid, found.st_gid)


def _wait_for(lock: Callable[[], None]) -> None:
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            return lock()
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another process holds the lock") from None
            time.sleep(0.01)


def _written(file: File, entries: Mapping[Key, Entry], everything: str | None) -> _Content:
    """The content, now on disk. Raises `OSError`; the old file then stays."""
    value = {"schema": SCHEMA, "everything": everything, "entries": [asdict(entry) for entry in entries.values()]}
    with whole(file, durable=True) as out:
        _give_to_owner(out.fileno(), file.parent)
        out.write(json.dumps(value, indent=1).encode("ascii"))
    folder = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return _Content(entries, everything, _stamp(file))


def _stamp(file: File) -> tuple[int, ...] | None:
    try:
        return _stamp_of(file.stat())
    except FileNotFoundError:
        return None
    except OSError:
        return _GONE


def _stamp_of(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read(file: File) -> _Content:
    """Never raises."""
    stamp: tuple[int, ...] = _GONE
    try:
        with file.open("rb") as source:
            stamp = _stamp_of(os.fstat(source.fileno()))
            raw = source.read(_SIZE_LIMIT + 1)
        entries, everything = _parsed(raw)
    except FileNotFoundError:
        return _Content()
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        return _Content({}, _now(), stamp, _problem(error))
    return _Content(entries, everything, stamp)


def _parsed(raw: bytes) -> tuple[dict[Key, Entry], str | None]:
    if len(raw) > _SIZE_LIMIT:
        raise ValueError("it is too large")
    value = json.loads(raw)
    schema = value["schema"]
    if schema not in (_WITH_VERSIONS, SCHEMA):
        raise ValueError("its schema is not known")
    everything = value["everything"]
    if everything is not None and not isinstance(everything, str):
        raise ValueError("everything is no time")
    before = {"versions": "", "stale": True} if schema == _WITH_VERSIONS else {}
    entries = [_entry({**one, **before}) for one in value["entries"]]
    return {entry.key: entry for entry in entries}, everything


def _entry(value: Mapping[str, Any]) -> Entry:
    texts = {name: value[name] for name in ("tokenizer_digest", "model", "since", "request_id", "versions")}
    count, stale = value["count"], value["stale"]
    if not all(isinstance(text, str) for text in texts.values()) or (type(count), type(stale)) != (int, bool):
        raise ValueError("an entry has a field of another type")
    path, level, source = Path(value["path"]), Level(value["level"]), Source(value["source"])
    return Entry(path=path, level=level, source=source, count=count, stale=stale, **texts)


def _problem(error: Exception) -> str:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{type(error).__name__}: {reason}"


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
