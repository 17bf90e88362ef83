"""A request's body on its way to a value: beside an earlier body of its tenant where there is one that is alike.

Earlier bodies belong to the sessions of `toktier.sessions` and go with them. They are found by keys (`keys_of`) before
anything of the new one is read. A wrong guess costs the comparison, nothing else.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proxy import beside, changes, jsonspan
from proxy.jsonspan import MESSAGES, Parsed
from toktier.json_pieces import JsonLimits
from toktier.known import Source, keys_of, settle
from toktier.sessions import SessionStore

_SAMPLE = 64
_KEPT = "tools"
"""The member whose value is kept, and weighed where what was made of it is."""
_MODEL = "model"
_SMALL = 4096
"""Bytes of other members whose values are kept too. The rest is read again: objects take many times their bytes."""


class Ingest:
    """One body. ``store`` is None where no earlier body is to be looked for, and none is kept."""

    def __init__(
        self,
        raw: bytes,
        limits: JsonLimits,
        store: SessionStore | None = None,
        tenant: str = "",
        hint: str | None = None,
    ) -> None:
        """``hint``: what the request's head says of its session."""
        self.raw, self.limits = raw, limits
        self._epoch = 0 if store is None else store.epoch
        self._keys = () if store is None else keys_of(tenant, raw, hint)
        self._before = _most_alike(raw, store.sources(self._keys)) if store is not None and self._keys else None

    @property
    def is_likely(self) -> bool:
        """Whether there is a body to read this one beside."""
        return self._before is not None

    def beside(self, within_s: float | None = None) -> Parsed | None:
        """None where the whole has to be read. Raises as `proxy.beside.read`, and `ApiError` for a client's IDs."""
        before = self._before
        parsed = None if before is None else beside.read(self.raw, before.body, self.limits, within_s)
        if parsed is not None:
            changes.refuse_client_ids(parsed)
        return parsed

    def whole(self, within_s: float | None = None) -> Parsed:
        """Raises as `jsonspan.parse`, and `ApiError` for a client's IDs."""
        parsed = jsonspan.parse(self.raw, self.limits, within_s)
        changes.refuse_client_ids(parsed)
        return parsed

    def source(self, parsed: Parsed) -> Source | None:
        """What the request's session is to keep of the body, which was read as ``parsed``; None for nothing."""
        if not self._keys or parsed.listed is None:
            return None
        small = _small(parsed)
        tools = {_KEPT: parsed.outline[_KEPT]} if _KEPT in parsed.outline else {}
        # its runs are told by the source, for this request only
        kept = replace(parsed, outline=tools | small, shared=())
        names = sum(sys.getsizeof(member.name) for member in parsed.members)
        index = 16 * len(parsed.listed.starts) + 128 * len(parsed.members) + names + 1024
        return Source(
            body=kept,
            nbytes=len(self.raw) + index + settle(*small.values()).nbytes,
            keys=self._keys,
            again=_Again(self.raw, self.limits),
            epoch=self._epoch,
            before=self._before if parsed.shared else None,
            shared=parsed.shared,
        )


def _small(parsed: Parsed) -> dict[str, Any]:
    """Values of other members, as many as `_SMALL` bytes of the body hold."""
    found: dict[str, Any] = {}
    left = _SMALL
    for member in parsed.members:
        if member.name in (MESSAGES, _KEPT):
            continue
        left -= member.end - member.start
        if left < 0:
            break
        found[member.name] = parsed.outline[member.name]
    return found


def _most_alike(raw: bytes, sources: Sequence[Source]) -> Source | None:
    """The first one of the same model whose last message ends in ``raw`` as it ended there; else one of the same model,
    one that ends alike, or any. What was made for another model is of no use: its messages have to be read again."""
    return max(sources, key=lambda source: _likeness(raw, source.body), default=None)


def _likeness(raw: bytes, old: Parsed) -> tuple[bool, bool]:
    """Whether ``raw`` names the model where ``old`` does, counted from either end, and whether a message ends where the
    last one of ``old`` ended, and as it did."""
    named = False
    for member in old.members:
        if member.name == _MODEL:
            told = old.raw[member.start : member.end]
            named = raw.startswith(told, member.start) or raw.startswith(told, member.start + len(raw) - len(old.raw))
            break
    listed = old.listed
    end = int(listed.ends[-1]) if listed is not None and len(listed.ends) else 0
    return named, end > 0 and raw[end - _SAMPLE : end] == old.raw[end - _SAMPLE : end]


@dataclass(frozen=True, slots=True)
class _Again:
    """Reads a body anew (`Source.again`). Not a closure: a session that keeps it must hold nothing else."""

    raw: bytes
    limits: JsonLimits

    def __call__(self) -> Mapping[str, Any]:
        return jsonspan.parse(self.raw, self.limits).value
