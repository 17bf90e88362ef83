"""What a run left behind: the faults that were injected, the proxy's log, and what `toktier audit` makes of it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tools.faults.kinds import Kind
from tools.faults.tier import Injection


@dataclass(frozen=True)
class Check:
    """One verdict of the shadow verifier."""

    request_id: str
    different: bool
    delay_us: int
    at: float
    """Seconds since 1970, when it was logged."""


@dataclass
class Log:
    """The lines that matter here, by request id where there is one."""

    requests: dict[str, dict[str, Any]] = field(default_factory=dict)
    checks: dict[str, Check] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    mismatches: dict[str, dict[str, Any]] = field(default_factory=dict)
    quarantined: list[dict[str, Any]] = field(default_factory=list)
    lost_lines: int = 0


def read_log(path: Path) -> Log:
    """The log of one run. Raises ValueError where a request has two verdicts."""
    log = Log()
    with path.open("rb") as lines:
        for raw in lines:
            line = json.loads(raw)
            request_id = line.get("request_id")
            match line["event"]:
                case "request":
                    log.requests[request_id] = line
                case "shadow_check":
                    if request_id in log.checks:
                        raise ValueError(f"two verdicts on {request_id}")
                    different = line["result"] == "different"
                    log.checks[request_id] = Check(request_id, different, line["delay_us"], seconds(line))
                case "shadow_dropped":
                    log.dropped[request_id] = line["reason"]
                case "mismatch":
                    log.mismatches[request_id] = line
                case "quarantined":
                    log.quarantined.append(line)
                case "log_dropped":
                    log.lost_lines += line["lines"]
    return log


def seconds(line: Mapping[str, Any]) -> float:
    """When a line was logged, in seconds since 1970."""
    return datetime.fromisoformat(line["ts"]).timestamp()


def read_injections(path: Path) -> list[Injection]:
    """All faults of a run, in the order in which they were injected."""
    if not path.exists():
        return []
    found = []
    for raw in path.read_bytes().splitlines():
        value = json.loads(raw)
        found.append(Injection(**value | {"kind": Kind(value["kind"])}))
    return found


def counts(audit: Mapping[str, Any]) -> dict[str, int]:
    """What an audit counted, by the names that this harness uses."""
    everything = audit["all"]
    return {
        "requests": everything["requests"],
        "checks": everything["shadow"]["done"],
        "dropped": everything["shadow"]["dropped"],
        "mismatches": audit["mismatches"]["total"],
    }


def audit(command: Sequence[str], path: Path) -> tuple[int, dict[str, Any]]:
    """Exit code and report of ``toktier audit LOG --json``."""
    done = subprocess.run([*command, "audit", str(path), "--json"], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"audit ended with {done.returncode}: {done.stderr[-1000:]}")
    return done.returncode, json.loads(done.stdout)
