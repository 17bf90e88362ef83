"""The report of `toktier audit` as one JSON object: docs/audit.md has its fields, and a test compares the two."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from proxy.audit import SCHEMA
from proxy.audit_report.collect import Collected
from proxy.audit_report.values import iso, name

REPORT = 1
"""Version of the report. A field that changes its meaning or goes raises it; a new one does not."""

_AGE = re.compile(r"(\d{1,9})\s*([smhdw])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def since(text: str, now: float) -> int:
    """The moment (microseconds since 1970) that ``--since`` means: an age before ``now`` (seconds since 1970) such as
    ``30m``, or an ISO time, in UTC where it has no offset. Raises ValueError."""
    text = text.strip()
    if match := _AGE.fullmatch(text):
        return max(0, int((now - int(match[1]) * _SECONDS[match[2]]) * 1e6))
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0, int(when.timestamp() * 1e6))


def build(collected: Collected, repeated: list[str] | None = None) -> dict[str, Any]:
    """The report. ``repeated`` names inputs that were left out, since they lead to a file already read."""
    lines, first, last = collected.lines, collected.first, collected.last
    models = sorted(collected.models.items(), key=lambda item: (item[0] is None, item[0] or ""))
    return {
        "report": REPORT,
        "schema": SCHEMA,
        "exit_code": 1 if collected.verdicts.unresolved else 0,
        "warnings": list(_warnings(collected)),
        "since": None if collected.since_us is None else iso(collected.since_us),
        "span": {
            "first": None if first is None else iso(first),
            "last": None if last is None else iso(last),
            "seconds": None if first is None or last is None else round((last - first) / 1e6, 6),
        },
        "lines": {**vars(lines), "lost": collected.lost},
        "files": collected.files,
        "repeated": [name(path, 512) for path in repeated or ()],
        "mismatches": collected.verdicts.mismatches(),
        "quarantines": collected.verdicts.quarantines(),
        "all": collected.all.json(),
        "models": [{"model": model, **tally.json()} for model, tally in models],
        "shadow_workers": collected.workers.sorted(),
        "events": collected.events.sorted(),
        "timeline": {
            "width_s": collected.requests.width_us // 1_000_000,
            "rows": [{"start": iso(start), "paths": paths} for start, paths in collected.requests.rows()],
        },
    }


def _warnings(collected: Collected) -> Iterator[str]:
    lines = collected.lines
    if not lines.own:
        yield "nothing was read: the input is empty"
    if collected.lost:
        yield f"{collected.lost:,} log lines were lost when they were written (log_dropped), and are missing here"
    unread = lines.malformed + lines.too_long
    if unread:
        yield f"{unread:,} lines could not be read; a mismatch may be among them"
    for file in collected.files:
        if file["damaged"]:
            yield f"{file['name']} {file['damaged']}: what came before that is counted"
