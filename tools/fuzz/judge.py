"""What counts as a finding.

1. A reply with 500, or any other 5xx than those in `EXPECTED`: the engine behind is well.
2. A reply of TokTier's own that is not OpenAI's error object, whose code is not in `proxy.error_codes`, that has a
   traceback, or that repeats what was sent (but for the place of a lone surrogate).
3. Neither a reply nor an end of the connection in time.
4. An event in the log that says that something unexpected happened, and text of an input in the log.
5. A well-formed request without exactly one line in the log; a reply that no line accounts for; a request that reached
   the engine without one.
6. A proxy that is dead, does not repair any more, or holds more memory or sockets than before.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy.error_codes import CODES
from tools.fuzz.client import Outcome, Reply
from tools.fuzz.inputs import NAME, Input, name
from tools.fuzz.values import CANARY

ENGINE = "X"
"""Reason phrase of the engine's replies (`tools.traffic.engine`): they are not TokTier's own."""
EXPECTED = frozenset({"too_many_connections", "unsupported_transfer_coding"})
"""Codes from 500 on that are no finding, but counted: the proxy is full, or was asked for what it cannot do."""
UNEXPECTED = frozenset(
    {
        "request_failed", "prepare_failed", "server_error", "probe_failed", "load_failed", "reload_failed",
        "window.failed", "mismatch", "quarantined", "quarantine_unreadable", "quarantine_unwritable", "log_dropped",
        "upstream_failure",
    }
)  # fmt: skip
"""Events that no input may cause. ``library`` counts from level error on."""
_TRACEBACK = (b"Traceback (most", b'File "/', b".py:", b"<html", b"aiohttp")
_KEPT = 4_000


@dataclass
class Finding:
    """One thing that must not happen. ``number`` names the input, where it is one's."""

    what: str
    number: int | None = None
    shape: str | None = None
    detail: str = ""
    sent: str = ""
    """The input's first bytes, as Python writes them."""

    def json(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value not in (None, "")}


@dataclass
class Judge:
    """Takes outcomes one by one, then the log."""

    make: Callable[[int], Input]
    """Makes an input of its number again."""
    findings: list[Finding] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    shapes: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    replies: int = 0
    slowest_s: float = 0.0
    _one_line: set[int] = field(default_factory=set)
    _to_be_logged: int = 0

    def outcome(self, given: Input, outcome: Outcome) -> None:
        """Findings 1 to 3."""
        self.shapes[given.shape] += 1
        if given.one_line:
            self._one_line.add(given.number)
        self.ends[outcome.end] += 1
        self.slowest_s = max(self.slowest_s, outcome.seconds)
        if outcome.end in ("hang", "refused"):
            self._found(outcome.end, given, f"{outcome.seconds:.1f} s, {len(outcome.replies)} replies")
        if outcome.garbage:
            self._found("not_http", given, repr(outcome.garbage))
        if given.one_line and not outcome.replies:
            self._found("no_reply", given, f"{outcome.end}, after input {outcome.after}")
        for reply in outcome.replies:
            self.replies += 1
            self.statuses[str(reply.status)] += 1
            self._reply(given, reply)

    def _reply(self, given: Input, reply: Reply) -> None:
        if reply.cut:
            self._found("cut_reply", given, str(reply.status))
        # /health and its like have no line.
        self._to_be_logged += reply.reason == ENGINE or reply.status >= 400
        if reply.reason == ENGINE:
            return
        if any(mark in reply.body for mark in _TRACEBACK):
            self._found("traceback", given, repr(reply.body[:500]))
        if (CANARY.encode() in reply.body and b'"invalid_unicode"' not in reply.body) or any(
            CANARY in value for value in reply.headers.values()
        ):
            self._found("echo", given, repr(reply.body[:500]))
        if reply.status < 400:
            return
        code = _code(reply.body) if reply.body else None
        self.codes[str(code)] += 1
        if reply.body and code is None:
            self._found("error_shape", given, f"{reply.status} {reply.body[:200]!r}")
        if code is not None and (code not in CODES or CODES[code].status != reply.status):
            self._found("undocumented", given, f"{reply.status} {code}")
        if reply.status >= 500 and code not in EXPECTED:
            self._found("server_status", given, f"{reply.status} {code}")

    def log(self, lines: Iterable[Mapping[str, Any]], reached: Mapping[str, int]) -> Counter[str]:
        """Findings 4 and 5. ``reached``: requests that the engine saw, by request id.

        Returns how many lines of each event there were.
        """
        events: Counter[str] = Counter()
        by_id: Counter[str] = Counter()
        forwarded: Counter[str] = Counter()
        refused = 0
        for line in lines:
            event, level = line["event"], line["level"]
            events[event] += 1
            if event == "connections_refused":
                refused += line["count"]
            if event == "request":
                by_id[line["request_id"]] += 1
                forwarded[line["request_id"]] += line["attempts"]
                if line["error"] == "internal_error" or line["bypass"] == "internal_error":
                    self._line("internal_error", line)
            elif event in UNEXPECTED or (event == "library" and level in ("error", "critical")):
                self._line(event, line)
            if CANARY in json.dumps(line):
                self._line("logged", line)
        for number in self._one_line:
            if by_id[name(number)] != 1:
                self._found("log_lines", self.make(number), f"{by_id[name(number)]} lines")
            if reached.get(name(number), 0) > forwarded[name(number)]:
                self._found("unlogged_upstream", self.make(number), f"{forwarded[name(number)]} in the log")
        answered = events["request"] + events["bad_http"] + refused
        if self._to_be_logged > answered:
            self.findings.append(Finding("unlogged", detail=f"{self._to_be_logged} replies, {answered} lines"))
        if sum(reached.values()) > sum(forwarded.values()):
            detail = f"{sum(reached.values())} at the engine, {sum(forwarded.values())} in the log"
            self.findings.append(Finding("unlogged_upstream", detail=detail))
        return events

    def _line(self, what: str, line: Mapping[str, Any]) -> None:
        number = str(line.get("request_id")).removeprefix(NAME)
        self._found(what, self.make(int(number)) if number.isdecimal() else None, json.dumps(line)[:1500])

    def _found(self, what: str, given: Input | None, detail: str) -> None:
        if given is None:
            self.findings.append(Finding(what, detail=detail))
        else:
            sent = repr(b"".join(given.pieces)[:_KEPT])
            self.findings.append(Finding(what, given.number, given.shape, detail, sent))


def _code(body: bytes) -> str | None:
    """The error's code; None where the body is not OpenAI's error object."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(error, dict) or set(error) != {"message", "type", "param", "code"}:
        return None
    return str(error["code"])
