"""Tables on disk, as the certificate keeps its own (`toktier.certificate.store`).

A key names the tokenizer (its files' digest and the engines' versions) and the sources of the certificate's package,
which probes the classes, and of this one. A damaged file is made again; a folder that cannot be written costs time.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier import kept
from toktier.certificate.source import derivation

_NUMBERS = "numbers"


def load(cache_dir: Path | None, key: str) -> tuple[dict[str, npt.NDArray[Any]], dict[str, int]] | None:
    """The arrays and numbers kept under ``key``, or None."""
    if cache_dir is None:
        return None
    try:
        raw = _path(cache_dir, key).read_bytes()
        if hashlib.sha256(raw[32:]).digest() != raw[:32]:
            return None
        with np.load(io.BytesIO(raw[32:]), allow_pickle=False) as held:
            numbers = json.loads(bytes(held[_NUMBERS]))
            return {name: held[name] for name in held.files if name != _NUMBERS}, numbers
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


def store(cache_dir: Path | None, key: str, arrays: Mapping[str, npt.NDArray[Any]], numbers: Mapping[str, int]) -> None:
    """Keeps them under ``key``."""
    if cache_dir is None:
        return
    body = io.BytesIO()
    held: dict[str, Any] = {**arrays, _NUMBERS: np.frombuffer(json.dumps(numbers).encode(), np.uint8)}
    np.savez(body, **held)
    kept.write(_path(cache_dir, key), hashlib.sha256(body.getvalue()).digest() + body.getvalue())


@cache
def _source() -> str:
    state = hashlib.sha256(derivation().encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        source = path.read_bytes()
        state.update(f"{path.name} {len(source)}\0".encode() + source)
    return state.hexdigest()


def _path(cache_dir: Path, key: str) -> Path:
    name = hashlib.sha256(f"{key}\0{_source()}".encode()).hexdigest()
    return cache_dir / "gpu" / f"{name[:40]}.npz"
