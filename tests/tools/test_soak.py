"""The soak's own parts: what it counts, and that each thing that must not be is found when it is there."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tools.soak import verdict
from tools.soak.clients import Sent, bad_requests
from tools.soak.engines import Down, Upstream
from tools.soak.log import Log
from tools.soak.run import quantiles
from tools.soak.verdict import Ends
from tools.soak.watch import LogTail, Seen, alive, children, look, slope

REQUEST: dict[str, Any] = {
    "ts": "2026-11-30T10:00:10.000000Z",
    "level": "info",
    "event": "request",
    "request_id": "soak-1",
    "path": "append",
    "bypass": None,
    "full": None,
    "chars": 100,
    "tokens": 7,
    "status": 200,
    "flags": [],
    "stages_us": {"total": 2_000_000},
}
CHECK = {"level": "info", "event": "shadow_check", "request_id": "soak-1", "result": "equal", "delay_us": 9}
AT = 1_796_032_810.0
"""The request's ts as seconds."""


def test_a_process_is_seen_from_outside() -> None:
    before = look(os.getpid())
    held = socket.socket()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        after = look(os.getpid())
        assert after.threads == before.threads + 1
        assert after.sockets == before.sockets + 1
        assert after.fds >= before.fds + 2
        assert "input()" in children(os.getpid())[child.pid]
        assert alive(child.pid)
        child.communicate(b"\n")
    stop.set()
    thread.join()
    held.close()
    assert not alive(child.pid)
    assert after.rss > 1 << 20


def test_a_slope_is_that_of_the_line() -> None:
    assert slope([(0, 5), (1, 7), (2, 9)]) == pytest.approx(2)
    assert slope([(0, 5), (1, 7), (2, 5)]) == pytest.approx(0)
    assert slope([]) == slope([(1, 1)]) == slope([(1, 1), (1, 3)]) == 0


@pytest.mark.parametrize(
    ("rss", "held", "grown"),
    [
        ([0, 10, 20, 32, 43, 54], [0, 10, 20, 30, 40, 50], 2),
        ([50, 50, 50, 50, 60, 70], [50, 50, 50, 40, 30, 0], 20),  # sessions went, and the allocator kept their place
        ([0, 0, 0, 0, 12, 24], [0, 0, 0, 0, 0, 0], 24),
    ],
)
def test_growth_is_what_sessions_never_held(rss: list[int], held: list[int], grown: int) -> None:
    looks = [
        Seen(float(at), size, threads=1, fds=1, sockets=1, children=1, held=own)
        for at, (size, own) in enumerate(zip(rss, held, strict=True))
    ]
    assert verdict.growth(looks) == pytest.approx(grown)
    assert verdict.growth(looks[:1]) == 0.0


def test_lines_are_read_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text('{"n":1}\n{"n":2}\n{"n"')
    tail = LogTail(path)
    assert [line["n"] for line in tail.lines()] == [1, 2]
    assert list(tail.lines()) == []
    with path.open("a") as file:
        file.write(':3}\n{"n":4}\n')
    assert [line["n"] for line in tail.lines()] == [3, 4]


def test_quantiles() -> None:
    assert quantiles(list(range(100))) == {"p50": 50, "p90": 90, "p99": 99, "max": 99}
    assert quantiles([]) == {}


def test_bad_requests_are_of_many_kinds() -> None:
    assert len({bad.name for bad in bad_requests(Random(1))}) == len(bad_requests(Random(1))) >= 12


class Case:
    """A soak with one request and nothing to find."""

    def __init__(self, folder: Path) -> None:
        self.lines: list[dict[str, Any]] = [json.loads(json.dumps(REQUEST)), dict(CHECK)]
        self.sent = Sent(started={"soak-1": "append"}, prompt_tokens={"soak-1": 7})
        self.upstream = object.__new__(Upstream)
        for field in dataclasses.fields(Upstream):
            if field.default_factory is not dataclasses.MISSING:
                setattr(self.upstream, field.name, field.default_factory())
        self.upstream.tokens["soak-1"] = 7
        self.upstream.sample.append(({}, [1]))
        seen = Seen(at=0.0, rss=200 << 20, threads=9, fds=20, sockets=5, children=1)
        self.looks = [dataclasses.replace(seen, at=float(at)) for at in range(40)]
        self.ends = Ends(seen, seen, 0, 0, [], 0, "ready")
        self.wrong = 0
        self._path = folder / "log"

    def found(self) -> list[str]:
        self._path.write_text("".join(json.dumps(line) + "\n" for line in self.lines))
        log = Log(self._path)
        log.read()
        return verdict.find(self.sent, self.upstream, log, self.looks, self.ends, self.wrong)

    def end(self, **changes: Any) -> None:
        self.ends = dataclasses.replace(self.ends, **changes)

    def after(self, **changes: Any) -> None:
        self.end(after=dataclasses.replace(self.ends.after, **changes))


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    assert Case(tmp_path).found() == []


def fails(case: Case, status: int, down: Down | None = None, **changes: Any) -> None:
    case.lines[0] |= {"status": status, **changes}
    case.sent.prompt_tokens.clear()
    if down is not None:
        case.upstream.downs.append(down)


PLANTS: dict[str, tuple[Callable[[Case], Any], str]] = {
    "wrong ids": (lambda c: setattr(c, "wrong", 1), "transformers does not come to"),
    "different": (lambda c: c.lines[1].update(result="different"), "found other IDs"),
    "foreign": (lambda c: c.upstream.foreign.append("soak-1"), "another tokenizer"),
    "lost ids": (lambda c: c.upstream.tokens.update({"soak-1": 6}), "another number of IDs"),
    "told": (lambda c: c.sent.prompt_tokens.update({"soak-1": 8}), "were told another number"),
    "dropped": (
        lambda c: c.lines.append({"level": "info", "event": "shadow_dropped", "request_id": "x", "reason": "timeout"}),
        "1 timeout",
    ),
    "never checked": (lambda c: c.lines.pop(1), "never checked"),
    "twice": (lambda c: c.lines.append(dict(CHECK)), "more than once"),
    "no line": (lambda c: c.sent.started.update({"soak-2": "edit"}), "no line in the log (edit)"),
    "two lines": (lambda c: c.lines.append(c.lines[0]), "more than one line"),
    "stray line": (lambda c: c.sent.started.clear(), "belong to no request"),
    "lost lines": (lambda c: c.lines.append({"level": "warning", "event": "log_dropped"}), "lines of the log"),
    "wrong refusal": (lambda c: c.sent.wrong.append("noise: 500"), "noise: 500"),
    "own 500": (lambda c: fails(c, 500), "failed while the engine was up (500 -)"),
    "cut": (lambda c: fails(c, 200, flags=["incomplete_stream"]), "200 incomplete_stream"),
    "before": (lambda c: fails(c, 502, Down(AT - 9, AT - 4)), "failed while the engine was up"),
    "after": (lambda c: fails(c, 502, Down(AT + 1, AT + 4)), "failed while the engine was up"),
    "error": (lambda c: c.lines.append({"level": "error", "event": "prepare_failed"}), "1 prepare_failed"),
    "library": (lambda c: c.lines.append({"level": "warning", "event": "library"}), "HTTP library"),
    "grown": (
        lambda c: setattr(c, "looks", [dataclasses.replace(s, rss=s.rss + (int(s.at) << 20)) for s in c.looks]),
        "the memory grew by 19",
    ),
    "sessions": (lambda c: c.end(sessions=3), "3 sessions"),
    "descriptors": (lambda c: c.after(fds=21, sockets=6), "1 descriptors more"),
    "threads": (lambda c: c.after(threads=10), "10 threads"),
    "children": (lambda c: c.after(children=2), "child processes"),
    "left": (lambda c: c.end(left=[7]), "outlived"),
    "exit": (lambda c: c.end(exit_code=1), "exit code 1"),
    "audit": (lambda c: c.end(audit_code=1), "toktier audit"),
    "degraded": (lambda c: c.end(ready="degraded"), "degraded"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_what_must_not_be_is_found(tmp_path: Path, plant: str) -> None:
    case = Case(tmp_path)
    put, words = PLANTS[plant]
    put(case)
    found = case.found()
    assert any(words in sentence for sentence in found), found


@pytest.mark.parametrize("down", [Down(AT - 1, AT - 0.5), Down(AT - 9, AT - 1.9), Down(AT - 0.1)])
def test_failures_that_were_provoked_are_none(tmp_path: Path, down: Down) -> None:
    case = Case(tmp_path)
    fails(case, 502, down, tokens=None)
    case.upstream.tokens.clear()
    assert case.found() == []


def test_clients_that_leave_early_may_have_no_line(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.sent.started["soak-2"] = "leaves_in_request"
    assert case.found() == []
