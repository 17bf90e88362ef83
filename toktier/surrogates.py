"""Where a request body holds a lone surrogate: text that JSON can carry and UTF-8, and so every tokenizer, cannot."""

from __future__ import annotations

import json
import marshal
import re
from collections.abc import Iterator, Mapping
from typing import Any

# A surrogate in the marshal form of a value is ED A0..BF xx. Lengths and numbers may look like one, never the reverse.
_ENCODED = re.compile(rb"\xed[\xa0-\xbf]")
_LONE = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_ARGUMENTS = re.compile(r"messages\[\d+\]\.tool_calls\[\d+\]\.function\.arguments")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")


def find_surrogate(body: Mapping[str, Any]) -> tuple[str, int] | None:
    """The first lone surrogate in a parsed body: its JSON path, such as ``messages[1].content``, and its offset.

    The offset counts characters in the string that the path names. Keys are looked at as well as values (the path
    then ends in ``{key}``), and so is the JSON inside of a tool call's ``arguments``, which templates get parsed.
    A key that is no plain identifier is written as its position, ``{2}``: paths are shown to clients and logged.
    """
    try:
        packed = marshal.dumps(dict(body), 2)
    except ValueError:  # nested too deeply for it: look without knowing
        return next(_walk(body), None)
    if not _ENCODED.search(packed) and not _ESCAPE.search(packed):
        return None
    return next(_walk(body), None)


def _walk(body: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """All of them, in the body's order. By a stack: a body may nest deeper than Python calls can."""
    pending: list[Iterator[tuple[str, Any]]] = [_members(body, "")]
    while pending:
        entry = next(pending[-1], None)
        if entry is None:
            pending.pop()
            continue
        path, value = entry
        if isinstance(value, str):
            if not value.isascii() and (lone := _LONE.search(value)):
                yield path, lone.start()
            elif "\\u" in value and _ARGUMENTS.fullmatch(path):
                pending.append(_members(_parsed(value), path))
        elif isinstance(value, Mapping):
            pending.append(_members(value, path))
        elif isinstance(value, list):
            pending.append(_items(value, path))


def _members(value: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Each key and each value, with their paths."""
    for position, (key, item) in enumerate(value.items()):
        yield f"{path}{{key}}", key
        name = key if _PLAIN.fullmatch(key) else f"{{{position}}}"
        yield f"{path}.{name}" if path else name, item


def _items(value: list[Any], path: str) -> Iterator[tuple[str, Any]]:
    for position, item in enumerate(value):
        yield f"{path}[{position}]", item


def _parsed(arguments: str) -> dict[str, Any]:
    """What a template is given for them: only an object counts."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
