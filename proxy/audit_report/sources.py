"""The lines of the log files that `toktier audit` was given: plain, gzip-ed, or standard input.

Invariants
1. A file is read once and forwards, in pieces, so that a file of any size (also one that unpacks to any size) needs
   the memory of one piece. A line beyond `LONGEST` is skipped, not kept.
2. All files are open before the first is read. A rotation meanwhile renames files; it can neither hide one nor show one
   twice, since a file is known by device and inode.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

LONGEST = 1 << 20
"""Bytes of a line at most. TokTier's own are a few kilobytes."""
_PIECE = 1 << 18
_UNPACKED = 1 << 14
"""Bytes unpacked at a time: zlib keeps the last ones to itself where it finds them damaged."""
_GZIP = b"\x1f\x8b"
STDIN = "-"


class Unusable(Exception):
    """The input cannot be used; the text says what and why."""


@dataclass
class Source:
    """One open input. ``damaged`` tells, after reading, why it ended early; ``size`` counts bytes after unpacking."""

    name: str
    file: BinaryIO
    damaged: str | None = None
    size: int = 0

    def lines(self) -> Iterator[bytes | None]:
        """Its lines without newlines, blank ones left out; None for one that is too long."""
        rest, skipping = b"", False
        for piece in self._pieces():
            self.size += len(piece)
            *whole, rest = (rest + piece).split(b"\n")
            if skipping and whole:
                whole[0], skipping = b"", False
            elif skipping:
                rest = b""
            for line in whole:
                if line and not line.isspace():
                    yield line if len(line) <= LONGEST else None
            if len(rest) > LONGEST:
                yield None
                rest, skipping = b"", True
        if rest and not skipping and not rest.isspace():
            yield rest

    def _pieces(self) -> Iterator[bytes]:
        try:
            first = self.file.read(_PIECE)
            if len(first) == 1:  # a pipe may give a single byte
                first += self.file.read(_PIECE)
            pieces = _after(first, self.file)
            yield from _unpacked(pieces) if first.startswith(_GZIP) else pieces
        except EOFError:
            self.damaged = "ends early"
        except zlib.error:
            self.damaged = "not what gzip wrote"
        except OSError as error:
            self.damaged = (error.strerror or "cannot be read").lower()


def _after(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    piece = first
    while piece:
        yield piece
        piece = file.read(_PIECE)


def _unpacked(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """What gzip packed, also in several members one after the other. Raises EOFError, zlib.error."""
    member = zlib.decompressobj(31)
    for piece in pieces:
        data = piece
        while data:
            if member.eof:
                data = data.lstrip(b"\0")  # padding after the last member
                if not data:
                    break
                member = zlib.decompressobj(31)
            out = member.decompress(data, _UNPACKED)
            if out:
                yield out
            data = member.unused_data if member.eof else member.unconsumed_tail
    yield member.flush()
    if not member.eof:
        raise EOFError


def open_all(names: list[str], stdin: BinaryIO, stack: ExitStack) -> tuple[list[Source], list[str]]:
    """The inputs, open until ``stack`` is closed, and the names that lead to a file already given.

    Raises `Unusable` for the first that cannot be opened."""
    sources: list[Source] = []
    repeated: list[str] = []
    seen: set[tuple[int, int]] = set()
    for name in names:
        if name == STDIN:
            if any(source.name == STDIN for source in sources):
                repeated.append(name)
            else:
                sources.append(Source(STDIN, stdin))
            continue
        try:
            file = stack.enter_context(Path(name).open("rb", buffering=0))  # noqa: SIM115 - the stack closes it
            status = os.fstat(file.fileno())
        except (OSError, ValueError) as error:
            reason = (getattr(error, "strerror", None) or "not a file name").lower()
            raise Unusable(f"{name}: {reason}") from None
        key = (status.st_dev, status.st_ino)
        if key in seen and stat.S_ISREG(status.st_mode):
            repeated.append(name)
            continue
        seen.add(key)
        sources.append(Source(name, file))
    return sources, repeated
