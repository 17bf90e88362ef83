"""Which kernels a text of a size is given to, and in what shape they are launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.gpu.buffers import LARGE, PROBE_TILE, SMALL, SUMMED, TEAM_BLOCKS, Layout
from toktier.gpu.splits import MOVES_LIMIT, STATES_LIMIT, SYNC_LIMIT
from toktier.gpu.tables import Tables

BRIEF = 2048
"""Bytes of room for texts of less than that, which one kernel can take: of them launches are what takes long."""
BULK_FROM = 16 << 20
"""Bytes of room from which on throughput counts and latency does not: other tiles, more launches, and the host copies
the IDs when it knows how many."""
_SHAPED = ("tiles", "heads")
FEW_UP_TO = 2 << 20
"""Bytes of room up to which misses are few: half a warp for each is quicker than a thread."""
QUICK = ("longs", "probe", "merge", "finish")
BULK = ("windows", "stretches", "probe", "merge", "sums", "compact")
NAMES = tuple(
    dict.fromkeys(
        ("brief", *(f"{name}_{shape.name}" for shape in (SMALL, LARGE) for name in _SHAPED), *QUICK, *BULK, "merge_few")
    )
)
_THREADS = {"brief": 512, "longs": 256, "stretches": 256, "sums": 1024}
_TOGETHER = ("heads", "longs", "stretches")
_EARLY = ("merge", "finish")
_EVEN = ("tiles", "windows")
STRETCHES = 2
"""Blocks of `longs` and `stretches` that a multiprocessor holds at once, at least."""


@dataclass(frozen=True)
class Automata:
    """How large a tokenizer's are, which tiles keep in shared memory (``cuda_src/tile.cuh``)."""

    states: int
    moves: int
    sync: int

    @classmethod
    def of(cls, tables: Tables) -> Automata:
        return cls(*(tables.numbers[name] for name in ("states", "moves_size", "sync_size")))

    @property
    def size(self) -> int:
        """Bytes."""
        return -(-(4 * self.moves + 2 * self.sync) // 16) * 16


LARGEST = Automata(STATES_LIMIT, MOVES_LIMIT, SYNC_LIMIT)


@dataclass(frozen=True)
class Sizes:
    """Bytes of what the kernels keep in shared memory: ``tt_sizes`` of ``cuda_src/kernels.cu`` from its fourth on.
    Tiles have `Automata` besides."""

    small: int
    large: int
    stretches: int
    probe: int
    merge: int
    brief: int
    pulled: int

    @classmethod
    def of(cls, numbers: npt.NDArray[np.uint32]) -> Sizes:
        return cls(*(int(number) for number in numbers[3:10]))

    def shared(self, name: str, automata: Automata = LARGEST) -> int:
        """Of one kernel, for a tokenizer with such ``automata``."""
        kernel, _, shape = name.partition("_")
        if kernel in _SHAPED:
            tile, threads = (self.large, LARGE.threads) if shape == LARGE.name else (self.small, SMALL.threads)
            tile += automata.size
            if kernel == "tiles":
                return tile + self.pulled if shape == SMALL.name else tile
            return tile + (4 * automata.states + 16) * threads
        plain = {"brief": self.brief, "longs": self.stretches, "stretches": self.stretches, "probe": self.probe}
        return (plain | {"merge": self.merge}).get(name, 0)


@dataclass(frozen=True)
class Kernel:
    """One launch."""

    name: str
    blocks: int
    threads: int
    together: bool = False
    """All blocks at once on the device."""
    early: bool = False
    """It waits for the kernel before it by itself, so it may be started before that has ended."""
    even: bool = False
    """All blocks have as much to do: no more of them than the device holds at once, or the last ones run alone."""


def room_for(size: int) -> int:
    """Bytes of room of the buffers for a text of ``size`` bytes: a power of two."""
    return BRIEF if size < BRIEF else max(2 * BRIEF, 1 << (size - 1).bit_length())


def rooms(limit: int) -> list[int]:
    """All that `room_for` gives for texts of up to ``limit`` bytes."""
    return [1 << bits for bits in range(BRIEF.bit_length() - 1, room_for(limit).bit_length())]


ONE = [Kernel("brief", 1, _THREADS["brief"])]
"""Instead of `chain`, for texts of less than `BRIEF` bytes. It reads the text in the host's memory."""


def is_bulk(layout: Layout) -> bool:
    """Whether the host copies the IDs of such texts."""
    return layout.shape is LARGE


def layout_for(room: int) -> Layout:
    """What texts of up to ``room`` bytes work on."""
    return Layout.of(room, LARGE if room >= BULK_FROM else SMALL)


def chain(layout: Layout, processors: int) -> list[Kernel]:
    """The launches for texts of up to ``layout.room`` bytes, in order."""
    shape, room = layout.shape, layout.room
    tiles, probe_tiles, words = room // shape.tile + 1, room // PROBE_TILE + 1, room // 32 + 1
    wide = 16 * processors
    together = min(STRETCHES * processors, TEAM_BLOCKS)
    blocks = {
        "tiles": min(tiles, wide),
        "heads": min(tiles, (4 if shape is SMALL else 8) * processors),
        "longs": min(words // 32 + 1, together),
        "windows": min(words // 4 + 1, wide),
        "stretches": min(words // 256 + 1, together),
        "probe": min(probe_tiles, wide),
        "merge": min(room // 64 + 1, wide),
        "sums": min(probe_tiles // (32 * SUMMED) + 1, processors),
        "compact": min(probe_tiles, wide),
        "finish": min(probe_tiles, wide),
    }
    found = []
    for name in (*_SHAPED, *(BULK if is_bulk(layout) else QUICK)):
        threads = shape.threads if name in _SHAPED else _THREADS.get(name, 128)
        called = f"{name}_{shape.name}" if name in _SHAPED else name
        if name == "merge" and room <= FEW_UP_TO:
            called = "merge_few"
        found.append(Kernel(called, blocks[name], threads, name in _TOGETHER, name in _EARLY, name in _EVEN))
    return found
