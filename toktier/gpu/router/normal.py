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
from toktier.gpu.router.literals import Places
from toktier.gpu.router.scratch import Bytes, flags, give, row

_SEPARATORS = "\n\x00\x01|"
_NO_LEAD = 0xF8
_NOWHERE: Places = np.empty(0, np.int64)
_SHORT, _DENSE, _RARE, _STEPS = 64, 5, 8, 4


@dataclass(frozen=True)
class _Group:
    """Characters that begin with the bytes from ``first`` to ``last`` and are stable, except, where there is a ``box``,
    those whose second and third byte have 6 bits within it: ``(lowest second, highest, lowest third, highest)``."""

    first: int
    last: int
    box: tuple[int, int, int, int] | None

    def clear(self, suspect: Mask, text: Bytes) -> None:
        """Clears the places in the mask ``suspect`` at which one of them begins in ``text``; not the last two."""
        size = len(text) - 2
        given, other = row(size), row(size)
        stays, more = given.view(np.bool_), other.view(np.bool_)
        np.subtract(text[:size], np.uint8(self.first), out=other)  # what is below wraps round
        np.greater(other, self.last - self.first, out=stays)
        if self.box is not None:
            inside = row(size).view(np.bool_)
            inside[:] = True
            for k, (low, high) in enumerate((self.box[:2], self.box[2:]), start=1):
                np.subtract(text[k : size + k], np.uint8(0x80 + low), out=other)
                inside &= np.less_equal(other, high - low, out=more)
            stays |= inside
            give(inside)
        suspect[:size] &= stays
        give(given, other)


_FOUR = 0xF0
_RUNS = 3


@dataclass(frozen=True)
class Normal:
    """The normal form N. ``stable``: shape ``(0x110000,)``. Immutable, thread-safe."""

    stable: Mask
    normalize: Callable[[str], str]
    least: int = field(init=False)
    """No UTF-8 of a character that is not stable begins with a byte below this."""

    _two: Mask = field(init=False, repr=False)
    """Whether one begins with two bytes; of the second 6 bits count. Shape ``(256 * 64,)``."""
    _groups: list[_Group] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        points = np.flatnonzero(~self.stable)
        points = points[(points < 0xD800) | (points > 0xDFFF)]  # UTF-8 has no surrogates
        kind = np.searchsorted([0x800, 0x10000], points, side="right")
        bits = 6 * (kind + 1)
        leads = points >> bits | np.array([0xC0, 0xE0, 0xF0])[kind]
        seconds = points >> (bits - 6) & 63
        thirds = np.where(kind == 0, 0, points >> np.maximum(bits - 12, 0) & 63)
        two = np.zeros(256 * 64, np.bool_)
        two[leads << 6 | seconds] = True
        least = int(leads.min())
        groups: list[_Group] = []
        for lead in range(least, 0xF0):
            own = leads == lead
            if own.any():
                second, third = seconds[own], thirds[own]
                ends = (-128, 127) if lead < 0xE0 else (int(third.min()), int(third.max()))
                groups.append(_Group(lead, lead, (int(second.min()), int(second.max()), *ends)))
            elif groups and groups[-1].box is None and groups[-1].last == lead - 1:
                groups[-1] = _Group(groups[-1].first, lead, None)
            else:
                groups.append(_Group(lead, lead, None))
        for name, value in (("least", least), ("_two", two), ("_groups", groups)):
            object.__setattr__(self, name, value)

    def loose(self, text: Bytes, breaks: int = 0) -> Places:
        """Where characters that are not stable begin, shape ``(n,)``. ``text``: UTF-8 with so many break bytes; without
        such a place it is normal."""
        suspect = np.greater_equal(text, self.least, out=flags(len(text)))
        count = np.count_nonzero(suspect)
        if count == breaks:
            return _NOWHERE
        if len(text) >= _SHORT and count > len(text) >> _DENSE:
            self._thin(suspect, text)
        at = np.flatnonzero(suspect)
        if len(at):
            first, next_ = text.take(at), text.take(at + 1, mode="clip")
            at = at[self._two.take(first.astype(np.uint16) << 6 | next_ & 63) & (first < _NO_LEAD)]
        if not len(at):
            return at
        lead, second, third, fourth = (text.take(at + k, mode="clip").astype(np.uint32) for k in range(4))
        low = second & 63
        two = (lead & 31) << 6 | low
        three = (lead & 15) << 12 | low << 6 | third & 63
        four = (lead & 7) << 18 | low << 12 | (third & 63) << 6 | fourth & 63
        points = np.where(lead < 0xE0, two, np.where(lead < 0xF0, three, four))
        return at[~self.stable.take(points, mode="clip")]

    def _thin(self, suspect: Mask, text: Bytes) -> None:
        """Clears places of groups, the most frequent ones first, until few are left: comparing every byte is cheaper
        than looking many characters up."""
        sample = text[:: max(1, len(text) >> 13)]
        seen = np.bincount(sample, minlength=256).tolist()
        often = [(sum(seen[group.first : group.last + 1]), group) for group in self._groups]
        for count, group in sorted(often, key=lambda pair: -pair[0])[:_STEPS]:
            if count <= len(sample) >> _RARE or np.count_nonzero(suspect) <= len(text) >> _DENSE:
                return
            group.clear(suspect, text)

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
