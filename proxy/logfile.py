"""The file under the log: lines are appended whole, and a file that is large enough is set aside.

Invariants
1. A line reaches the file by one append, and after a torn one (a full disk, a process that was killed) the next begins
   on a line of its own. So several processes may append to one file.
2. Rotation only renames. FILE.1 becomes FILE.2 and so on, up to the first number that is free and at most to
   ``keep_files``, whose old file is thereby removed; FILE becomes FILE.1 last.
3. Who rotates holds a lock (flock) on the folder, and has seen under it that FILE is still the file that is full. Of
   two processes one rotates; the other finds that the name now belongs to another file and opens that. A lock on FILE
   would not do: where somebody moves it away, the next process locks another file, and two would rename at once.
4. A rotation that fails costs no line: the file grows beyond ``max_bytes`` and it is tried again later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import time
from pathlib import Path

RETRY_S = 5.0
"""Pause after a rotation that failed."""


class LogFile:
    """Appends to ``path``, or without one to the descriptor ``stream``. Used by one thread.

    ``max_bytes`` 0 never rotates. What is no regular file (a pipe, a device) is never rotated either. Where ``path`` is
    a symbolic link, the numbered files lie beside the file that it leads to.
    """

    def __init__(self, path: Path | None, stream: int = 1, max_bytes: int = 0, keep_files: int = 1) -> None:
        self.max_bytes = max_bytes
        self.keep_files = keep_files
        self.problem: str | None = None
        """Why the last rotation failed (the name of an errno); None after one that did not."""
        self._path = path
        self._fd: int | None = stream if path is None else None
        self._regular = False
        self._size = 0
        self._torn = False
        self._lines = 0
        self._not_before = 0.0

    def begin(self) -> None:
        """Before a few lines: opens the file, anew where it was moved away or removed. Raises OSError."""
        self._lines = 0
        if self._path is None:
            return
        if self._fd is not None:
            if self._bears_the_name():
                if self._regular:
                    self._size = os.fstat(self._fd).st_size  # others may append to it
                return
            self.close()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        status = os.fstat(self._fd)
        self._regular, self._size = stat.S_ISREG(status.st_mode), status.st_size
        if self._regular:
            self._torn = self._size > 0 and not self._ends_whole(status)

    def write(self, line: bytes) -> None:
        """Appends ``line`` and its newline, after a rotation where it would not fit. Raises OSError: the line is not
        there, or only its beginning."""
        if self.max_bytes and self._regular and self._size and self._size + len(line) + 1 > self.max_bytes:
            self._rotate()
        assert self._fd is not None, "begin() comes first"
        data = b"\n" + line + b"\n" if self._torn else line + b"\n"
        self._torn = True
        while data:
            try:
                written = os.write(self._fd, data)
            except OSError:
                if data != b"\n":
                    raise
                break  # the line is there; the next one brings the newline
            self._size += written
            data = data[written:]
        self._torn = bool(data)
        self._lines += 1

    def gone(self) -> int:
        """How many lines since `begin` went into a file that has been removed meanwhile, and so are lost."""
        if self._fd is None or not self._regular or os.fstat(self._fd).st_nlink:
            return 0
        return self._lines

    def close(self) -> None:
        """Gives the descriptor up, if it is our own. `begin` opens the file again."""
        if self._fd is not None and self._path is not None:
            os.close(self._fd)
            self._fd = None

    def _bears_the_name(self) -> bool:
        """Whether the open file is the one that the path leads to."""
        assert self._fd is not None
        assert self._path is not None
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # nobody can tell; the open file can still be written
        return os.path.samestat(there, os.fstat(self._fd))

    def _ends_whole(self, status: os.stat_result) -> bool:
        """Whether the file ends with a newline. False where that cannot be seen: then an empty line is written."""
        assert self._path is not None
        try:
            with self._path.open("rb") as file:
                if not os.path.samestat(os.fstat(file.fileno()), status):
                    return False
                file.seek(status.st_size - 1)
                return file.read(1) == b"\n"
        except OSError:
            return False

    def _rotate(self) -> None:
        """Sets the file aside and opens a new one. Raises OSError where that one cannot be opened."""
        now = time.monotonic()
        if now < self._not_before:
            return
        assert self._path is not None
        path = os.path.realpath(self._path)
        try:
            folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._bears_the_name():
                    self._shift(path)
            finally:
                os.close(folder)  # and with it the lock
        except BlockingIOError:  # another process rotates just now: this line still goes into the full file
            return
        except OSError as error:
            self.problem = errno.errorcode.get(error.errno or 0, "unknown")
            self._not_before = now + RETRY_S
            return
        self.problem = None
        self.close()
        self.begin()

    def _shift(self, path: str) -> None:
        keep = self.keep_files
        free = next((n for n in range(1, keep) if not os.path.lexists(f"{path}.{n}")), keep)
        for number in range(free - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):  # somebody took it away
                os.replace(f"{path}.{number}", f"{path}.{number + 1}")
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, f"{path}.1")
