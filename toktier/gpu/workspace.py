"""What the launches of a device work on, one after the other: its memory, page-locked memory, and a stream.

Invariants:
- All of it is taken at once, for the longest text, and kept: no request waits for memory, or fails for lack of it.
- Launches of whatever size and tokenizer come one at a time (`Workspace.lock`) and on one stream, so that they can have
  the same memory. The number of a launch (`Workspace.next_turn`) is none of an earlier one: what the device has told of
  that one, in the same place, is not taken for an answer.
- The stream waits for nobody's default stream, and no default stream for it: PyTorch may be at work in this process.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from toktier.gpu.buffers import PADDING, REQUEST
from toktier.gpu.chain import layout_for, room_for, rooms

_NON_BLOCKING = 1
"""Of a stream."""


class Workspace:
    """For texts of up to ``limit`` bytes."""

    def __init__(self, driver: Any, limit: int) -> None:
        """``driver``: PyCUDA's. In the device's context only; raises what PyCUDA raises."""
        self.limit = limit
        self.lock = threading.Lock()
        self.stream = driver.Stream(_NON_BLOCKING)
        self._turn = 0
        self.memory = driver.mem_alloc(device_bytes(limit))
        try:
            driver.memset_d8_async(int(self.memory), 0, REQUEST.itemsize, self.stream)
            self._lock_pages(driver, room_for(limit))
        except BaseException:
            self.close()
            raise

    def _lock_pages(self, driver: Any, room: int) -> None:
        flags = driver.host_alloc_flags.DEVICEMAP
        self.staging: npt.NDArray[np.uint8] = driver.pagelocked_empty(
            REQUEST.itemsize + room + PADDING, np.uint8, mem_flags=flags
        )
        self.staging[:] = 0
        self.out: npt.NDArray[np.uint32] = driver.pagelocked_empty(room + PADDING, np.uint32, mem_flags=flags)
        self.done: npt.NDArray[np.uint8] = driver.pagelocked_empty(2 * REQUEST.itemsize, np.uint8, mem_flags=flags)
        self.done[:] = 0
        shared: tuple[Any, ...] = (self.out, self.done, self.staging)
        self.addresses: tuple[int, int, int] = tuple(array.base.get_device_pointer() for array in shared)
        """Of ``out``, ``done`` and ``staging``, as the device sees them."""

    def next_turn(self) -> int:
        """The number of a launch, a word of 32 bits."""
        self._turn = self._turn + 1 & 0xFFFFFFFF
        return self._turn

    def close(self) -> None:
        """Frees the device's memory. The page-locked part goes with the last view of it."""
        self.memory.free()


def device_bytes(limit: int) -> int:
    """Bytes of a device's memory for texts of up to ``limit`` bytes."""
    return max(layout_for(room).size for room in rooms(limit))


def locked_bytes(limit: int) -> int:
    """Bytes of page-locked memory of the machine for the same."""
    room = room_for(limit)
    return REQUEST.itemsize + room + PADDING + 4 * (room + PADDING) + 2 * REQUEST.itemsize
