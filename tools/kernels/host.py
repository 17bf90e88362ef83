"""The device core compiled by g++ and loaded by ctypes: the phases of the kernels, one thread after the other.

`HostDevice` is a device of it, for the router.
"""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.gpu.launcher import KernelFault
from toktier.gpu.router.cuda import failure_of
from toktier.gpu.router.devices import Failed
from toktier.gpu.tables import ARRAYS, Tables
from toktier.ids import Ids

SOURCES = Path(__file__).resolve().parents[2] / "cuda_src"
SHAPES = {"tiny": 0, "small": 1, "large": 2}
"""Tiles of 64 bytes (every edge is near), and those of the kernels."""
_FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-shared", "-fPIC")


COUNTS = (
    "settled",
    "deferred",
    "opaque",
    "groups",
    "cuts",
    "parts",
    "longs",
    "uniform",
    "windows",
    "open",
    "units",
    "unsettled",
    "passes",
    "shorts",
    "middles",
    "rounds",
    "dips",
    "dip_parts",
    "dips_again",
    "early",
)


class Counts(ctypes.Structure):
    """What a call has exercised."""

    _fields_ = tuple((name, ctypes.c_uint32) for name in COUNTS)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in COUNTS}


@dataclass(frozen=True)
class Encoded:
    """``ids``: None where a piece was not encoded, which does not happen."""

    ids: Ids | None
    counts: dict[str, int]


class HostCore:
    """The library. Thread-safe."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        arguments: Any = [
            ctypes.c_char_p,
            ctypes.c_int,
            ctypes.c_char_p,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._library.tt_starts.argtypes = arguments
        self._library.tt_starts.restype = None
        self._library.tt_encode.argtypes = arguments
        self._library.tt_encode.restype = ctypes.c_uint32
        self._library.tt_unit.argtypes = [arguments[0], *arguments[2:]]
        self._library.tt_unit.restype = ctypes.c_uint32
        self._library.tt_sizes.argtypes = [ctypes.c_uint32]
        self._library.tt_sizes.restype = ctypes.c_uint32

    def size(self, which: int) -> int:
        """Of a structure that both sides lay out, in the order of ``tt_sizes``."""
        return int(self._library.tt_sizes(which))

    def starts(self, tables: Tables, text: bytes, shape: str) -> tuple[npt.NDArray[np.int64], dict[str, int]]:
        """The offsets at which pieces begin, shape ``(pieces,)``."""
        out = np.zeros(len(text), np.uint8)
        counts = Counts()
        structure = structure_of(tables)
        self._library.tt_starts(structure, SHAPES[shape], text, len(text), out.ctypes.data, ctypes.addressof(counts))
        return np.flatnonzero(out), counts.as_dict()

    def encode(self, tables: Tables, text: bytes, shape: str) -> Encoded:
        """The IDs of a segment."""
        out = np.zeros(len(text) + 64, np.uint32)
        counts = Counts()
        structure = structure_of(tables)
        total = self._library.tt_encode(
            structure, SHAPES[shape], text, len(text), out.ctypes.data, ctypes.addressof(counts)
        )
        return Encoded(None if total == 0xFFFFFFFF else out[:total], counts.as_dict())

    def unit(self, tables: Tables, text: bytes) -> tuple[npt.NDArray[np.uint32] | None, dict[str, int]]:
        """Where the tokens of a text begin that is merged as one unit, whatever it is; None: it has a dip too long."""
        out = np.zeros(len(text), np.uint32)
        counts = Counts()
        total = self._library.tt_unit(structure_of(tables), text, len(text), out.ctypes.data, ctypes.addressof(counts))
        return None if total == 0xFFFFFFFF else out[:total], counts.as_dict()


@dataclass(frozen=True)
class HostEncoder:
    """One tokenizer on a `HostDevice`. See `toktier.gpu.router.devices.SegmentEncoder`."""

    core: HostCore
    tables: Tables
    shape: str
    room: int

    def encode_view(self, segment: bytes) -> Ids:
        text = bytes(segment)
        if len(text) > self.room:
            raise ValueError("longer than a launch")
        ids = self.core.encode(self.tables, text, self.shape).ids
        if ids is None:
            raise KernelFault("a piece was not encoded")
        return ids

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class HostDevice:
    """The core in the place of a GPU. See `toktier.gpu.router.devices.OpenDevice`."""

    core: HostCore
    shape: str = "small"
    name: str = "g++"

    def encoder(self, tables: Tables, room: int) -> HostEncoder:
        return HostEncoder(self.core, tables, self.shape, room)

    def failure(self, error: BaseException) -> Failed:
        return failure_of(error)

    def close(self) -> None:
        """Nothing is held."""


def structure_of(tables: Tables) -> bytes:
    """``struct Tables``, with the host's addresses."""
    return tables.structure({name: tables.arrays[name].ctypes.data for name in ARRAYS})


def built(folder: Path, source: str, *more: str) -> Path:
    """The library of one of `SOURCES`, compiled in ``folder`` unless it is there; ``more``: flags. Raises
    `FileNotFoundError` without g++ and `subprocess.CalledProcessError` where it does not compile."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise FileNotFoundError("g++ is not installed")
    flags = [*_FLAGS, *more]
    state = hashlib.sha256(" ".join([source, *flags]).encode())
    for path in sorted(SOURCES.iterdir()):
        state.update(path.name.encode() + b"\0" + path.read_bytes())
    found = folder / f"{Path(source).stem}-{state.hexdigest()[:20]}.so"
    if not found.exists():
        folder.mkdir(parents=True, exist_ok=True)
        part = found.with_suffix(f".{id(state)}.part")
        subprocess.run([compiler, *flags, "-o", str(part), str(SOURCES / source)], check=True)
        part.replace(found)
    return found


def core(folder: Path) -> HostCore:
    """The core, as `built`."""
    return HostCore(built(folder, "host.cpp"))
