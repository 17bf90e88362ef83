"""Small results that are kept on disk between starts. Losing one costs the work again, nothing else."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any


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
    """Keeps ``value`` under ``name``, whole or not at all. A folder that cannot be written is no error."""
    if cache_dir is None:
        return
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=cache_dir)
        with os.fdopen(handle, "w") as file:
            json.dump(value, file)
        Path(part).replace(cache_dir / f"{name}.json")
    except OSError:
        return
