"""Which kernels a text of a size is given to, and in what shape they are launched."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.gpu.buffers import LARGE, PROBE_TILE, SMALL, SUMMED, TEAM_BLOCKS, Layout

SMALLEST_ROOM = 4096
LARGE_FROM = 4 << 20
"""Bytes of room from which on throughput counts more than latency: other tiles."""
_SHAPED = ("tiles", "heads")
PLAIN = (
    "find_longs",
    "windows",
    "stretches",
    "probe",
    "merge",
    "sums",
    "compact",
    "deliver",
)
NAMES = tuple(f"{name}_{shape.name}" for shape in (SMALL, LARGE) for name in _SHAPED) + PLAIN
_THREADS = {"find_longs": 256, "stretches": 256, "sums": 1024, "deliver": 256}
_TOGETHER = ("heads", "stretches")
_STATES_LIMIT = 64
STRETCHES = 2
"""Blocks of `stretches` that a multiprocessor holds at once, at least."""


@dataclass(frozen=True)
class Sizes:
    """Bytes of what the kernels keep in shared memory: ``tt_sizes`` of ``cuda_src/kernels.cu`` from its fourth on."""

    small: int
    large: int
    stretches: int
    probe: int
    merge: int

    @classmethod
    def of(cls, numbers: npt.NDArray[np.uint32]) -> Sizes:
        return cls(*(int(number) for number in numbers[3:8]))

    def shared(self, name: str, states: int = _STATES_LIMIT) -> int:
        """Of one kernel, for a transducer of ``states``."""
        plain = {"stretches": self.stretches, "probe": self.probe, "merge": self.merge}
        kernel, _, shape = name.partition("_")
        if kernel in _SHAPED:
            tile, threads = (self.large, LARGE.threads) if shape == LARGE.name else (self.small, SMALL.threads)
            return tile if kernel == "tiles" else tile + (4 * states + 16) * threads
        return plain.get(name, 0)


@dataclass(frozen=True)
class Kernel:
    """One launch."""

    name: str
    blocks: int
    threads: int
    together: bool = False
    """All blocks at once on the device."""


def chain(layout: Layout, processors: int) -> list[Kernel]:
    """The launches for texts of up to ``layout.room`` bytes, in order."""
    shape, room = layout.shape, layout.room
    tiles, probe_tiles, words = room // shape.tile + 1, room // PROBE_TILE + 1, room // 32 + 1
    wide = 16 * processors
    blocks = {
        "tiles": min(tiles, (10 if shape is SMALL else 8) * processors),
        "heads": min(tiles, 2 * processors),
        "find_longs": min(words // 256 + 1, 8 * processors),
        "windows": min(words // 4 + 1, wide),
        "stretches": min(words // 256 + 1, STRETCHES * processors, TEAM_BLOCKS),
        "probe": min(probe_tiles, wide),
        "merge": min(room // 64 + 1, wide),
        "sums": min(probe_tiles // (32 * SUMMED) + 1, processors),
        "compact": min(probe_tiles, wide),
        "deliver": min(room // 4096 + 1, processors),
    }
    found = []
    for name in (*_SHAPED, *PLAIN):
        threads = shape.threads if name in _SHAPED else _THREADS.get(name, 128)
        called = f"{name}_{shape.name}" if name in _SHAPED else name
        found.append(Kernel(called, blocks[name], threads, together=name in _TOGETHER))
    return found
