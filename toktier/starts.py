"""Where the parts of a row start, when some of them become others: the index of `toktier.rope` and `toktier.leaves`.

Entry k of ``starts`` is where part k starts, and one more entry is where the last one ends.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from itertools import accumulate

import numpy as np


def put_sizes(starts: array[int], i: int, j: int, sizes: Iterable[int]) -> None:
    """Parts ``[i, j)`` become parts of these sizes. Those behind them are moved in one pass, where they have to be."""
    following, place = len(starts) - 1 - j, starts[i]
    if not following:
        del starts[i + 1 :]
        for size in sizes:
            place += size
            starts.append(place)
        return
    end = starts[j]
    ends = array("q", accumulate(sizes, initial=place))
    starts[i : j + 1] = ends
    if ends[-1] != end:
        behind = np.frombuffer(starts, np.int64)[-following:]
        behind += ends[-1] - end
