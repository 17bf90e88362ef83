"""Standard output that takes no more (a full disk, a pipe whose reader has gone, a closed descriptor) ends a command.

Invariants
1. It ends with `UNWRITTEN`, an exit code that no command has for anything else, and without a traceback: what was
   printed is not whole, so no other exit code would be true.
2. One line on standard error says why; none where a pipe's reader has gone, as after ``| head``: that is no fault.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from typing import NoReturn

UNWRITTEN = 74
"""EX_IOERR of ``sysexits.h``."""
_FD = 1


class _Raw(io.FileIO):
    """Below all buffers, so that it sees every write, whichever library it is of."""

    def write(self, data: object, /) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            _end(error)


class _Closed(io.RawIOBase):
    """Stands for a descriptor that is not open; Python has none for it."""

    def writable(self) -> bool:
        return True

    def write(self, data: object, /) -> int:
        _end("it is closed")


def guard() -> None:
    """Put a standard output in place that does what is said above. For the start of a command."""
    given = sys.stdout
    if given is None:
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(_Closed()), encoding="utf-8", errors="backslashreplace")
    elif isinstance(given, io.TextIOWrapper):
        buffered = io.BufferedWriter(_Raw(_FD, "wb", closefd=False))
        sys.stdout = io.TextIOWrapper(
            buffered,
            given.encoding,
            given.errors,
            line_buffering=given.line_buffering,
            write_through=given.write_through,
        )


def _end(why: OSError | str) -> NoReturn:
    # What is still in a buffer is written once more when the interpreter ends. It goes nowhere, like all that follows.
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it is in use until the process ends
    if isinstance(why, OSError):
        os.dup2(sys.stdout.fileno(), _FD)
    if not isinstance(why, BrokenPipeError):
        said = (why.strerror or type(why).__name__).lower() if isinstance(why, OSError) else why
        with contextlib.suppress(OSError, AttributeError):
            sys.stderr.write(f"toktier: standard output cannot be written: {said}\n")
            sys.stderr.flush()
    raise SystemExit(UNWRITTEN)
