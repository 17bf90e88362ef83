"""A session's IDs as JSON text, kept in blocks, so that a turn writes only what changed of them.

Invariant: the pieces of ``write(ids, before, same)`` are the array that ``orjson`` writes of ``ids``, if the first
``same`` of them are those that ``before`` was written of.
"""

from __future__ import annotations

from typing import NamedTuple

import orjson

from toktier.ids import Ids

BLOCK = 4096
"""IDs in a block. The last block that changed, and what comes after it, is written anew."""


class Written(NamedTuple):
    """``blocks``: of `BLOCK` IDs each, the last one of as many or fewer; all but the first begin with a comma."""

    blocks: tuple[bytes, ...]

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.blocks)) + 48 * len(self.blocks)

    def pieces(self) -> list[bytes]:
        """To be written one after the other: a JSON array."""
        return [b"[", *self.blocks, b"]"]


def write(ids: Ids, before: Written | None = None, same: int = 0) -> Written:
    """``ids``, of which the first ``same`` are the first ones of ``before``."""
    kept = before.blocks[: same // BLOCK] if before is not None else ()
    blocks = list(kept)
    for start in range(len(kept) * BLOCK, len(ids), BLOCK):
        text = orjson.dumps(ids[start : start + BLOCK], option=orjson.OPT_SERIALIZE_NUMPY)
        blocks.append(b"," + text[1:-1] if start else text[1:-1])
    return Written(tuple(blocks))
