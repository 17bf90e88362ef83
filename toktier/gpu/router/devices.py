"""What the router needs of a device, and the one way in which it fails.

A device belongs to one thread, which opens it, uses it and closes it. `toktier.gpu.router.cuda` has real ones; tests
put the device core compiled by g++ in their place.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Protocol

from toktier.gpu.tables import Tables
from toktier.ids import Ids
from toktier.reasons import Gpu

FINAL = frozenset({Gpu.NO_DRIVER, Gpu.NO_PYCUDA, Gpu.NO_KERNELS, Gpu.NO_DEVICE, Gpu.WRONG_ARCHITECTURE})
"""Where nothing changes while the process lives, so that trying again is of no use."""


class Failed(Exception):
    """The GPU has no answer, for ``reason``; ``detail`` is for the operator and holds no text of a request."""

    def __init__(self, reason: Gpu, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail


class State(StrEnum):
    """Of a device."""

    OPENING = "opening"
    OK = "ok"
    PAUSED = "paused"
    """It failed, and is tried again after a while; or a call does not come back."""
    OFF = "off"
    """It cannot be used by this process."""
    CLOSED = "closed"


class SegmentEncoder(Protocol):
    """One tokenizer on one device."""

    def encode_view(self, segment: bytes) -> Ids:
        """The IDs of segments with break bytes between them, `toktier.gpu.vocabulary.BREAK_ID` for each of these. What
        comes back may be overwritten by the next call. Raises anything."""
        ...

    def close(self) -> None:
        """Frees what it holds."""
        ...


class OpenDevice(Protocol):
    """A device that was opened."""

    name: str

    def encoder(self, tables: Tables, room: int) -> SegmentEncoder:
        """One for texts of up to ``room`` bytes. Raises anything."""
        ...

    def failure(self, error: BaseException) -> Failed:
        """What an error that came of this device means."""
        ...

    def close(self) -> None:
        """Gives it back."""
        ...


Opener = Callable[[int], OpenDevice]
"""Opens the device of a number. Raises `Failed`."""
