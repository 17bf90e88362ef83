"""Derived tables on disk. A key names everything that a table was derived from: the tokenizer (its files' digest), the
reference engine's version and this package's own source, so that a changed rule derives again.

A damaged or unreadable file is derived again; a folder that cannot be written costs time, nothing else.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toktier import kept
from toktier.certificate.joins import Joins
from toktier.certificate.source import derivation
from toktier.certificate.table import Table


def load(cache_dir: Path | None, key: str | None, engine: str) -> tuple[Table, dict[str, Any]] | None:
    """The table and the facts kept under ``key``, or None."""
    if cache_dir is None or key is None:
        return None
    try:
        raw = _path(cache_dir, key, engine).read_bytes()
        if hashlib.sha256(raw[32:]).digest() != raw[:32]:
            return None
        with np.load(io.BytesIO(raw[32:]), allow_pickle=False) as held:
            facts = json.loads(bytes(held["facts"]))
            joins = Joins(held["left"], held["right"], held["joins"]) if "joins" in held else None
            return Table(held["classes"], held["matrix"], held["boundary"], joins), facts
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def store(cache_dir: Path | None, key: str | None, engine: str, table: Table, facts: Mapping[str, Any]) -> None:
    """Keeps a table under ``key``."""
    if cache_dir is None or key is None:
        return
    arrays: dict[str, Any] = {
        "classes": table.classes,
        "matrix": table.matrix,
        "boundary": table.boundary,
        "facts": np.frombuffer(json.dumps(facts).encode(), np.uint8),
    }
    if table.joins is not None:
        arrays |= {"left": table.joins.left, "right": table.joins.right, "joins": table.joins.table}
    body = io.BytesIO()
    np.savez(body, **arrays)
    kept.write(_path(cache_dir, key, engine), hashlib.sha256(body.getvalue()).digest() + body.getvalue())


def certificates_in(cache_dir: Path) -> Path:
    """The folder of the tables."""
    return cache_dir / "certificates"


def _path(cache_dir: Path, key: str, engine: str) -> Path:
    name = hashlib.sha256(f"{key}\0{engine}\0{derivation()}".encode()).hexdigest()
    return certificates_in(cache_dir) / f"{name[:40]}.npz"
