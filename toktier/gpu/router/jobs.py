"""What requests hand to the thread of a device, and what there is to know of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from toktier.gpu.router.devices import Failed
from toktier.gpu.router.scratch import Bytes
from toktier.gpu.tables import Tables
from toktier.ids import Ids

FIRST_RETRY_S = 1.0
LAST_RETRY_S = 300.0

Encode = Callable[[bytes], Ids]
"""See `toktier.gpu.router.devices.SegmentEncoder.encode_view`."""


@dataclass(frozen=True)
class Limits:
    """Of each device."""

    max_bytes: int = 16 << 20
    """Text of one launch."""
    queue_bytes: int = 64 << 20
    """Text that may wait."""
    window_s: float = 50e-6
    timeout_s: float = 2.0
    first_retry_s: float = FIRST_RETRY_S


@dataclass(frozen=True)
class Tokenizer:
    """What a device needs to serve a tokenizer. ``key``: its digest."""

    key: str
    tables: Tables
    accept: Callable[[Encode], None]
    """Compares the device with the reference. Raises `Failed`."""


class Job:
    """Segments that one request wants encoded by one device. All but ``done`` belongs to the worker's lock."""

    __slots__ = ("answer", "count", "done", "failed", "key", "raw", "started")

    def __init__(self, key: str, raw: Bytes, count: int) -> None:
        """``raw``: ``count`` segments with breaks between them."""
        self.key, self.raw, self.count = key, raw, count
        self.done = threading.Event()
        self.answer: Ids | None = None
        """With `toktier.gpu.vocabulary.BREAK_ID` for each break."""
        self.failed: Failed | None = None
        self.started: float | None = None
        """`time.monotonic` when the launch began that it is part of."""

    def end(self, answer: Ids | None, failed: Failed | None = None) -> None:
        if not self.done.is_set():
            self.answer, self.failed = answer, failed
            self.done.set()


@dataclass
class Tally:
    """What a worker has done."""

    launches: int = 0
    jobs: int = 0
    bytes: int = 0
    seconds: float = 0.0
    """In launches."""
