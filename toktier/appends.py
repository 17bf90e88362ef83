"""Where an append begins to encode (lemma 6 of `docs/proof.md`, for the end of a text).

The end of a text is never a cut: what stands behind its last cut has to be encoded again, together with what comes. How
many IDs that is need not be known before: if k is a cut of the last chunk c, T(c) = T(c[:k]) + T(c[k:]), so the IDs
behind k are as many as those of c[k:], which is short and encoded to count them. And in most appends (a message after
another one) the old end itself is a cut of the new text, and nothing of the old one is encoded at all.
"""

from __future__ import annotations

from typing import NamedTuple

from toktier.chunks import ChunkEncoder, last_cut
from toktier.leaves import Leaves

_NEAR = 64
"""So many characters before the end are asked for a cut one by one: the mean distance between cuts is about 5."""


class Resumed(NamedTuple):
    """The text from character ``at`` on is ``behind``, and has the last ``tokens`` IDs."""

    at: int
    tokens: int
    behind: str


def resumed(encoder: ChunkEncoder, leaves: Leaves, begin: int, count: int, tail: str) -> Resumed:
    """From where on an append of ``tail`` is encoded, for an encoder that is `ChunkEncoder.plain`.

    ``begin``: where the last chunk starts, which has ``count`` IDs and is not empty. The place is the end, if that is a
    cut now, or else the last cut of the text as it was, which is one of the new text as well; where cuts are far it is
    the start of the chunk.
    """
    rule, size = encoder.rule, leaves.chars
    assert rule is not None
    is_cut, low = rule.is_cut, max(begin, size - _NEAR)
    near = leaves.text(low, size)
    if is_cut(near[-1] + tail[:2], 1):
        return Resumed(size, 0, "")
    for k in range(size - low - 1, 0, -1):
        if is_cut(near, k):
            behind = near[k:]
            return Resumed(low + k, len(encoder.one(behind)) >> 2, behind)
    if low == begin:
        return Resumed(begin, count, near)
    chunk = leaves.text(begin, size)
    # what is behind is encoded twice, so it must not be most of the chunk
    least = max(1, len(chunk) // 2, len(chunk) - encoder.alone + 1)
    cut = last_cut(rule, chunk, least, low - begin + 1)
    if cut is None:
        return Resumed(begin, count, chunk)
    behind = chunk[cut:]
    return Resumed(begin + cut, len(encoder.one(behind)) >> 2, behind)
