"""Small results that are kept on disk between starts. Losing one costs the work again, nothing else.

A file holds the digest of its content: one that is damaged counts as lost.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toktier.whole_file import whole


def load(cache_dir: Path | None, name: str) -> Mapping[str, Any]:
    """The object kept under ``name``; empty where there is none that can be read."""
    if cache_dir is None:
        return {}
    try:
        held = json.loads((cache_dir / f"{name}.json").read_bytes())
        value = held["value"]
        if held["sha256"] != _digest(value):
            return {}
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
    return value if isinstance(value, dict) else {}


def store(cache_dir: Path | None, name: str, value: Mapping[str, Any]) -> None:
    """Keeps ``value`` under ``name``. A folder that cannot be written is no error."""
    if cache_dir is not None:
        write(cache_dir / f"{name}.json", json.dumps({"sha256": _digest(value), "value": value}).encode())


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def write(path: Path, content: bytes) -> bool:
    """Makes ``content`` the file ``path``, whole or not at all, and leaves nothing else there.

    False where the disk does not take it (it is full, or the folder cannot be written).
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole(path) as file:
            file.write(content)
    except OSError:
        return False
    return True
