"""An index of starts beside the list of sizes that it stands for."""

from __future__ import annotations

import random
from array import array
from itertools import accumulate

from toktier.starts import put_sizes


def test_random_changes_against_a_list_of_sizes() -> None:
    chance = random.Random(4)
    for _ in range(100):
        sizes: list[int] = []
        starts = array("q", (0,))
        for _ in range(30):
            i = chance.choice([0, len(sizes), chance.randint(0, len(sizes))])
            j = chance.choice([i, len(sizes), chance.randint(i, len(sizes))])
            new = [chance.randint(1, 9) for _ in range(chance.choice([0, 1, 2, 40]))]
            sizes[i:j] = new
            put_sizes(starts, i, j, iter(new))
            assert starts.tolist() == [0, *accumulate(sizes)]
