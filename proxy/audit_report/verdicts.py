"""Which mismatches are resolved and which quarantines are in force, whatever the order in which the lines come.

Invariants
1. A mismatch is resolved when later `quarantine_lifted` lines name its tokenizer with each path that it speaks against
   (`suspects`), and not otherwise: one without a time, whose tokenizer or paths cannot be read, or of a (tokenizer,
   path) beyond `MOST_KEYS`, stays unresolved.
2. Memory is bounded: of one tokenizer and the same suspects at most `MOST_TIMES` moments are kept. Beyond that
   neighbours are counted as one at the later moment, so what counts as resolved is resolved, and whether anything is
   unresolved stays exact.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.audit_report.values import OTHER, iso, moment, name, number

MOST_TIMES = 4096
MOST_KEYS = 1024
MOST_DETAILS = 50
_MOST_SUSPECTS = 8
Key = tuple[str, str]
"""(tokenizer digest, path)."""
CaseKey = tuple[str, tuple[str, ...]]
"""(tokenizer digest, paths)."""

_UNKNOWN = "(unknown)"
_BEYOND = (OTHER, OTHER)
_ALL = ("(all)", "(all)")
"""What a damaged quarantine file puts in quarantine. To lift that resolves no mismatch."""
_NEVER = 1 << 62
"""The moment of a line without one: after everything."""

EVENTS = frozenset({"mismatch", "quarantined", "quarantine_read", "quarantine_unreadable", "quarantine_lifted"})

_NAMES = (
    "model",
    "upstream",
    "request_id",
    "source",
    "path",
    "full",
    "session",
    "kind",
    "tokenizer_digest",
    "prepared_with",
    "template_digest",
    "text_digest",
    "reference_text_digest",
    "ids_digest",
    "reference_ids_digest",
    "capture",
)
_NUMBERS = (
    "chars",
    "reference_chars",
    "tokens",
    "reference_tokens",
    "first_id",
    "first_char",
    "piece",
    "piece_start",
    "piece_chars",
    "delay_us",
)


@dataclass
class _Place:
    """What is known of one (tokenizer, path)."""

    lifted: int = -1
    lifted_by: str | None = None
    lifts: int = 0
    entries: dict[int, dict[str, str | None]] = field(default_factory=dict)
    """Moment of a line that says it is in quarantine -> level, source, model."""

    def lift(self, when: int, by: str | None) -> None:
        self.lifts += 1
        if when > self.lifted:
            self.lifted, self.lifted_by = when, by

    def quarantine(self, when: int, entry: dict[str, str | None]) -> None:
        self.entries[when] = entry
        if len(self.entries) > MOST_DETAILS:
            del self.entries[min(self.entries)]

    def in_force(self) -> list[int]:
        """Moments, since the last lift, of the lines that say it is in quarantine."""
        return sorted(when for when in self.entries if when >= self.lifted)


@dataclass
class _Case:
    """The mismatches of one tokenizer that speak against the same paths. ``times``: moment -> how many."""

    places: tuple[_Place, ...]
    """Those paths'."""
    times: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    settled: int = 0
    """Mismatches before the last lift that are no longer in ``times``."""

    def mismatch(self, when: int) -> None:
        self.times[when] += 1
        if len(self.times) > MOST_TIMES:
            self._shrink()

    @property
    def lifted(self) -> int:
        """When the last of the paths was lifted; -1 while one was not."""
        return min(place.lifted for place in self.places)

    def _shrink(self) -> None:
        self.settled += sum(count for when, count in self.times.items() if when < self.lifted)
        rest = sorted((when, count) for when, count in self.times.items() if when >= self.lifted)
        self.times = defaultdict(int)
        if len(rest) <= MOST_TIMES // 2:
            self.times.update(rest)
            return
        for earlier, later in zip(rest[::2], [*rest[1::2], (rest[-1][0], 0)], strict=False):
            self.times[later[0]] += earlier[1] + later[1]

    @property
    def unresolved(self) -> int:
        return sum(count for when, count in self.times.items() if when >= self.lifted)

    @property
    def total(self) -> int:
        return self.settled + sum(self.times.values())


class Verdicts:
    """Takes the lines of mismatches and quarantines; `EVENTS` has their names."""

    def __init__(self) -> None:
        self._places: dict[Key, _Place] = {}
        self._cases: dict[CaseKey, _Case] = {}
        self._latest: list[tuple[int, int, _Case, dict[str, Any]]] = []
        self._serial = 0

    def take(self, event: str, line: Mapping[str, Any]) -> None:
        """One line. Any event outside `EVENTS` is ignored."""
        if event not in EVENTS:
            return
        when = moment(line.get("ts"))
        at = _NEVER if when is None else when
        key = (name(line.get("tokenizer_digest")) or _UNKNOWN, name(line.get("path")) or _UNKNOWN)
        if event == "mismatch":
            paths = suspects(line)
            case = self._case(key[0], paths)
            case.mismatch(at)
            self._keep(at, case, paths, line)
        elif event in ("quarantined", "quarantine_read"):
            entry = {"level": name(line.get("quarantine_level"))}
            self._place(key)[1].quarantine(at, entry | {about: name(line.get(about)) for about in ("source", "model")})
        elif event == "quarantine_unreadable":
            self._place(_ALL)[1].quarantine(at, {"level": "reference", "source": None, "model": None})
        elif when is not None:
            if line.get("tokenizer_digest") is None and line.get("path") is None:
                key = _ALL
            key, place = self._place(key)
            if key != _BEYOND and _UNKNOWN not in key:
                place.lift(when, name(line.get("by")))

    def _place(self, key: Key) -> tuple[Key, _Place]:
        if key not in self._places and len(self._places) >= MOST_KEYS:
            key = _BEYOND
        return key, self._places.setdefault(key, _Place())

    def _case(self, digest: str, paths: tuple[str, ...]) -> _Case:
        places = dict(self._place((digest, path)) for path in paths)
        beyond = _BEYOND in places or ((digest, paths) not in self._cases and len(self._cases) >= MOST_KEYS)
        if beyond:
            digest, paths, places = OTHER, (OTHER,), dict([self._place(_BEYOND)])
        return self._cases.setdefault((digest, paths), _Case(tuple(places.values())))

    def _keep(self, when: int, case: _Case, paths: tuple[str, ...], line: Mapping[str, Any]) -> None:
        detail: dict[str, Any] = {key: name(line.get(key)) for key in _NAMES}
        detail |= {key: number(line.get(key)) for key in _NUMBERS}
        by_gpu = line.get("by_gpu")
        detail["by_gpu"] = by_gpu if isinstance(by_gpu, bool) else None
        detail["suspects"] = list(paths)
        for about in ("versions", "certificate"):
            value = line.get(about)
            if isinstance(value, dict):
                detail[about] = {name(k) or "": name(v) for k, v in list(value.items())[:16]}
            else:
                detail[about] = name(value)
        self._serial += 1
        push = heapq.heappush if len(self._latest) < MOST_DETAILS else heapq.heappushpop
        push(self._latest, (when, self._serial, case, detail))

    @property
    def unresolved(self) -> int:
        """Mismatches that no lift followed."""
        return sum(case.unresolved for case in self._cases.values())

    def mismatches(self) -> dict[str, Any]:
        """Totals, the state of each tokenizer and paths spoken against, and the latest mismatches, newest first."""
        cases = [
            {
                "tokenizer_digest": digest,
                "path": ", ".join(paths),
                "total": case.total,
                "unresolved": case.unresolved,
                "lifted": iso(case.lifted) if case.lifted >= 0 else None,
            }
            for (digest, paths), case in sorted(self._cases.items(), key=lambda item: item[0])
        ]
        latest = []
        for when, _, case, detail in sorted(self._latest, key=lambda entry: entry[:2], reverse=True):
            latest.append({"ts": None if when == _NEVER else iso(when), "resolved": when < case.lifted, **detail})
        return {
            "total": sum(case.total for case in self._cases.values()),
            "unresolved": self.unresolved,
            "cases": cases,
            "latest": latest,
        }

    def quarantines(self) -> dict[str, Any]:
        """Those in force, and the last lift of every (tokenizer, path) that has one."""
        in_force, lifted = [], []
        for (digest, path), known in sorted(self._places.items(), key=lambda item: item[0]):
            place = {"tokenizer_digest": digest, "path": path}
            if known.lifts:
                lifted.append({**place, "ts": iso(known.lifted), "by": known.lifted_by, "lifts": known.lifts})
            if moments := known.in_force():
                since = None if moments[0] == _NEVER else iso(moments[0])
                in_force.append({**place, "since": since, **known.entries[moments[-1]]})
        return {"in_force": in_force, "lifted": lifted}


def suspects(line: Mapping[str, Any]) -> tuple[str, ...]:
    """The paths that a ``mismatch`` line speaks against, sorted; lines of before 2026-12-01 do not name them.

    By the rule of `proxy.mismatch.suspects`, then and now.
    """
    named = line.get("suspects")
    if named is None:
        named = [line.get("path")]
        if line.get("by_gpu") is True:
            if line.get("source") != "shadow":
                named.append("gpu")
            elif line.get("kind") == "ids":
                named = ["gpu"]
    if not isinstance(named, list) or not 0 < len(named) <= _MOST_SUSPECTS:
        return (_UNKNOWN,)
    return tuple(sorted({name(path) or _UNKNOWN for path in named}))
