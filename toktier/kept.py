"""Small results that are kept on disk between starts. Losing one costs the work again, nothing else."""

from __future__ import annotations

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
        value = json.loads((cache_dir / f"{name}.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def store(cache_dir: Path | None, name: str, value: Mapping[str, Any]) -> None:
    """Keeps ``value`` under ``name``. A folder that cannot be written is no error."""
    if cache_dir is not None:
        write(cache_dir / f"{name}.json", json.dumps(value).encode())


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
