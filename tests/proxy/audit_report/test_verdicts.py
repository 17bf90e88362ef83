from __future__ import annotations

import random
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.audit_report import verdicts
from proxy.audit_report.verdicts import Verdicts
from tests.conftest import ROOT
from tools.audit_sample import START_US, line

KEYS = (("t1", "append"), ("t1", "edit"), ("t2", "append"))
Step = tuple[str, int, int]


def event(kind: str, key: int, at: int, **more: Any) -> dict[str, Any]:
    digest, path = KEYS[key]
    return line(kind, START_US + at, **{"tokenizer_digest": digest, "path": path, **more})


def judged(steps: list[Step]) -> Verdicts:
    found = Verdicts()
    for kind, key, at in steps:
        found.take(kind, event(kind, key, at))
    return found


steps = st.lists(
    st.tuples(
        st.sampled_from(("mismatch", "quarantined", "quarantine_read", "quarantine_lifted")),
        st.integers(0, len(KEYS) - 1),
        st.integers(0, 10**9),
    ),
    max_size=40,
    unique_by=lambda step: step[2],
)


@given(steps=steps, seed=st.integers())
def test_the_order_of_lines_does_not_matter(steps: list[Step], seed: int) -> None:
    shuffled = steps[:]
    random.Random(seed).shuffle(shuffled)
    one, other = judged(steps), judged(shuffled)
    assert one.mismatches() == other.mismatches()
    assert one.quarantines() == other.quarantines()


@given(steps=steps)
def test_what_a_later_lift_names_is_resolved_and_nothing_else(steps: list[Step]) -> None:
    found = judged(steps)
    unresolved = set()
    in_force = set()
    for kind, key, at in sorted(steps, key=lambda step: step[2]):
        if kind == "mismatch":
            unresolved.add((KEYS[key], at))
        elif kind == "quarantine_lifted":
            unresolved = {one for one in unresolved if one[0] != KEYS[key]}
            in_force.discard(KEYS[key])
        else:
            in_force.add(KEYS[key])
    assert found.unresolved == len(unresolved)
    assert {(q["tokenizer_digest"], q["path"]) for q in found.quarantines()["in_force"]} == in_force
    report = found.mismatches()
    assert report["total"] == sum(kind == "mismatch" for kind, _, _ in steps)
    assert sum(not one["resolved"] for one in report["latest"]) == len(unresolved)


@pytest.mark.parametrize("change", [{"ts": "soon"}, {"ts": None}, {"tokenizer_digest": 5}, {"path": None}])
def test_a_damaged_mismatch_stays_unresolved(change: dict[str, Any]) -> None:
    found = Verdicts()
    found.take("mismatch", event("mismatch", 0, 0) | change)
    for damaged in ({}, change):
        found.take("quarantine_lifted", event("quarantine_lifted", 0, 5) | damaged)
    assert found.unresolved == 1


def test_a_damaged_lift_resolves_nothing() -> None:
    for change in ({"ts": 5}, {"tokenizer_digest": None}, {"path": None}, {"tokenizer_digest": None, "path": None}):
        found = judged([("mismatch", 0, 0)])
        found.take("quarantine_lifted", event("quarantine_lifted", 0, 5) | change)
        assert found.unresolved == 1, change


@pytest.mark.parametrize(
    "named", [["gpu", 5], [], ["append"] * 9, "append", {"append": 1}, [None], [["append"]], ["gpu\x1b"]]
)
def test_suspects_that_cannot_be_read_stay_suspects(named: Any) -> None:
    found = Verdicts()
    found.take("mismatch", event("mismatch", 0, 0, suspects=named))
    for path in ("append", "gpu"):
        found.take("quarantine_lifted", event("quarantine_lifted", 0, 5, path=path))
    assert found.unresolved == 1


def test_a_mismatch_that_speaks_against_two_paths_counts_once() -> None:
    found = Verdicts()
    found.take("mismatch", event("mismatch", 0, 0, suspects=["gpu", "append"]))
    found.take("mismatch", event("mismatch", 0, 1, suspects=["append"]))
    found.take("quarantine_lifted", event("quarantine_lifted", 0, 5))
    report = found.mismatches()
    assert (report["total"], report["unresolved"]) == (2, 1)
    assert [(case["path"], case["total"], case["unresolved"]) for case in report["cases"]] == [
        ("append", 1, 0),
        ("append, gpu", 1, 1),
    ]
    assert [(one["suspects"], one["resolved"]) for one in report["latest"]] == [
        (["append"], True),
        (["append", "gpu"], False),
    ]


def test_a_lift_at_the_same_moment_is_not_later() -> None:
    assert judged([("mismatch", 0, 7), ("quarantine_lifted", 0, 7)]).unresolved == 1


def test_quarantines_say_since_when_and_how() -> None:
    found = judged([("quarantined", 0, 0), ("quarantine_lifted", 0, 10**6)])
    more = {"source": "usage", "model": "m"}
    found.take("quarantined", event("quarantined", 0, 2 * 10**6, quarantine_level="reference", **more))
    found.take("quarantined", event("quarantined", 0, 3 * 10**6, quarantine_level="text", **more))
    report = found.quarantines()
    place = {"tokenizer_digest": "t1", "path": "append"}
    assert report["in_force"] == [{**place, "since": "2026-11-30T12:30:02Z", "level": "text", **more}]
    assert report["lifted"] == [{**place, "ts": "2026-11-30T12:30:01Z", "by": None, "lifts": 1}]


def test_a_damaged_file_is_a_quarantine_of_its_own() -> None:
    found = judged([("mismatch", 0, 0)])
    found.take("quarantine_unreadable", line("quarantine_unreadable", START_US + 1))
    assert [q["path"] for q in found.quarantines()["in_force"]] == ["(all)"]
    everything = {"tokenizer_digest": None, "path": None}
    found.take("quarantine_lifted", line("quarantine_lifted", START_US + 2, **everything))
    assert found.quarantines()["in_force"] == []
    assert found.unresolved == 1


@given(
    moments=st.lists(st.integers(0, 10**6), min_size=10, max_size=120),
    lifts=st.lists(st.integers(0, 10**6), max_size=4),
    seed=st.integers(),
)
@settings(deadline=None)
def test_thinned_out_moments_never_hide_an_unresolved_mismatch(moments: list[int], lifts: list[int], seed: int) -> None:
    steps = [("mismatch", 0, at) for at in moments] + [("quarantine_lifted", 0, at) for at in lifts]
    random.Random(seed).shuffle(steps)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(verdicts, "MOST_TIMES", 8)
        found = judged(steps)
    last = max(lifts, default=-1)
    exact = sum(at >= last for at in moments)
    assert found.unresolved >= exact
    assert (found.unresolved > 0) == (exact > 0)
    assert found.mismatches()["total"] == len(moments)


def test_more_places_than_are_kept_cannot_be_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_KEYS", 2)
    found = judged([("mismatch", key, key) for key in range(3)])
    for key in range(3):
        found.take("quarantine_lifted", event("quarantine_lifted", key, 10))
    assert found.unresolved == 1
    assert [case["tokenizer_digest"] for case in found.mismatches()["cases"]] == ["(other)", "t1", "t1"]


def test_the_newest_details_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verdicts, "MOST_DETAILS", 3)
    found = Verdicts()
    for at in (5, 1, 9, 3, 7):
        found.take(
            "mismatch",
            event("mismatch", 0, at * 10**6, first_id=at, versions={"a": "1"}, certificate="c", by_gpu=at > 5),
        )
    latest = found.mismatches()["latest"]
    assert [(one["first_id"], one["by_gpu"]) for one in latest] == [(9, True), (7, True), (5, False)]
    assert (latest[0]["versions"], latest[0]["certificate"]) == ({"a": "1"}, "c")


def test_every_documented_field_of_a_mismatch_is_kept() -> None:
    section = (ROOT / "docs" / "log-schema.md").read_text("utf-8").split("## `mismatch`", 1)[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    documented = {field for cell in rows for field in re.findall(r"`(\w+)`", cell)}
    found = judged([("mismatch", 0, 0)])
    (latest,) = found.mismatches()["latest"]
    assert set(latest) - {"ts", "resolved"} == documented
