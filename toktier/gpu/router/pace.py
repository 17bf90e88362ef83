"""Whether the GPU is the faster one just now, as its callers see it.

A crossover that was measured on an idle machine says little of a busy one: the host's part of the GPU path waits for
the interpreter, the CPU path for cores. So both are timed while they serve, and one text in `EVERY` goes the other way.
"""

from __future__ import annotations

import threading

EVERY = 16
_NEW = 0.25
"""The weight of the newest text."""


class Pace:
    """Nanoseconds a character of texts that are long enough for the GPU, on both paths. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts = 0
        self._ns: dict[bool, float] = {}

    @property
    def faster(self) -> bool:
        """Whether the GPU is, as far as both are known."""
        return len(self._ns) < 2 or self._ns[True] <= self._ns[False]

    def gpu_next(self) -> bool:
        """Whether the next text goes to the GPU."""
        with self._lock:
            self._texts += 1
            return self.faster is not (self._texts % EVERY == 0)

    def took(self, gpu: bool, chars: int, ns: int) -> None:
        """A text of so many characters took so long there."""
        with self._lock:
            each = ns / chars
            old = self._ns.get(gpu, each)
            self._ns[gpu] = old + _NEW * (each - old)
