"""Which way a text is encoded: three that give the same IDs, and whose costs depend on the engine and the machine.

- *whole*: a short text is encoded again as a whole, as that takes less time than finding out what of it can stay;
- *in turn*: chunks one after the other, by the thread that asks;
- *on all cores*: chunks as one batch, which the engine spreads; waking its threads costs more than a few chunks.

Why the IDs are the same: T of a whole text is T by definition, and a batch is what the engine gives for each text by
itself. So a wrong threshold costs time and nothing else. `toktier.measured` finds them when a model is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Way(StrEnum):
    """How what was encoded for a request was encoded."""

    WHOLE = "whole"
    IN_TURN = "in_turn"
    ALL_CORES = "all_cores"


@dataclass(frozen=True, slots=True)
class Shortcuts:
    """Thresholds in characters. ``measured``: on this machine; else these are defaults."""

    whole_below: int
    """A text shorter than this is one chunk."""
    all_cores_from: int
    """So many characters in several chunks are a batch."""
    measured: bool = False

    def way(self, chars: int, scanned: int) -> Way | None:
        """Of a request whose text has ``chars`` characters, of which ``scanned`` were encoded; None where none were."""
        if not scanned:
            return None
        if scanned == chars < self.whole_below:
            return Way.WHOLE
        return Way.ALL_CORES if scanned >= self.all_cores_from else Way.IN_TURN


DEFAULTS = Shortcuts(whole_below=0, all_cores_from=8192)
"""What was right, or nearly so, wherever it was measured."""
