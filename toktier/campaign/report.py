"""What came of a campaign: counts by family, failures made small, the fate of planted faults. JSON-able."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from toktier.campaign.edits import Account
from toktier.campaign.plants import kinds

KEPT = 400
"""Characters of a text that a report quotes; the length is told besides."""


@dataclass
class CutTally:
    """Cut checks: seams tried in a text. Counters by family."""

    cases: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    chars: int = 0

    @property
    def done(self) -> int:
        return self.checks.total()

    def add(self, other: CutTally) -> None:
        self.cases.update(other.cases)
        self.checks.update(other.checks)
        self.failures.update(other.failures)
        self.chars += other.chars

    def json(self) -> dict[str, Any]:
        families = {
            name: {"cases": count, "checks": self.checks[name], "failures": self.failures[name]}
            for name, count in sorted(self.cases.items())
        }
        return {
            "checks": self.done,
            "cases": self.cases.total(),
            "characters": self.chars,
            "failures": self.failures.total(),
            "families": families,
        }


@dataclass
class RopeTally:
    """Rope operations, each compared with a full encode."""

    ropes: int = 0
    account: Account = field(default_factory=Account)
    close: Account = field(default_factory=Account)
    """Those on ropes that are cut closely (`toktier.campaign.edits.CloseEncoder`)."""

    @property
    def done(self) -> int:
        return self.account.operations + self.close.operations

    def add(self, other: RopeTally) -> None:
        self.ropes += other.ropes
        self.account.add(other.account)
        self.close.add(other.close)

    def json(self) -> dict[str, Any]:
        account = Account()
        account.add(self.account)
        account.add(self.close)
        families = {
            name: {"operations": count, "failures": account.failures[name]}
            for name, count in sorted(account.families.items())
        }
        return {
            "operations": account.operations,
            "ropes": self.ropes,
            "over_20k_characters": account.large,
            "over_200k_characters": account.huge,
            "characters": account.chars,
            "characters_encoded": account.scanned,
            **({"gpu": dict(sorted(account.gpu.items()))} if account.gpu else {}),
            "repaired": _repaired(self.account),
            "repaired_when_cut_closely": _repaired(self.close),
            "failures": account.failures.total(),
            "families": families,
        }


def _repaired(account: Account) -> dict[str, Any]:
    """How many operations took the repair path, and why the others did not."""
    return {
        "operations": account.operations,
        "repaired": account.repaired,
        "share": round(account.repaired / account.operations, 4) if account.operations else None,
        "encoded_in_full": dict(sorted(account.full.items())),
    }


@dataclass(frozen=True)
class Failure:
    """One divergence. ``where``: ``cuts`` or ``ropes``, with the number of the case, which is enough to have it again.

    ``text`` is the smallest text found, escaped; for a change, the one before it. ``chars``: its length.
    """

    where: str
    case: int
    family: str
    fault: str
    text: str
    chars: int
    cut: int | None = None
    change: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class PlantReport:
    """The fate of one planted fault. ``caught`` is None where no candidate did harm. ``harmless``: candidates that were
    skipped, for no text tells of them.

    ``needed``: checks or operations until it was found; ``smallest``: the failure made small, escaped.
    """

    kind: str
    what: str
    harmless: int
    witness: str
    caught: bool | None
    by: str = ""
    needed: int = 0
    smallest: str = ""
    smallest_chars: int = 0


@dataclass
class Report:
    """Everything that `toktier campaign` prints."""

    tokenizer: Mapping[str, Any]
    certificate: Mapping[str, Any]
    versions: Mapping[str, str]
    texts: str
    """Digest of the real texts."""
    seed: int
    jobs: int
    seconds: float = 0.0
    cpu_seconds: float | None = None
    ended: str = "complete"
    """``complete``, ``time`` (--seconds), ``failures`` (too many to go on) or ``interrupted``."""
    cuts: CutTally | None = None
    ropes: RopeTally | None = None
    failures: list[Failure] = field(default_factory=list)
    plants: list[PlantReport] | None = None

    @property
    def diverged(self) -> bool:
        """Whether a check failed, or a planted fault was missed."""
        missed = any(plant.caught is False for plant in self.plants or ())
        return bool(self.failures) or missed

    @property
    def not_reached(self) -> list[str]:
        """Kinds of planted faults that the time did not suffice for."""
        if self.plants is None or self.ended == "complete":
            return []
        reached = {plant.kind for plant in self.plants}
        return [kind for kind in kinds() if kind not in reached]

    @property
    def _result(self) -> str:
        if self.diverged:
            return "divergence"
        if self.plants is None:
            return "none found"
        return "none missed" if self.not_reached else "all caught"

    def json(self) -> dict[str, Any]:
        """Plain data."""
        value: dict[str, Any] = {
            "result": self._result,
            "ended": self.ended,
            "tokenizer": dict(self.tokenizer),
            "certificate": dict(self.certificate),
            "versions": dict(self.versions),
            "texts": self.texts,
            "seed": self.seed,
            "jobs": self.jobs,
            "seconds": round(self.seconds, 1),
        }
        if self.cpu_seconds is not None:
            value["cpu_seconds"] = round(self.cpu_seconds, 1)
        if self.cuts is not None:
            value["cuts"] = self.cuts.json()
        if self.ropes is not None:
            value["ropes"] = self.ropes.json()
        value["failures"] = [asdict(failure) for failure in self.failures]
        if self.plants is not None:
            value["plants"] = [asdict(plant) for plant in self.plants]
            value["not_reached"] = self.not_reached
        return value
