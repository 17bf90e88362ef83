"""After the first detection: from then on the IDs of that (tokenizer, path) are the reference's, or there are none."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.faults.campaign import Left
from tools.faults.reading import seconds
from tools.traffic.engine import Tokenize

ID_FIELD = "kv_transfer_params"
"""What the proxy added to the client's body."""


@dataclass(frozen=True)
class Case:
    """One path at one level. Only requests that began after it was put there are counted, until the next level."""

    path: str
    level: str
    request_id: str
    """Of the request that led to it."""
    requests: int
    as_reference: int
    """Of these, sent with IDs that the log calls the reference's (``full`` is ``quarantined``)."""
    as_text: int
    """Of these, sent without IDs (bypass ``quarantined``)."""
    wrong: int
    """Of these, sent with IDs that are not the reference's own; looked up by this harness, for every request."""

    @property
    def holds(self) -> bool:
        """Whether the level was kept to by every request."""
        return self.requests == (self.as_reference if self.level == "reference" else self.as_text)


@dataclass(frozen=True)
class Quarantined:
    """A run in which mismatches quarantine paths. ``persistent``: faults also went into the reference's IDs."""

    persistent: bool
    requests: int
    injected: int
    injected_before: int
    """Of these, injected before their path was in quarantine, or while it was being put there."""
    cases: list[Case]
    degraded: bool
    """Whether ``/ready`` said so at the end."""


def summary(left: Left, ids: Tokenize) -> Quarantined:
    """What the run shows."""
    found = cases(left, ids)
    first = {one["path"]: seconds(one) for one in reversed(left.log.quarantined)}
    early = [one for one in left.injections if one.at <= first.get(one.path, float("inf"))]
    return Quarantined(
        persistent=not left.wanted.spare_reference,
        requests=len(left.log.requests),
        injected=len(left.injections),
        injected_before=len(early),
        cases=found,
        degraded=bool(json.loads(left.ready)["degraded"]),
    )


def cases(left: Left, ids: Tokenize) -> list[Case]:
    """Every quarantine of the run, in the order in which they came. ``ids`` is the harness's own reference."""
    found = []
    for line in left.log.quarantined:
        later = [one for one in left.log.quarantined if one["path"] == line["path"] and one["ts"] > line["ts"]]
        until = min((seconds(one) for one in later), default=float("inf"))
        rows = [
            row
            for row in left.log.requests.values()
            if _path(row) == line["path"]
            and seconds(line) < _began(row) < until
            # the next level counts a moment before the log has it
            and not (later and line["quarantine_level"] == "reference" and row["bypass"] == "quarantined")
        ]
        found.append(
            Case(
                path=line["path"],
                level=line["quarantine_level"],
                request_id=line["request_id"],
                requests=len(rows),
                as_reference=sum(row["full"] == "quarantined" and bool(row["tokens"]) for row in rows),
                as_text=sum(row["bypass"] == "quarantined" for row in rows),
                wrong=_wrong(left, rows, ids),
            )
        )
    return found


def _began(row: Mapping[str, Any]) -> float:
    return seconds(row) - float(row["stages_us"]["total"]) / 1e6


def _path(row: Mapping[str, Any]) -> str | None:
    """The path that a request took, or would have taken had it not gone as text for its sake."""
    path: str | None = row["bypass_detail"] if row["bypass"] == "quarantined" else row["path"]
    return path


def _wrong(left: Left, rows: Sequence[Mapping[str, Any]], ids: Tokenize) -> int:
    wrong = 0
    for row in rows:
        one = left.received.get(row["request_id"])
        if one is not None and one.ids is not None:
            asked = {name: value for name, value in one.body.items() if name != ID_FIELD}
            wrong += list(one.ids) != list(ids(asked))
    return wrong
