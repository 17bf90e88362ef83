"""A device that fails on purpose: real or not, its next calls do what a script says.

For tests of the router, and for its check on a GPU (`tools.kernels.router`). A script is written when the device serves
already, since the checks at the start are calls like any other.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from toktier.gpu.router.devices import Failed, OpenDevice, Opener, SegmentEncoder
from toktier.gpu.tables import Tables
from toktier.gpu.vocabulary import BREAK_BYTE
from toktier.ids import Ids

Fault = Callable[[Callable[[], Ids]], Ids]
"""Does something instead of a call, or with what it answers."""


def raises(error: BaseException) -> Fault:
    """The call raises ``error``."""

    def fault(_call: Callable[[], Ids]) -> Ids:
        raise error

    return fault


def hangs(until: threading.Event) -> Fault:
    """The call comes back when ``until`` is set."""

    def fault(call: Callable[[], Ids]) -> Ids:
        until.wait()
        return call()

    return fault


def wrong(call: Callable[[], Ids]) -> Ids:
    """The last ID of the call's answer is another one."""
    ids = call().copy()
    ids[-1] ^= 1
    return ids


@dataclass
class Script:
    """An `Opener` around another one. ``calls`` and ``opens``: what the next ones do, in order; the rest works."""

    opener: Opener
    calls: deque[Fault] = field(default_factory=deque)
    opens: deque[Failed] = field(default_factory=deque)
    opened: int = 0
    """How often a device was opened."""
    launches: list[int] = field(default_factory=list)
    """Segments of each call; 0 where they are not ``counted``, which takes a copy of the text."""
    counted: bool = True
    times: list[int] = field(default_factory=list)
    """Nanoseconds of the calls that had no fault."""
    devices: list[OpenDevice] = field(default_factory=list)
    """What was opened, without the script."""

    def __call__(self, number: int) -> OpenDevice:
        if self.opens:
            raise self.opens.popleft()
        self.opened += 1
        self.devices.append(self.opener(number))
        return _Device(self, self.devices[-1])


class _Device:
    def __init__(self, script: Script, device: OpenDevice) -> None:
        self._script, self._device = script, device
        self.name = device.name

    def encoder(self, tables: Tables, room: int) -> SegmentEncoder:
        return _Encoder(self._script, self._device.encoder(tables, room))

    def failure(self, error: BaseException) -> Failed:
        return self._device.failure(error)

    def close(self) -> None:
        self._device.close()


class _Encoder:
    def __init__(self, script: Script, encoder: SegmentEncoder) -> None:
        self._script, self._encoder = script, encoder

    def encode_view(self, segment: bytes) -> Ids:
        self._script.launches.append(bytes(segment).count(BREAK_BYTE) + 1 if self._script.counted else 0)
        fault = self._script.calls.popleft() if self._script.calls else None
        if fault is None:
            started = time.perf_counter_ns()
            ids = self._encoder.encode_view(segment)
            self._script.times.append(time.perf_counter_ns() - started)
            return ids
        return fault(lambda: self._encoder.encode_view(segment))

    def close(self) -> None:
        self._encoder.close()
