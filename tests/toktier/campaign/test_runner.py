from __future__ import annotations

import json
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaigns import folder_of, small_blocks
from tests.support.tokenizer_files import CACHE, bpe, write
from toktier.campaign import runner
from toktier.campaign.corpus import PROSE
from toktier.campaign.report import Report
from toktier.campaign.runner import Plan, ProcessLost, run
from toktier.errors import Refusal, UnusableFile
from toktier.tokenizer import EMBEDDED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("prepend", tmp_path_factory.mktemp("tokenizers"))


def go(source: Path, plan: Plan, progress: runner.Progress | None = None) -> Report:
    return run(source, plan, cache_dir=CACHE, real=[PROSE], progress=progress)


def outcome(report: Report) -> dict[str, Any]:
    told = report.json()
    return {name: told[name] for name in ("result", "ended", "cuts", "ropes", "failures", "texts", "certificate")}


@pytest.mark.slow
def test_a_small_campaign_on_the_embedded_tokenizer_finds_nothing() -> None:
    report = go(EMBEDDED, Plan(cases=4_000, rope_ops=100, jobs=1))
    assert not report.diverged
    told = json.loads(json.dumps(report.json()))
    assert told["result"] == "none found"
    assert told["ended"] == "complete"
    assert told["cuts"]["checks"] >= 4_000
    assert len(told["cuts"]["families"]) == 8
    assert all(family["checks"] > 0 for family in told["cuts"]["families"].values())
    assert told["ropes"]["operations"] == 100
    assert told["ropes"]["over_20k_characters"] == 10
    assert 0.2 < told["ropes"]["repaired"]["share"] < told["ropes"]["repaired_when_cut_closely"]["share"] < 1
    assert told["versions"].keys() == {"toktier-proxy", "tokenizers", "fastokens"}


@pytest.mark.slow
def test_the_outcome_does_not_depend_on_the_number_of_processes(folder: Path) -> None:
    one = go(folder, Plan(cases=3_000, rope_ops=50, jobs=1))
    two = go(folder, Plan(cases=3_000, rope_ops=50, jobs=2))
    assert outcome(one) == outcome(two)
    assert one.cuts is not None
    assert one.cuts.done >= 3_000
    assert outcome(one) != outcome(go(folder, Plan(cases=3_000, rope_ops=50, jobs=1, seed=1)))


def test_time_and_interrupts_end_it_and_are_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch)
    report = go(folder, Plan(cases=10**9, rope_ops=10**9, seconds=1, jobs=1))
    assert report.ended == "time"
    assert report.cuts is not None
    assert report.cuts.done > 0
    assert not report.diverged

    shares: list[float] = []

    def interrupt(_: Report, share: float) -> None:
        shares.append(share)
        if len(shares) == 3:
            raise KeyboardInterrupt

    report = go(folder, Plan(cases=10**6, rope_ops=10**5, jobs=1), interrupt)
    assert report.ended == "interrupted"
    assert shares == sorted(shares)
    assert 0 < shares[-1] < 1


@pytest.mark.parametrize("jobs", [1, 2])
def test_no_time_at_all_suffices_for_a_block_of_each_kind(folder: Path, jobs: int) -> None:
    report = go(folder, Plan(cases=10**9, rope_ops=10**9, seconds=0, jobs=jobs))
    assert report.ended == "time"
    assert report.cuts is not None
    assert report.ropes is not None
    assert report.cuts.done > 0
    assert report.ropes.done > 0


def test_a_missed_fault_is_a_divergence(folder: Path) -> None:
    report = go(folder, Plan(jobs=1, plants=1, plant_checks=0, plant_operations=0))
    assert report.diverged
    assert report.json()["result"] == "divergence"


def test_enough_failures_end_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = runner.subject_of

    def broken(*arguments: Any) -> Any:
        from dataclasses import replace

        from toktier.certificate.table import TableCuts

        subject = sound(*arguments)
        return replace(subject, rule=TableCuts(subject.rule.table, interior=False))

    monkeypatch.setattr(runner, "subject_of", broken)
    monkeypatch.setattr(runner, "ENOUGH", 3)
    small_blocks(monkeypatch)
    report = go(folder, Plan(cases=10**6, rope_ops=0, jobs=1))
    assert report.ended == "failures"
    assert report.diverged
    assert runner.ENOUGH <= len(report.failures) < 2 * runner.ENOUGH
    assert all(failure.chars <= 4 for failure in report.failures)


def test_no_certificate_and_no_file_are_errors(tmp_path: Path) -> None:
    spec = bpe(["a", "b", "ab"], ["a b"])
    spec["pre_tokenizer"] = {"type": "Split", "pattern": {"Regex": r"(?<=a)b"}, "behavior": "Isolated", "invert": False}
    with pytest.raises(Refusal, match=r"look-?behind"):
        go(write(tmp_path / "refused", spec), Plan(jobs=1))
    with pytest.raises(UnusableFile):
        go(tmp_path / "nothing.json", Plan(jobs=1))


def test_a_process_that_dies_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def lost(*_: Any) -> Any:
        def submit(_: Any) -> Future[Any]:
            future: Future[Any] = Future()
            future.set_exception(BrokenProcessPool())
            return future

        yield submit

    monkeypatch.setattr(runner, "_pool", lost)
    with pytest.raises(ProcessLost, match="--jobs"):
        go(folder, Plan(cases=100, rope_ops=0, jobs=2))


def test_all_cores_are_the_default() -> None:
    assert Plan().processes >= 1
    assert Plan(jobs=3).processes == 3
