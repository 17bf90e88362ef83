"""What came of a run, counted; and the table of a campaign.

Rules of counting:
- A fault is *sampled* if its request has a verdict or was dropped, *caught* if the verdict is "different", *missed* if
  it is "equal". A check without a verdict is a drop, with its reason.
- A *false positive* is the verdict "different" on a request without a fault.
- Delays in requests count faulty requests (`tools.faults.geometry`). Delays in seconds: of a check, from the IDs being
  ready to the verdict, as the verifier says; until the first detection, from the first fault after the detection before
  it to the line of the next detection.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tools.faults import geometry, reading
from tools.faults.campaign import Left
from tools.faults.kinds import Kind


@dataclass(frozen=True)
class Run:
    """One run. Kinds by name; seconds as p50, p90, p99 and max."""

    sample: float
    rate: float
    requests: int
    with_ids: int
    injected: dict[str, int]
    same_length: int
    """Of the injected ones, those that kept the number of IDs."""
    injected_paths: dict[str, int]
    sampled: dict[str, int]
    caught: dict[str, int]
    missed: dict[str, int]
    faults_dropped: int
    checks: int
    drops: dict[str, int]
    false_positives: int
    counted_otherwise: int
    """Requests for which the engine counted other prompt tokens than TokTier says it sent."""
    mismatch_kinds: dict[str, int]
    geometry: geometry.Geometry | None
    """None without faults."""
    check_s: dict[str, float]
    first_detection_s: dict[str, float]
    seconds: float
    audit: dict[str, Any]
    """What `toktier audit` said of the same log."""

    @property
    def problems(self) -> list[str]:
        """What must not be."""
        found = []
        if self.with_ids < self.requests:
            found.append(f"sent as text, so without a fault: {self.requests - self.with_ids}")
        if self.missed:
            found.append(f"missed: {self.missed}")
        if self.false_positives:
            found.append(f"false positives: {self.false_positives}")
        if self.drops:
            found.append(f"dropped: {self.drops}")
        if self.geometry is not None and not self.geometry.agrees:
            found.append(f"not as sampling predicts: {self.geometry}")
        if self.audit.get("disagrees"):
            found.append(f"the audit says otherwise: {self.audit['disagrees']}")
        return [f"sampling {self.sample:.0%}: {one}" for one in found]


def summary(left: Left) -> Run:
    """The numbers of a run."""
    log, injections = left.log, left.injections
    faulty = {one.request_id: one for one in injections}
    verdicts = {name: check.different for name, check in log.checks.items()}
    sampled = [one for one in injections if one.request_id in verdicts or one.request_id in log.dropped]
    judged = [one for one in sampled if one.request_id in verdicts]
    false = [name for name, different in verdicts.items() if different and name not in faulty]
    share = left.wanted.sample
    looked_at = [one.request_id in verdicts or one.request_id in log.dropped for one in injections]
    return Run(
        sample=share,
        rate=left.wanted.rate,
        requests=len(log.requests),
        with_ids=sum(bool(line["tokens"]) for line in log.requests.values()),
        injected=_kinds(injections),
        same_length=sum(one.tokens == one.sent for one in injections),
        injected_paths=dict(sorted(Counter(one.path for one in injections).items())),
        sampled=_kinds(sampled),
        caught=_kinds(one for one in judged if verdicts[one.request_id]),
        missed=_kinds(one for one in judged if not verdicts[one.request_id]),
        faults_dropped=len(sampled) - len(judged),
        checks=len(verdicts),
        drops=dict(sorted(Counter(log.dropped.values()).items())),
        false_positives=len(false),
        counted_otherwise=sum(line["prompt_tokens_equal"] is False for line in log.requests.values()),
        mismatch_kinds=dict(sorted(Counter(line["kind"] for line in log.mismatches.values()).items())),
        geometry=geometry.compare(looked_at, share, left.wanted.seed) if injections else None,
        check_s=_spread([check.delay_us / 1e6 for check in log.checks.values()]),
        first_detection_s=_spread(_first_detections(left)),
        seconds=round(left.seconds, 1),
        audit=_audited(left, len(verdicts), sum(verdicts.values())),
    )


def _kinds(injections: Iterable[Any]) -> dict[str, int]:
    counts = Counter(one.kind for one in injections)
    return {kind.value: counts[kind] for kind in Kind if counts[kind]}


def _first_detections(left: Left) -> list[float]:
    """Seconds from the first fault since the last detection to the next one."""
    found: list[float] = []
    first: float | None = None
    for one in left.injections:
        first = one.at if first is None else first
        check = left.log.checks.get(one.request_id)
        if check is not None and check.different:
            found.append(check.at - first)
            first = None
    return found


def _spread(values: Sequence[float]) -> dict[str, float]:
    """Nearest-rank percentiles, rounded to a millisecond."""
    ordered = sorted(values)
    if not ordered:
        return {}
    ranks = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    return {name: round(ordered[math.ceil(share * len(ordered)) - 1], 3) for name, share in ranks.items()}


def _audited(left: Left, checks: int, different: int) -> dict[str, Any]:
    """What the audit counted, and under ``disagrees`` what it counted otherwise than this report did."""
    log, theirs = left.log, reading.counts(left.audit)
    own = {"requests": len(log.requests), "checks": checks, "dropped": len(log.dropped), "mismatches": different}
    disagrees = {name: [own[name], theirs[name]] for name in own if own[name] != theirs[name]}
    if left.audit_code != (different > 0):
        disagrees["exit code"] = [int(different > 0), left.audit_code]
    return {"exit_code": left.audit_code, **theirs, **({"disagrees": disagrees} if disagrees else {})}
