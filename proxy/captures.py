"""Reproductions of mismatches, on disk, in bounded number and size.

Invariants
1. ``digests`` holds no text of the request: what the log says and a digest of the body. ``full`` holds the prompt and
   the IDs, so it is for operators who may read their users' prompts.
2. No credential gets into a file: headers are never seen here, and of the body only the members in `RENDERED` are kept,
   which are what a prompt is made of.
3. Files have mode 0600 in a folder of mode 0700, are whole or not there, and the oldest go where there are too many.
4. No other file is touched: what goes is a regular file with a name as these have, and the folder is no link to another
   one.
5. A capture that fails is logged by the type of its error, and nothing else happens.
"""

from __future__ import annotations

import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import orjson
import structlog

from proxy import jsonspan
from proxy.sent import Content
from toktier.whole_file import whole

_log = structlog.get_logger("toktier.captures")

FOLDER = "captures"
SCHEMA = 1
MAX_FILES = 64
MAX_BYTES = 256 << 20
"""Of all files together."""
MAX_BODY_BYTES = 4 << 20
"""Requests with a larger body leave their digests only."""
RENDERED = frozenset(
    {
        "model",
        "messages",
        "tools",
        "tool_choice",
        "chat_template_kwargs",
        "reasoning_effort",
        "add_special_tokens",
    }
)
_NAME = re.compile(r"\d{8}T\d{6}-\d{9}-[0-9a-f]{8}\.json")
_SLICE = 1 << 16
"""Characters or IDs that are written at a time: larger ones would hold the interpreter from the event loop."""


class LinkedFolder(OSError):
    """The folder is a link to another one, which may be for something else."""


class Captures:
    """The captures in one folder. Thread-safe."""

    def __init__(self, folder: Path, max_files: int = MAX_FILES, max_bytes: int = MAX_BYTES) -> None:
        self._folder, self._max_files, self._max_bytes = folder, max_files, max_bytes
        self._lock = Lock()

    def keep(self, level: Literal["digests", "full"], event: Mapping[str, Any], content: Content) -> str | None:
        """The name of the new file; None where there is none. ``event``: the log's."""
        full = level == "full" and len(content.body) <= MAX_BODY_BYTES
        try:
            with self._lock:
                if self._folder.is_symlink():
                    raise LinkedFolder
                self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                name = self._write(_all(event, content) if full else _digests(event, content.body))
                self._prune(name)
                return name
        except Exception as error:
            _log.warning("capture_failed", error=type(error).__name__)
            return None

    def _write(self, pieces: Iterator[bytes]) -> str:
        now = time.time_ns()
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now // 10**9))
        name = f"{stamp}-{now % 10**9:09d}-{secrets.token_hex(4)}.json"
        with whole(self._folder / name, durable=True) as file:
            for piece in pieces:
                file.write(piece)
        return name

    def _prune(self, newest: str) -> None:
        with os.scandir(self._folder) as entries:
            files = [one for one in entries if _NAME.fullmatch(one.name) and one.is_file(follow_symlinks=False)]
        files.sort(key=lambda one: one.name, reverse=True)  # names begin with the time
        size = 0
        for number, file in enumerate(files):
            size += file.stat(follow_symlinks=False).st_size
            if (number >= self._max_files or size > self._max_bytes) and file.name != newest:
                (self._folder / file.name).unlink(missing_ok=True)


def _digests(event: Mapping[str, Any], body: bytes) -> Iterator[bytes]:
    digest = blake2b(body, digest_size=20).hexdigest()
    yield _json({"schema": SCHEMA, "mismatch": event, "body_digest": digest, "body_bytes": len(body)}) + b"\n"


def _all(event: Mapping[str, Any], content: Content) -> Iterator[bytes]:
    """As `_digests` with ``body``, ``text`` and ``ids`` at the end."""
    text, ids = content.text, content.ids
    parsed = jsonspan.parse(content.body)
    head = b"".join(_digests(event, content.body)).rstrip()
    yield head[:-1] + b',"body":' + parsed.edit(parsed.outline.keys() - RENDERED) + b',"text":"'
    for start in range(0, len(text), _SLICE):
        yield _json(text[start : start + _SLICE])[1:-1]
    yield b'","ids":['
    for start in range(0, len(ids), _SLICE):
        comma = b"," if start else b""
        yield comma + orjson.dumps(ids[start : start + _SLICE], option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
    yield b"]}\n"


def _json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
