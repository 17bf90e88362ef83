"""Where a request body holds a lone surrogate: text that JSON can carry and UTF-8, and so every tokenizer, cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from toktier.fingerprint import strict

# A surrogate in the strict form of a value is ED A0..BF xx. Lengths and numbers may look like one, never the reverse.
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
    packed = strict(dict(body))
    if not _ENCODED.search(packed) and not _ESCAPE.search(packed):
        return None
    return next(_walk(body, ""), None)


def _walk(value: Any, path: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, str):
        if not value.isascii() and (lone := _LONE.search(value)):
            yield path, lone.start()
        elif "\\u" in value and _ARGUMENTS.fullmatch(path):
            yield from _walk(_parsed(value), path)
    elif isinstance(value, Mapping):
        for position, (key, item) in enumerate(value.items()):
            if isinstance(key, str) and (lone := _LONE.search(key)):
                yield f"{path}{{key}}", lone.start()
            name = key if _PLAIN.fullmatch(key) else f"{{{position}}}"
            yield from _walk(item, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from _walk(item, f"{path}[{position}]")


def _parsed(arguments: str) -> dict[str, Any] | None:
    """What a template is given for them: only an object counts."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
