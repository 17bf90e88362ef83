"""What is counted of requests and checks, for one model or for all.

Invariant: ``served`` (context delivered to the engine as IDs) and ``scanned`` (text that was encoded for it) are two
accounts, kept side by side and never added up or subtracted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from proxy.audit import STAGES
from proxy.audit_report.histogram import Histogram
from proxy.audit_report.values import Names, name, number

NOT_CHAT = "other"
"""Path of a request that was no chat request, or ended before it was known as one."""
LEFT = "none"
"""Status of a request whose client left before it got one."""
UNKNOWN = "(unknown)"
MOST_PATHS = 32


@dataclass
class Account:
    """Sums over requests."""

    requests: int = 0
    chars: int = 0
    served_chars: int = 0
    scanned_chars: int = 0
    tokens: int = 0

    def add(self, line: Mapping[str, Any]) -> None:
        """A request's line."""
        self.requests += 1
        self.chars += number(line.get("chars")) or 0
        self.served_chars += number(line.get("served_chars")) or 0
        self.scanned_chars += number(line.get("scanned_chars")) or 0
        self.tokens += number(line.get("tokens")) or 0

    def include(self, other: Account) -> None:
        """Adds the sums of another one."""
        for key, value in vars(other).items():
            setattr(self, key, getattr(self, key) + value)

    def json(self) -> dict[str, int]:
        """The fields, by their names."""
        return dict(vars(self))


@dataclass
class Checks:
    """Shadow checks, and the requests that could have been checked: those that went upstream with IDs."""

    could_be: int = 0
    results: Names = field(default_factory=Names)
    sampled: Names = field(default_factory=Names)
    paths: Names = field(default_factory=Names)
    dropped: Names = field(default_factory=Names)
    chars: int = 0
    delay: Histogram = field(default_factory=Histogram)
    queue: Histogram = field(default_factory=Histogram)
    check: Histogram = field(default_factory=Histogram)

    def done(self, line: Mapping[str, Any]) -> None:
        """A `shadow_check` line."""
        self.results.count(name(line.get("result")) or UNKNOWN)
        self.sampled.count(name(line.get("sampled")) or UNKNOWN)
        self.paths.count(name(line.get("path")) or UNKNOWN)
        self.chars += number(line.get("chars")) or 0
        for key, times in (("delay_us", self.delay), ("queue_us", self.queue), ("check_us", self.check)):
            if (value := number(line.get(key))) is not None:
                times.add(value)

    def include(self, other: Checks) -> None:
        """Adds everything that another one counted."""
        self.could_be += other.could_be
        self.chars += other.chars
        for key in ("results", "sampled", "paths", "dropped", "delay", "queue", "check"):
            getattr(self, key).include(getattr(other, key))

    def json(self) -> dict[str, Any]:
        """``rate`` is the share of requests with IDs that were checked; None without such requests."""
        done = self.results.total()
        return {
            "with_ids": self.could_be,
            "done": done,
            "equal": self.results["equal"],
            "different": self.results["different"],
            "results": self.results.sorted(),
            "rate": done / self.could_be if self.could_be else None,
            "by_sampled": self.sampled.sorted(),
            "by_path": self.paths.sorted(),
            "dropped": self.dropped.total(),
            "dropped_by_reason": self.dropped.sorted(),
            "chars": self.chars,
            "delay_us": self.delay.summary(),
            "queue_us": self.queue.summary(),
            "check_us": self.check.summary(),
        }


@dataclass
class Parity:
    """Comparisons of sent IDs with the upstream's ``/tokenize``."""

    results: Names = field(default_factory=Names)
    skipped: Names = field(default_factory=Names)
    delay: Histogram = field(default_factory=Histogram)

    def done(self, line: Mapping[str, Any]) -> None:
        """A `parity_check` line."""
        self.results.count(name(line.get("result")) or UNKNOWN)
        if (value := number(line.get("delay_us"))) is not None:
            self.delay.add(value)

    def include(self, other: Parity) -> None:
        """Adds everything that another one counted."""
        self.results.include(other.results)
        self.skipped.include(other.skipped)
        self.delay.include(other.delay)

    def json(self) -> dict[str, Any]:
        """The fields, as the report has them."""
        return {
            "done": self.results.total(),
            "equal": self.results["equal"],
            "different": self.results["different"],
            "skipped": self.skipped.total(),
            "skipped_by_reason": self.skipped.sorted(),
            "delay_us": self.delay.summary(),
        }


@dataclass
class Tally:
    """Everything that is counted about one model; `include` makes one about all."""

    paths: dict[str, Account] = field(default_factory=dict)
    statuses: Names = field(default_factory=Names)
    routes: Names = field(default_factory=Names)
    bypasses: Names = field(default_factory=Names)
    full: Names = field(default_factory=Names)
    causes: Names = field(default_factory=Names)
    flags: Names = field(default_factory=Names)
    errors: Names = field(default_factory=Names)
    usage: Names = field(default_factory=Names)
    stages: dict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    checks: Checks = field(default_factory=Checks)
    parity: Parity = field(default_factory=Parity)
    mismatches: Names = field(default_factory=Names)
    mismatch_delay: Histogram = field(default_factory=Histogram)

    def request(self, line: Mapping[str, Any]) -> str:
        """A `request` line. Returns its path."""
        path = name(line.get("path")) or NOT_CHAT
        self.account(path).add(line)
        status = number(line.get("status"))
        self.statuses.count(LEFT if status is None else str(status))
        for key, names in (
            ("route", self.routes),
            ("bypass", self.bypasses),
            ("full", self.full),
            ("cause", self.causes),
            ("error", self.errors),
        ):
            if (value := name(line.get(key))) is not None:
                names.count(value)
        flags = line.get("flags")
        for flag in flags[:32] if isinstance(flags, list) else ():
            if (value := name(flag)) is not None:
                self.flags.count(value)
        if isinstance(equal := line.get("prompt_tokens_equal"), bool):
            self.usage.count("equal" if equal else "different")
        if number(line.get("tokens")) is not None:
            self.checks.could_be += 1
        if not isinstance(stages := line.get("stages_us"), dict):
            return path
        for stage in STAGES:
            if (microseconds := number(stages.get(stage))) is not None:
                self.stages[stage].add(microseconds)
        return path

    def account(self, path: str) -> Account:
        """The sums of one path; of `NOT_CHAT` beyond `MOST_PATHS` paths."""
        if path not in self.paths:
            if len(self.paths) >= MOST_PATHS:
                path = NOT_CHAT
            self.paths.setdefault(path, Account())
        return self.paths[path]

    @property
    def all(self) -> Account:
        """The sums over all paths."""
        sums = Account()
        for account in self.paths.values():
            sums.include(account)
        return sums

    def include(self, other: Tally) -> None:
        """Adds everything that another one counted."""
        for path, account in other.paths.items():
            self.account(path).include(account)
        for stage, times in other.stages.items():
            self.stages[stage].include(times)
        for key in _COUNTED:
            getattr(self, key).include(getattr(other, key))

    def mismatch(self, line: Mapping[str, Any]) -> None:
        """A `mismatch` line."""
        self.mismatches.count(name(line.get("source")) or UNKNOWN)
        if (delay := number(line.get("delay_us"))) is not None:
            self.mismatch_delay.add(delay)

    def json(self) -> dict[str, Any]:
        """Everything, as the report has it."""
        return {
            **self.all.json(),
            "by_path": {path: self.paths[path].json() for path in sorted(self.paths)},
            "by_route": self.routes.sorted(),
            "by_status": self.statuses.sorted(),
            "bypass": self.bypasses.sorted(),
            "full": self.full.sorted(),
            "cause": self.causes.sorted(),
            "flags": self.flags.sorted(),
            "errors": self.errors.sorted(),
            "usage": {"compared": self.usage.total(), "different": self.usage["different"]},
            "stages_us": {stage: self.stages[stage].summary() for stage in STAGES if stage in self.stages},
            "shadow": self.checks.json(),
            "parity": self.parity.json(),
            "mismatches": {
                "total": self.mismatches.total(),
                "by_source": self.mismatches.sorted(),
                "delay_us": self.mismatch_delay.summary(),
            },
        }


_COUNTED = tuple(one.name for one in fields(Tally) if one.name not in ("paths", "stages"))
