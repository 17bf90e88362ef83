from __future__ import annotations

import json
from collections import Counter

from toktier.campaign.edits import Account
from toktier.campaign.report import CutTally, Failure, PlantReport, Report, RopeTally


def report() -> Report:
    return Report({"source": "t", "digest": "d"}, {"digest": "c"}, {"tokenizers": "1"}, "x", seed=1, jobs=2)


def test_tallies_add_up() -> None:
    one = CutTally(Counter(a=1), Counter(a=5), Counter(), 10)
    one.add(CutTally(Counter(a=1, b=1), Counter(a=2, b=3), Counter(b=1), 20))
    told = one.json()
    assert told["checks"] == one.done == 10
    assert told["cases"] == 3
    assert told["failures"] == 1
    assert told["families"]["a"] == {"cases": 2, "checks": 7, "failures": 0}

    ropes = RopeTally()
    ropes.add(RopeTally(2, Account(operations=4, repaired=3, full=Counter(no_cut=1), families=Counter(edit=4))))
    ropes.add(RopeTally(1, Account(operations=4, huge=1, repaired=1, full=Counter(no_cut=3), failures=Counter(edit=1))))
    told = ropes.json()
    assert told["operations"] == 8
    assert told["ropes"] == 3
    assert told["repaired"] == {"operations": 8, "repaired": 4, "share": 0.5, "encoded_in_full": {"no_cut": 4}}
    assert told["repaired_when_cut_closely"]["share"] is None
    assert told["families"] == {"edit": {"operations": 4, "failures": 1}}


def test_failures_and_missed_faults_are_divergence_and_harmless_ones_are_not() -> None:
    assert report().json()["result"] == "none found"
    failed = report()
    failed.failures.append(Failure("cuts", 1, "mixed", "ids", "ab", 2, 1))
    assert failed.diverged
    planted = report()
    planted.plants = [PlantReport("pair", "w", 0, "x", True), PlantReport("join", "", 0, "", None)]
    assert not planted.diverged
    assert planted.json()["result"] == "all caught"
    planted.ended = "time"
    assert planted.json()["result"] == "none missed"
    assert "class" in planted.not_reached
    assert "pair" not in planted.not_reached
    planted.plants.append(PlantReport("pair", "w", 0, "x", False))
    assert planted.diverged
    json.dumps(planted.json())
