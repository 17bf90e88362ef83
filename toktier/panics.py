"""What Rust itself writes to standard error about a panic, kept off the terminal of a command that loads a tokenizer.

A panic reaches Python as an exception, and whoever catches it says in a line of its own what is wrong with the file.
Rust has written its own report by then, past everything in Python, to file descriptor 2.

Invariants:

- Only whole reports are left out. All else that is written to the descriptor inside the block comes out when the block
  ends, in its order, also where the block ends by an exception. A report with a backtrace is left in: somebody asked
  for it (``RUST_BACKTRACE``).
- For commands, and around a load only, in one thread at a time. The descriptor belongs to the whole process; what is
  written to it comes late, and is lost if the process is killed. A server leaves it alone (SECURITY.md says what that
  means).
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

_STDERR = 2
_HEAD = re.compile(rb"thread '.*' (?:\(\d+\) )?panicked at .+")
_SIDES = (b"  left: ", b" right: ")
"""How the second and third line of a failed assertion begin."""


@contextmanager
def unreported() -> Iterator[None]:
    """Leaves reports of panics out of what is written to standard error in the block."""
    with ExitStack() as stack:
        held = None
        with suppress(OSError):  # no standard error, or no room for a file: then all comes out as it is written
            own = os.dup(_STDERR)
            stack.callback(os.close, own)
            held = stack.enter_context(tempfile.TemporaryFile())
        if held is None:
            yield
            return
        _flush()
        os.dup2(held.fileno(), _STDERR)
        try:
            yield
        finally:
            _flush()
            os.dup2(own, _STDERR)
            held.seek(0)
            _write(without_reports(held.read()))


def without_reports(written: bytes) -> bytes:
    """``written`` without the reports of panics in it."""
    lines = written.splitlines(keepends=True)
    kept: list[bytes] = []
    at = 0
    while at < len(lines):
        end = _end_of_report(lines, at)
        if end is None:
            kept.append(lines[at])
            at += 1
        else:
            at = end
    return b"".join(kept)


def _end_of_report(lines: list[bytes], at: int) -> int | None:
    """The line after the report that begins at line ``at``, with the empty line before it; None where none does."""
    head = at if lines[at].strip() else at + 1
    if head >= len(lines) or not (m := _HEAD.match(lines[head])):
        return None
    end = head + (2 if m[0].endswith(b":") else 1)  # the message has a line of its own, or is in the first one
    while end < len(lines) and lines[end].startswith(_SIDES):
        end += 1
    if end < len(lines) and lines[end].startswith(b"stack backtrace:"):
        return None
    return end + (end < len(lines) and lines[end].startswith(b"note: run with `RUST_BACKTRACE"))


def _flush() -> None:
    with suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()


def _write(content: bytes) -> None:
    with suppress(OSError):
        while content:
            content = content[os.write(_STDERR, content) :]
