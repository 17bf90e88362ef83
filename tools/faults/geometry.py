"""What sampling at a share S predicts, and whether what was seen agrees with it.

Every faulty request is checked with probability S, independently of the others. So the number of faulty requests until
one is found is geometric with mean 1/S, and the number of checked ones among n is binomial. Both are tested as they
are, the end of a run that cuts the last wait short included: the same n requests are drawn 2,000 times from the
prediction, and p is the share of draws that are at least as far from it as what was seen (a Monte Carlo test; p is
exact up to the number of draws). Distances: for waits the greatest difference between the distribution functions
(Kolmogorov and Smirnov), for the count its distance from nS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

DRAWS = 2_000
DOUBTFUL = 0.001
"""A p below this is no chance: of campaigns with ten tests, one in a hundred would be failed wrongly."""


@dataclass(frozen=True)
class Geometry:
    """Waits are counted in faulty requests, the one that is found included: 1 is at once."""

    waits: int
    mean: float | None
    longest: int | None
    predicted_mean: float
    waits_p: float | None
    """None where sampling is certain, so that there is nothing to draw, or where no fault was found."""
    count_p: float | None
    every_wait_is_one: bool

    @property
    def agrees(self) -> bool:
        """Whether this is what sampling predicts."""
        if self.predicted_mean == 1:
            return self.every_wait_is_one
        return all(p is None or p >= DOUBTFUL for p in (self.waits_p, self.count_p))


def waits_of(found: Sequence[bool] | npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """How many faulty requests each detection took, the one that was found included."""
    places = np.flatnonzero(np.asarray(found, bool))
    return np.diff(places, prepend=-1).astype(np.int64)


def compare(found: Sequence[bool], share: float, seed: int = 0) -> Geometry:
    """``found``: for each faulty request, in their order, whether it was checked. ``share``: S, in (0, 1]."""
    seen = np.asarray(found, bool)
    waits = waits_of(seen)
    certain = share >= 1
    waits_p = count_p = None
    if not certain and len(seen):
        rng = np.random.default_rng(seed)
        drawn = rng.random((DRAWS, len(seen))) < share
        off = abs(drawn.sum(1) - len(seen) * share)
        count_p = _share_at_least(off, abs(int(seen.sum()) - len(seen) * share))
        if len(waits):
            others = [_distance(waits_of(row), share) for row in drawn]
            waits_p = _share_at_least(np.array(others), _distance(waits, share))
    return Geometry(
        waits=len(waits),
        mean=float(waits.mean()) if len(waits) else None,
        longest=int(waits.max()) if len(waits) else None,
        predicted_mean=1 / share,
        waits_p=waits_p,
        count_p=count_p,
        every_wait_is_one=bool(len(waits) == len(seen) and (waits == 1).all()),
    )


def _share_at_least(drawn: npt.NDArray[np.float64], seen: float) -> float:
    return float((1 + (drawn >= seen - 1e-12).sum()) / (1 + len(drawn)))


def _distance(waits: npt.NDArray[np.int64], share: float) -> float:
    """Greatest difference between the distribution function of ``waits`` and the geometric one; 1 without waits."""
    if not len(waits):
        return 1.0
    counts = np.bincount(waits)
    own = np.cumsum(counts) / len(waits)
    predicted = 1 - (1 - share) ** np.arange(len(counts))
    return float(abs(own - predicted).max())
