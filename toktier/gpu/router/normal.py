"""Whether a text is normal already, and the normal form of what is not: NFC and NFKC, from tables probed out of the
reference's normalizer.

A character is *stable* if it is a boundary (`toktier.certificate.forms`: nothing is sorted or composed across its left
side, so N(x c y) = N(x) N(c y) for all x and y) and N(c) = c. From the left, N(c1 c2 ..) = N(c1) N(c2 ..) = c1 N(c2 ..)
and so on: a text of stable characters alone is normal. In any other text a *region* is a run of characters that are not
stable, with the one stable character before it, which they may compose with. Regions and what lies between begin with a
boundary, but for a region at the text's start, so N of the text is N of each, one after the other, and what lies
between is normal. Regions are given to the normalizer in one text, with a stable separator between them that none of
them holds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from toktier.certificate.classes import CODE_POINTS, Mask, Probe
from toktier.certificate.forms import FORMS, form_step
from toktier.errors import Refusal
from toktier.gpu.router.literals import Bytes, Places, scratch

_SEPARATORS = "\n\x00\x01|"
_NO_LEAD = 0xF8


@dataclass(frozen=True)
class Normal:
    """The normal form N. ``stable``: shape ``(0x110000,)``. Immutable, thread-safe."""

    stable: Mask
    normalize: Callable[[str], str]
    least: int = field(init=False)
    """No UTF-8 of a character that is not stable begins with a byte below this."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "least", chr(int(self.stable.argmin())).encode()[0])

    def loose(self, text: Bytes) -> Places:
        """Where characters that are not stable begin, shape ``(n,)``. ``text``: UTF-8, maybe with break bytes; without
        such a place it is normal."""
        at = np.flatnonzero(np.greater_equal(text, self.least, out=scratch(len(text))))
        if not len(at):
            return at
        at = at[text.take(at) < _NO_LEAD]
        lead, second, third, fourth = (text.take(at + k, mode="clip").astype(np.uint32) for k in range(4))
        low = second & 63
        two = (lead & 31) << 6 | low
        three = (lead & 15) << 12 | low << 6 | third & 63
        four = (lead & 7) << 18 | low << 12 | (third & 63) << 6 | fourth & 63
        points = np.where(lead < 0xE0, two, np.where(lead < 0xF0, three, four))
        return at[~self.stable.take(points, mode="clip")]

    def of(self, text: str) -> str:
        """N(text); ``text`` itself where that is normal. Holds the interpreter's lock while the normalizer works."""
        loose = np.flatnonzero(~self.stable.take(np.frombuffer(text.encode("utf-32-le"), "<u4")))
        if not len(loose):
            return text
        gaps = np.flatnonzero(np.diff(loose) > 1)
        starts = np.maximum(loose[np.concatenate([[0], gaps + 1])] - 1, 0).tolist()
        ends = (loose[np.concatenate([gaps, [len(loose) - 1]])] + 1).tolist()
        regions = [text[a:b] for a, b in zip(starts, ends, strict=True)]
        normal = self._each(regions)
        if normal == regions:
            return text
        parts: list[str] = []
        at = 0
        for start, end, region in zip(starts, ends, normal, strict=True):
            parts += (text[at:start], region)
            at = end
        return "".join([*parts, text[at:]])

    def _each(self, regions: list[str]) -> list[str]:
        for separator in _SEPARATORS:
            joined = separator.join(regions)
            if joined.count(separator) == len(regions) - 1:
                normal = self.normalize(joined).split(separator)
                if len(normal) == len(regions):
                    return normal
        return list(map(self.normalize, regions))


def normal_of(spec: Mapping[str, Any] | None, normalize: Callable[[str], str] | None, probe: Probe) -> Normal | None:
    """That of a ``tokenizer.json``'s normalizer; None where it changes nothing. ``normalize``: the reference's.

    Raises `Refusal` for any other than NFC and NFKC.
    """
    while spec is not None and spec.get("type") == "Sequence":
        inner = spec.get("normalizers") or []
        if len(inner) > 1:
            raise Refusal("more than one normalizer", "normalizer")
        spec = inner[0] if inner else None
    if spec is None:
        return None
    form = str(spec.get("type"))
    step = form_step(form, probe, "normalizer") if form in FORMS else None
    if step is None or step.boundary is None or normalize is None:
        raise Refusal(f"normalizer {form}", "normalizer")
    stable = np.ones(CODE_POINTS, np.bool_)
    stable[step.tail.points] = False
    stable &= step.boundary
    if not stable[:128].all() or not all(stable[ord(one)] for one in _SEPARATORS):
        raise Refusal(f"{form} that changes ASCII characters", "normalizer")
    return Normal(stable, normalize)
