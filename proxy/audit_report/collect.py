"""From log lines to counts: one pass, in any order of lines and files.

Invariants
1. A line that is not TokTier's, or not whole, is counted and skipped; no line raises, except that one of a newer schema
   raises `Unusable`: to misread it would be worse than not to read it.
2. Memory does not grow with the log: every table here has a bounded number of rows.
3. `since` limits what is counted. Whether mismatches are resolved and quarantines in force is judged on all lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.audit import SCHEMA
from proxy.audit_report.sources import Source, Unusable
from proxy.audit_report.tally import UNKNOWN, Tally
from proxy.audit_report.timeline import Timeline
from proxy.audit_report.values import OTHER, Names, moment, name, number
from proxy.audit_report.verdicts import Verdicts

MOST_MODELS = 256
_CHECKING = frozenset({"shadow_check", "shadow_dropped", "parity_check", "parity_skipped", "mismatch"})


@dataclass
class Lines:
    """What became of the lines. ``malformed``: no JSON object; ``foreign``: JSON, but not TokTier's."""

    read: int = 0
    counted: int = 0
    before: int = 0
    malformed: int = 0
    foreign: int = 0
    too_long: int = 0

    @property
    def own(self) -> int:
        """Lines that TokTier wrote."""
        return self.counted + self.before


@dataclass
class Collected:
    """Everything that a report is made of. ``models``: None is for requests without a configured model."""

    since_us: int | None = None
    lines: Lines = field(default_factory=Lines)
    files: list[dict[str, Any]] = field(default_factory=list)
    models: dict[str | None, Tally] = field(default_factory=dict)
    requests: Timeline = field(default_factory=Timeline)
    shadow: Timeline = field(default_factory=Timeline)
    verdicts: Verdicts = field(default_factory=Verdicts)
    events: Names = field(default_factory=lambda: Names(128))
    workers: Names = field(default_factory=Names)
    lost: int = 0
    first: int | None = None
    last: int | None = None

    @property
    def all(self) -> Tally:
        """The tallies of all models as one."""
        everything = Tally()
        for tally in self.models.values():
            everything.include(tally)
        return everything

    def read(self, source: Source) -> None:
        """Every line of a file. Raises `Unusable` for a newer schema."""
        place = 0
        before = self.lines.own
        for line in source.lines():
            place += 1
            try:
                self.take(line)
            except Unusable as error:
                raise Unusable(f"{source.name}, line {place}: {error}") from None
        self.files.append(
            {
                "name": name(source.name, 512),
                "bytes": source.size,
                "lines": place,
                "own": self.lines.own - before,
                "damaged": source.damaged,
            }
        )

    def take(self, raw: bytes | None) -> None:
        """One line; None stands for one that was too long. Raises `Unusable` for a newer schema."""
        self.lines.read += 1
        if raw is None:
            self.lines.too_long += 1
            return
        try:
            line = orjson.loads(raw)
        except orjson.JSONDecodeError:
            self.lines.malformed += 1
            return
        if not isinstance(line, dict):
            self.lines.foreign += 1
            return
        schema, event = line.get("schema"), name(line.get("event"))
        if number(schema) is None or not schema or event is None or "ts" not in line:
            self.lines.foreign += 1
            return
        if schema > SCHEMA:
            raise Unusable(f"schema {schema} is newer than the {SCHEMA} that this version reads; use a newer toktier")
        self.verdicts.take(event, line)
        when = moment(line["ts"])
        if self.since_us is not None and when is not None and when < self.since_us:
            self.lines.before += 1
            return
        self.lines.counted += 1
        if when is not None:
            self.first = when if self.first is None else min(self.first, when)
            self.last = when if self.last is None else max(self.last, when)
        self._count(event, line, when)

    def _count(self, event: str, line: Mapping[str, Any], when: int | None) -> None:
        if event == "request":
            path = self._model(line).request(line)
            if when is not None:
                self.requests.count(when, path)
            return
        self.events.count(event)
        if event in _CHECKING:
            self._check(event, line, when)
        elif event == "log_dropped":
            self.lost += number(line.get("lines")) or 0
        elif event == "shadow_worker":
            self.workers.count(name(line.get("state")) or UNKNOWN)

    def _check(self, event: str, line: Mapping[str, Any], when: int | None) -> None:
        tally = self._model(line)
        if event == "mismatch":
            tally.mismatch(line)
        elif event == "parity_check":
            tally.parity.done(line)
        elif event == "parity_skipped":
            tally.parity.skipped.count(name(line.get("reason")) or UNKNOWN)
        else:
            if event == "shadow_check":
                tally.checks.done(line)
            else:
                tally.checks.dropped.count(name(line.get("reason")) or UNKNOWN)
            if when is not None:
                result = name(line.get("result")) if event == "shadow_check" else "dropped"
                self.shadow.count(when, result or UNKNOWN)

    def _model(self, line: Mapping[str, Any]) -> Tally:
        model = name(line.get("model"), 256)
        if model not in self.models:
            if len(self.models) >= MOST_MODELS:
                model = OTHER
            if model not in self.models:
                self.models[model] = Tally()
        return self.models[model]
