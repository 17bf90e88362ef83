"""Images: which character stands at a seam after a step that rewrites the text.

A step maps ``u a | b v`` to two texts again. All that later steps may know of a seam is the pair beside it, so a step
is told by two functions of one character each: ``left``, the last character of what ``u a`` becomes, and ``right``, the
first of what ``b v`` becomes. Invariants:

- an image holds for every u and v: where it would depend on them, the entry is `NO_SEAM`;
- shape ``(0x110000,)``, int32; surrogates are `NO_SEAM`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from toktier.certificate.classes import CODE_POINTS, SURROGATES, Flips, Mask

NO_SEAM = -1

Image = npt.NDArray[np.int32]


def identity() -> Image:
    """Every character as it is."""
    image = np.arange(CODE_POINTS, dtype=np.int32)
    image[SURROGATES.start : SURROGATES.stop] = NO_SEAM
    return image


def then(first: Image, second: Image) -> Image:
    """The image of one step after another."""
    return np.where(first == NO_SEAM, NO_SEAM, second[first]).astype(np.int32)


def pulled_back(inside: Mask, image: Image) -> Mask:
    """The characters whose image is ``inside``; both shapes ``(0x110000,)``."""
    result: Mask = inside[image] & (image != NO_SEAM)
    return result


def mask_of(flips: Flips) -> Mask:
    """A set as a mask over all code points, shape ``(0x110000,)``."""
    edges = np.concatenate([np.zeros(1, np.int64), flips, np.array([CODE_POINTS])])
    return np.repeat(np.arange(len(edges) - 1) % 2 == 1, np.diff(edges))


@dataclass(frozen=True)
class Sides:
    """The images of a on the left and of b on the right of a seam."""

    left: Image
    right: Image

    def then(self, other: Sides) -> Sides:
        return Sides(then(self.left, other.left), then(self.right, other.right))


def unchanged() -> Sides:
    """Images of a step that changes nothing."""
    return Sides(identity(), identity())
