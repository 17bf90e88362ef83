"""What a soak needs of the proxy's log, taken in while it grows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tools.soak.watch import LogTail


@dataclass
class Log:
    """Counts of a proxy's log lines. Call `read` now and then."""

    path: Path
    requests: Counter[str] = field(default_factory=Counter)
    """Request id -> its lines."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Request id -> IDs sent."""
    prepared: set[str] = field(default_factory=set)
    """Requests whose IDs were made, whether or not they were sent."""
    failed: list[tuple[str, int | None, list[str], float, float]] = field(default_factory=list)
    """(request id, status, flags, begin, end) of requests that ended in a 5xx or without a whole reply; `time.time`."""
    paths: Counter[str] = field(default_factory=Counter)
    bypasses: Counter[str] = field(default_factory=Counter)
    full: Counter[str] = field(default_factory=Counter)
    checks: Counter[str] = field(default_factory=Counter)
    """Results of shadow checks."""
    checked: Counter[str] = field(default_factory=Counter)
    """Request id -> checks and drops."""
    drops: Counter[str] = field(default_factory=Counter)
    workers: Counter[str] = field(default_factory=Counter)
    """States of shadow workers."""
    events: Counter[str] = field(default_factory=Counter)
    serious: Counter[str] = field(default_factory=Counter)
    """Events of level error, by name."""
    total_us: list[int] = field(default_factory=list)
    """Of requests with IDs."""
    delay_us: list[int] = field(default_factory=list)
    """From the IDs to the verdict."""

    def __post_init__(self) -> None:
        self._tail = LogTail(self.path)

    @property
    def behind(self) -> int:
        """Requests whose IDs were made and that have no verdict yet."""
        return len(self.prepared) - len(self.checked)

    def read(self) -> None:
        """Take in what was written since the last call."""
        for line in self._tail.lines():
            event = line["event"]
            self.events[event] += 1
            if line["level"] == "error":
                self.serious[event] += 1
            if event == "request":
                self._request(line)
            elif event == "shadow_check":
                self.checks[line["result"]] += 1
                self.checked[line["request_id"]] += 1
                self.delay_us.append(line["delay_us"])
            elif event == "shadow_dropped":
                self.drops[line["reason"]] += 1
                self.checked[line["request_id"]] += 1
            elif event == "shadow_worker":
                self.workers[line["state"]] += 1

    def _request(self, line: Mapping[str, Any]) -> None:
        name = line["request_id"]
        self.requests[name] += 1
        if line["path"] is not None:
            self.paths[line["path"]] += 1
        if line["bypass"] is not None:
            self.bypasses[line["bypass"]] += 1
        if line["full"] is not None:
            self.full[line["full"]] += 1
        if line["chars"] is not None:
            self.prepared.add(name)
        if line["tokens"] is not None:
            self.tokens[name] = line["tokens"]
            self.total_us.append(line["stages_us"]["total"])
        status = line["status"]
        if (status is not None and status >= 500) or "incomplete_stream" in line["flags"]:
            end = datetime.fromisoformat(line["ts"]).timestamp()
            self.failed.append((name, status, line["flags"], end - line["stages_us"]["total"] / 1e6, end))
