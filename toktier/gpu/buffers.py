"""What one request works on, laid out as ``struct Work`` and ``struct Request`` of ``cuda_src/work.cuh``.

One allocation holds all of a bucket's arrays. The text stands right behind the request's counters, so that one copy
brings both, and the counters come as zeros.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.gpu.splits import STATES_LIMIT

REQUEST = np.dtype(
    [
        ("n", "<u4"),
        ("deferred", "<u4"),
        ("longs", "<u8"),
        ("shorts", "<u4"),
        ("middles", "<u4"),
        ("open", "<u4"),
        ("unsettled", "<u4"),
        ("units", "<u4", 2),
        ("bigs", "<u4", 2),
        ("giants", "<u4", 2),
        ("error", "<u4"),
        ("total", "<u4"),
        ("passes", "<u4"),
        ("merged", "<u4"),
        ("barriers", "<u4", 2),
        ("turn", "<u4"),
        ("unused", "<u4", 11),
    ]
)
"""``struct Request``."""
FIELDS = (
    "text",
    "request",
    "mask",
    "late",
    "any",
    "cuts",
    "exits",
    "deferred",
    "heads",
    "maps",
    "group_maps",
    "group_opaque",
    "longs",
    "windows",
    "marked",
    "units",
    "giants",
    "bigs",
    "team",
    "ids",
    "loose",
    "spare",
    "ranks",
    "shorts",
    "middles",
    "pieces",
    "tokens",
    "offsets",
    "out",
    "sums",
    "host_out",
    "host_request",
    "staged",
)
"""The pointers of ``struct Work``, in order."""
_STRUCT = struct.Struct(f"<{len(FIELDS)}Q2I")
WORK_SIZE = _STRUCT.size

PROBE_TILE = 2048
SUMMED = 64
GROUP = 64
SHORTEST_GIANT = 2048
"""Bytes of a unit that several blocks encode, at least."""
TEAM_BLOCKS = 4096
"""Blocks that may encode a unit together."""
ALIGNMENT = 256
PADDING = 64
"""Bytes behind a text that may be read."""


@dataclass(frozen=True)
class Shape:
    """A shape of the pre-tokenizer's tiles, by its name in the kernels."""

    name: str
    tile: int
    """Bytes."""
    threads: int


SMALL = Shape("small", 2048, 128)
LARGE = Shape("large", 8192, 128)


@dataclass(frozen=True)
class Layout:
    """For texts of up to ``room`` bytes: where each array begins, and the size of all."""

    room: int
    shape: Shape
    offsets: Mapping[str, int]
    size: int

    @classmethod
    def of(cls, room: int, shape: Shape) -> Layout:
        tiles = room // shape.tile + 2
        groups = tiles // GROUP + 1
        probe_tiles = room // PROBE_TILE + 1
        words = room // 32 + 1
        slots = 2 * words  # of words that pieces share there is one for each
        # A piece is long behind a word of its own, and a miss has two bytes at least.
        sizes = {
            "request": REQUEST.itemsize,
            "text": room + PADDING,
            "mask": tiles * shape.tile // 8,
            "late": 8 * (tiles + 1),
            "any": 4 * tiles,
            "cuts": tiles * shape.tile // 8,
            "exits": 16 * tiles,
            "deferred": 4 * tiles,
            "heads": 4 * tiles,
            "maps": 16 * STATES_LIMIT * tiles,
            "group_maps": 16 * STATES_LIMIT * groups,
            "group_opaque": 4 * groups,
            "longs": 16 * words,
            "windows": 8 * words,
            "marked": 4 * slots,
            "units": 12 * slots,
            "giants": 12 * (room // SHORTEST_GIANT + 1),
            "bigs": 8 * slots,
            "team": 40 * TEAM_BLOCKS,
            "ids": 4 * PROBE_TILE * probe_tiles,
            "loose": 4 * PROBE_TILE * probe_tiles,
            "spare": 4 * PROBE_TILE * probe_tiles,
            "ranks": 4 * PROBE_TILE * probe_tiles,
            "shorts": 8 * (room // 2 + 1),
            "middles": 8 * (room // 16 + 1),
            "pieces": 4 * probe_tiles,
            "tokens": 4 * probe_tiles,
            "offsets": 4 * probe_tiles,
            "out": 4 * PROBE_TILE * probe_tiles,
            "sums": 4 * (probe_tiles // SUMMED + 1),
        }
        offsets, at = {}, 0
        for name, size in sizes.items():
            offsets[name] = at
            step = REQUEST.itemsize if name == "request" else ALIGNMENT  # the text follows its counters at once
            at += -(-size // step) * step
            if name == "text":
                at = -(-at // ALIGNMENT) * ALIGNMENT
        return cls(room, shape, offsets, at)

    def structure(self, base: int, host_out: int, host_request: int, staged: int) -> bytes:
        """``struct Work`` for arrays from address ``base`` on; the host's addresses as the device sees them."""
        at = {name: base + offset for name, offset in self.offsets.items()}
        at |= {"host_out": host_out, "host_request": host_request, "staged": staged}
        shift = (self.shape.tile // 32).bit_length() - 1
        return _STRUCT.pack(*(at[name] for name in FIELDS), shift, self.room)


def counters(raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """The request's counters in its bytes, as a view."""
    view: npt.NDArray[np.void] = raw[: REQUEST.itemsize].view(REQUEST)
    return view
