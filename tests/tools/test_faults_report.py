"""What a campaign counts, and what it takes for chance: on logs and draws that were made up."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tools.faults import geometry, quarantine, reading, report, tables
from tools.faults.__main__ import parse, share
from tools.faults.campaign import Left, Wanted
from tools.faults.kinds import Kind
from tools.faults.tier import Injection
from tools.traffic import Received

START = datetime(2026, 1, 1, tzinfo=UTC).timestamp()


def ts(second: float) -> str:
    return datetime.fromtimestamp(START + second, UTC).isoformat()


def request(number: int, second: float, **more: Any) -> dict[str, Any]:
    line = {"event": "request", "ts": ts(second), "request_id": f"r-{number}", "path": "append", "tokens": 9}
    line |= {"prompt_tokens_equal": True, "full": None, "bypass": None, "bypass_detail": None}
    return {**line, "stages_us": {"total": 1000}, **more}


def check(number: int, second: float, result: str) -> dict[str, Any]:
    return {"event": "shadow_check", "ts": ts(second), "request_id": f"r-{number}", "result": result, "delay_us": 5000}


def mismatch(number: int, second: float) -> dict[str, Any]:
    return {"event": "mismatch", "ts": ts(second), "request_id": f"r-{number}", "kind": "ids"}


def fault(number: int, second: float, kind: Kind = Kind.SWAP, sent: int = 9) -> Injection:
    return Injection(f"r-{number}", "m", kind, "append", 9, sent, START + second)


def left(
    folder: Path, lines: list[dict[str, Any]], injections: list[Injection], sample: float = 1.0, **more: Any
) -> Left:
    path = folder / "log"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    log = reading.read_log(path)
    different = sum(one.different for one in log.checks.values())
    audit = {
        "all": {"requests": len(log.requests), "shadow": {"done": len(log.checks), "dropped": len(log.dropped)}},
        "mismatches": {"total": different},
    }
    found = Left(Wanted(len(lines), 0.5, sample), log, injections, int(different > 0), audit, "{}", 1.0)
    return dataclasses.replace(found, **more)


def test_a_run_in_which_everything_was_found(tmp_path: Path) -> None:
    lines = [request(k, k) for k in range(6)]
    lines += [check(k, k + 0.5, "different" if k % 2 else "equal") for k in range(6)]
    lines += [mismatch(k, k + 0.5) for k in (1, 3, 5)]
    run = report.summary(left(tmp_path, lines, [fault(1, 1), fault(3, 3, Kind.DELETION, 8), fault(5, 5)]))
    assert run.problems == []
    assert run.injected == run.sampled == run.caught == {"deletion": 1, "swap": 2}
    assert (run.missed, run.false_positives, run.drops, run.same_length) == ({}, 0, {}, 2)
    assert run.geometry is not None
    assert (run.geometry.waits, run.geometry.mean, run.geometry.every_wait_is_one) == (3, 1.0, True)
    assert run.check_s == {"p50": 0.005, "p90": 0.005, "p99": 0.005, "max": 0.005}
    assert run.first_detection_s["max"] == 0.5
    assert run.mismatch_kinds == {"ids": 3}


def test_a_miss_a_false_alarm_a_drop_and_an_audit_that_disagrees_are_problems(tmp_path: Path) -> None:
    lines = [request(k, k) for k in range(4)]
    lines += [check(0, 1, "equal"), check(1, 1, "different"), check(2, 1, "different")]
    lines += [{"event": "shadow_dropped", "ts": ts(1), "request_id": "r-3", "reason": "queue_full"}]
    faults = [fault(0, 0), fault(1, 0), fault(3, 0)]
    run = report.summary(left(tmp_path, lines, faults))
    assert (run.missed, run.false_positives, run.drops, run.faults_dropped) == ({"swap": 1}, 1, {"queue_full": 1}, 1)
    assert run.sampled == {"swap": 3}
    assert run.caught == {"swap": 1}
    assert [problem.split(":")[1].strip() for problem in run.problems] == ["missed", "false positives", "dropped"]

    silent = report.summary(left(tmp_path, lines, faults, audit_code=0))
    assert any("audit" in problem for problem in silent.problems)
    assert silent.audit["disagrees"] == {"exit code": [1, 0]}


def test_a_fault_that_was_not_sampled_is_neither_caught_nor_missed(tmp_path: Path) -> None:
    lines = [request(k, k) for k in range(20)] + [check(7, 8, "different")]
    run = report.summary(left(tmp_path, lines, [fault(k, k) for k in range(20)], sample=0.1))
    assert (run.sampled, run.caught, run.missed) == ({"swap": 1}, {"swap": 1}, {})
    assert run.geometry is not None
    assert run.geometry.mean == 8
    assert run.first_detection_s["max"] == 8
    assert run.problems == []


def test_two_verdicts_on_one_request_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="r-1"):
        left(tmp_path, [check(1, 1, "equal"), check(1, 2, "equal")], [])


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.1, 0.5])
def test_independent_draws_are_what_geometry_predicts(rate: float) -> None:
    rng = Random(4)
    found = geometry.compare([rng.random() < rate for _ in range(5000)], rate)
    assert found.agrees
    assert found.mean == pytest.approx(1 / rate, rel=0.35)
    assert (found.waits_p or 0) > 0.01
    assert (found.count_p or 0) > 0.01


def test_what_is_not_independent_or_not_that_often_is_noticed() -> None:
    rng = Random(5)
    regular = [k % 10 == 3 for k in range(5000)]
    assert not geometry.compare(regular, 0.1).agrees, "as many as predicted, but never two in a row"
    clustered = [bool((k // 50) % 10 == 0 and rng.random() < 0.999) for k in range(5000)]
    assert not geometry.compare(clustered, 0.1).agrees
    assert not geometry.compare([rng.random() < 0.05 for _ in range(5000)], 0.1).agrees
    assert not geometry.compare([False] * 2000, 0.1).agrees
    assert not geometry.compare([True] * 50 + [False], 1.0).agrees
    assert geometry.compare([True] * 50, 1.0).agrees


def test_waits_count_the_one_that_is_found() -> None:
    assert list(geometry.waits_of([False, True, True, False, False, True, False])) == [2, 1, 3]
    assert list(geometry.waits_of([False])) == []


def test_quarantine_is_kept_to_or_not(tmp_path: Path) -> None:
    def event(second: float, level: str, number: int) -> dict[str, Any]:
        line = {"event": "quarantined", "ts": ts(second), "path": "append", "quarantine_level": level}
        return {**line, "request_id": f"r-{number}"}

    text = {"path": "bypass", "bypass": "quarantined", "bypass_detail": "append", "tokens": None}
    lines = [
        request(0, 1),
        event(2, "reference", 0),
        request(1, 2.0005),  # it had begun before
        request(2, 3, full="quarantined"),
        request(3, 3, path="edit"),
        event(4, "text", 2),
        request(4, 5, **text),
    ]
    bodies = {f"r-{k}": Received(f"r-{k}", {"k": k}, [k] if k < 4 else None) for k in range(5)}
    run = left(tmp_path, lines, [fault(0, 1), fault(2, 3)], received=bodies, ready='{"degraded": true}')
    shown = quarantine.summary(run, lambda body: [body["k"]])
    assert [dataclasses.astuple(case) for case in shown.cases] == [
        ("append", "reference", "r-0", 1, 1, 0, 0),
        ("append", "text", "r-2", 1, 0, 1, 0),
    ]
    assert (shown.injected, shown.injected_before, shown.degraded) == (2, 1, True)
    results = tables.Results(1, {}, [], None, [shown])
    assert results.problems == []

    wrong = quarantine.summary(run, lambda body: [body["k"] + 1])
    assert [case.wrong for case in wrong.cases] == [1, 0]
    assert any("wrong IDs" in problem for problem in dataclasses.replace(results, quarantined=[wrong]).problems)

    lines[3] = request(2, 3)
    loose = quarantine.summary(left(tmp_path, lines, [], received=bodies, ready='{"degraded": false}'), lambda _: [])
    assert len(dataclasses.replace(results, quarantined=[loose]).problems) == 3


def test_results_survive_the_file_and_fill_the_tables(tmp_path: Path) -> None:
    lines = [request(k, k) for k in range(3)] + [check(k, k, "equal" if k else "different") for k in range(3)]
    run = report.summary(left(tmp_path, lines, [fault(0, 0)]))
    clean = dataclasses.replace(run, geometry=None, injected={}, first_detection_s={}, check_s={})
    case = quarantine.Case("append", "reference", "r-1", 4, 4, 0, 0)
    results = tables.Results(3, {"a": "1"}, [run], clean, [quarantine.Quarantined(False, 9, 2, 1, [case], True)])
    results.write(tmp_path / "new" / "results.json")
    assert tables.read(tmp_path / "new" / "results.json") == results
    rows = tables.sampling(results).splitlines()
    assert len(rows) == 4
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2].startswith("| 100 % | 3 | 1 | 1 | 1 | 0 | 0 | 0 | 1 (1) | exact |")
    assert "| swap | 1 | 1 | 1 | 0 |" in tables.kinds(results).splitlines()
    assert len(tables.kinds(results).splitlines()) == 2 + len(Kind)
    assert "| what was spliced | append | reference | 4 | 4 | 0 | 0 |" in tables.quarantines(results)


def test_shares_are_read_as_percent_or_fraction() -> None:
    assert (share("5%"), share("0.05"), share("100%"), share("1")) == (0.05, 0.05, 1.0, 1.0)
    for wrong in ("5", "-1%", "x"):
        with pytest.raises(ValueError):
            share(wrong)
    options = parse(["--requests", "9", "--rate", "0.3", "--sample", "1%=70", "--sample", "1", "--json", "x"])
    assert (options.sample, options.rate, options.clean) == ([(0.01, 70), (1.0, None)], 0.3, 0)
