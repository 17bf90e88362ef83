"""What a session keeps beside its rope, so that the next request's work follows what changed.

Invariants
1. ``synced``: the rope's text is the one that ``fold`` rendered last, and its leaves are that one's chunks. It is taken
   back before either changes and set again when both have; only while it holds may the fold's word about what changed
   be used on the rope.
2. ``written`` is the text of the rope's IDs, with what the session's requests have around them, as they were before the
   present change; it is taken out before the rope changes.
3. Whatever else is in here is only looked at to save work: it may be dropped at any time.
"""

from __future__ import annotations

from dataclasses import dataclass

from toktier.folding import Folded, FoldState
from toktier.known import Source
from toktier.written import Written


@dataclass(slots=True)
class Memory:
    """Owned by whoever has the session's rope (see `toktier.sessions`)."""

    source: Source | None = None
    """The last request's."""
    fold: FoldState | None = None
    synced: bool = False
    written: Written | None = None

    @property
    def nbytes(self) -> int:
        """About the bytes that all of it holds, without the strings that are leaves of the rope."""
        size = 0
        if self.source is not None:
            size += self.source.nbytes + (self.source.made.nbytes if self.source.made is not None else 0)
        if self.fold is not None:
            size += self.fold.nbytes + (0 if self.synced else self.fold.text_bytes)
        if self.written is not None:
            size += self.written.nbytes
        return size

    def forget(self) -> None:
        """Keep nothing but what the store has to take out of its maps itself, the source."""
        self.fold, self.synced, self.written = None, False, None

    def clone(self) -> Memory:
        """For a copy of the rope. The source stays with the session that has it."""
        return Memory(None, None if self.fold is None else self.fold.clone(), self.synced, self.written)

    def state(self, folded: Folded) -> FoldState:
        """The state to render with; a new one where there is none of this template object."""
        if self.fold is None or not self.fold.renders(folded):
            self.fold, self.synced = FoldState(folded), False
        return self.fold
