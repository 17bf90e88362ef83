"""IDs as JSON text in blocks: always the array, and what did not change is not written again."""

from __future__ import annotations

import json
from random import Random

import numpy as np

from toktier.ids import shared_prefix
from toktier.written import BLOCK, Written, write


def value(written: Written) -> list[int]:
    found: list[int] = json.loads(b"".join(written.pieces()))
    return found


def test_every_size_and_change() -> None:
    rng = Random(1)
    before, written = np.empty(0, np.uint32), None
    sizes = [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 7, 5, 4 * BLOCK, 0, BLOCK]
    for size in [*sizes, *(rng.randrange(5 * BLOCK) for _ in range(40))]:
        ids = np.array([rng.randrange(1 << 32) for _ in range(size)], np.uint32)
        same = rng.randrange(min(size, len(before)) + 1)
        ids[:same] = before[:same]
        same = shared_prefix(before, ids)
        after = write(ids, written, same)
        assert value(after) == ids.tolist()
        if written is not None:
            kept = same // BLOCK
            assert all(after.blocks[k] is written.blocks[k] for k in range(kept))
        assert after.nbytes >= sum(map(len, after.blocks))
        before, written = ids, after
