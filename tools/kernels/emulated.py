"""The kernels themselves on the host (``cuda_src/emulated.cpp``), launched as `toktier.gpu.launcher` launches them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from toktier.gpu.buffers import PADDING, REQUEST, Layout, counters
from toktier.gpu.chain import ONE, Automata, Sizes, chain, is_bulk
from toktier.gpu.launcher import KernelFault
from toktier.gpu.tables import Tables
from toktier.ids import Ids
from tools.kernels.host import built, structure_of

PROCESSORS = 1
"""Of the pretended device: blocks run one after the other, so fewer of them take the same paths in less time."""


@dataclass(frozen=True)
class Emulator:
    """``library``: of `emulator`."""

    library: ctypes.CDLL

    def encode(self, tables: Tables, text: bytes, layout: Layout, order: int = 0, *, one: bool = False) -> Ids:
        """The IDs of a segment. Threads run in ``order``: 0 ascending, 1 descending, others by chance; ``one``: by the
        one kernel. Raises `KernelFault`. Threads that do not meet, and what is written behind shared memory,
        end the process."""
        room = layout.room
        rng = np.random.default_rng(order)
        memory = rng.integers(0, 256, layout.size + 256, np.uint8)  # as the last text has left it
        base = -(-memory.ctypes.data // 256) * 256
        staged = np.zeros(REQUEST.itemsize + room + PADDING, np.uint8)
        out, told = np.zeros(room + PADDING, np.uint32), np.zeros(2 * REQUEST.itemsize, np.uint8)
        staged[REQUEST.itemsize :] = 0xEE
        staged[REQUEST.itemsize : REQUEST.itemsize + len(text)] = np.frombuffer(text, np.uint8)
        request = counters(staged)[0]
        request["n"], request["turn"] = len(text), 7
        if is_bulk(layout):  # the host copies the text; of others the counters are as the last kernel has left them
            ctypes.memmove(base, staged.ctypes.data, len(staged))
        else:
            ctypes.memset(base, 0, REQUEST.itemsize)
        work = layout.structure(base, out.ctypes.data, told.ctypes.data, staged.ctypes.data)
        numbers = np.array([self.library.tt_number(k) for k in range(10)], np.uint32)
        sizes = Sizes.of(numbers)
        for kernel in ONE if one else chain(layout, PROCESSORS):
            blocks = 1 if kernel.together else kernel.blocks
            shared = sizes.shared(kernel.name, Automata.of(tables))
            arguments = structure_of(tables), work, blocks, kernel.threads, shared, order
            if not self.library.tt_launch(kernel.name.encode(), *arguments):
                raise KernelFault(f"no kernel {kernel.name}")
        answer = counters(told)[0]
        if answer["error"]:
            raise KernelFault("a piece was not encoded")
        if not is_bulk(layout) and told[REQUEST.itemsize :].view("<u4")[0] != 7:
            raise KernelFault("the turn has not come back")
        if not (one or is_bulk(layout) or not any(ctypes.string_at(base, REQUEST.itemsize))):
            raise KernelFault("counters are left for the next text")
        total = int(answer["total"])
        ids = memory[base - memory.ctypes.data + layout.offsets["out"] :].view(np.uint32) if is_bulk(layout) else out
        return ids[:total]


def emulator(folder: Path) -> Emulator:
    """Built in ``folder`` unless it is there. Raises as `tools.kernels.host.core`."""
    library = ctypes.CDLL(str(built(folder, "emulated.cpp", "-Wno-unused-parameter", "-Wno-sign-compare")))
    library.tt_launch.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_uint32] * 4
    library.tt_launch.restype = ctypes.c_bool
    library.tt_number.argtypes, library.tt_number.restype = [ctypes.c_uint32], ctypes.c_uint32
    return Emulator(library)
