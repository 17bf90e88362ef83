"""`toktier campaign` as a user meets it: exit codes, the report, its JSON."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from rich.console import Console
from typer.testing import CliRunner, Result

from proxy.campaign_print import bar, show
from proxy.cli import app
from tests.proxy.test_certify import refused_spec
from tests.support.campaigns import folder_of, small_blocks
from tests.support.tokenizer_files import CACHE, write
from toktier.campaign import runner
from toktier.campaign.edits import Account
from toktier.campaign.report import CutTally, Failure, PlantReport, Report, RopeTally


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TOKTIER_SERVER__CACHE_DIR", str(CACHE))
    monkeypatch.delenv("TOKTIER_CONFIG", raising=False)
    small_blocks(monkeypatch)
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of("prepend", tmp_path_factory.mktemp("tokenizers"))


def campaign(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["campaign", *map(str, arguments)], catch_exceptions=False)


def test_no_divergence_is_exit_code_0(folder: Path) -> None:
    result = campaign(folder, "--cases", "1500", "--rope-ops", "50", "--jobs", "1", "--json", "--seed", "7")
    assert result.exit_code == 0
    told = json.loads(result.stdout)
    assert told["result"] == "none found"
    assert told["seed"] == 7
    assert told["tokenizer"]["digest"]
    assert told["certificate"]["interior"] is True
    assert told["cuts"]["checks"] >= 1500
    assert told["ropes"]["operations"] == 50
    assert set(told["cuts"]["families"]) == {
        "pairs", "borders", "mixed", "literals", "unicode", "runs", "real", "mutated", "merged",
    }  # fmt: skip
    assert result.stderr == ""  # no progress bar where there is no terminal


def test_the_report_for_people(folder: Path) -> None:
    result = campaign(folder, "--cases", "1000", "--rope-ops", "50", "--jobs", "1")
    assert result.exit_code == 0
    assert "cuts checked" in result.stdout
    assert "% repaired" in result.stdout
    assert result.stdout.rstrip().endswith("no divergence")


def test_own_texts_are_tried_too(folder: Path, tmp_path: Path) -> None:
    text = tmp_path / "own.txt"
    text.write_text("own text\n" * 50, "utf-8")
    plain, own = (
        json.loads(campaign(folder, "--cases", "100", "--rope-ops", "0", "--jobs", "1", "--json", *more).stdout)
        for more in ([], ["--text", text])
    )
    assert plain["texts"] != own["texts"]
    assert campaign(folder, "--text", tmp_path / "absent").exit_code == 2


def test_divergence_is_exit_code_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from toktier.certificate.table import TableCuts

    sound = runner.subject_of

    def broken(*arguments: Any) -> Any:
        subject = sound(*arguments)
        return replace(subject, rule=TableCuts(subject.rule.table, interior=False))

    monkeypatch.setattr(runner, "subject_of", broken)
    result = campaign(folder, "--cases", "500", "--rope-ops", "0", "--jobs", "1")
    assert result.exit_code == 1
    assert "divergence in ids, cuts" in result.stdout


def test_refused_and_unusable(tmp_path: Path) -> None:
    result = campaign(write(tmp_path / "t", refused_spec()))
    assert result.exit_code == 3
    first, pattern, sign = result.stderr.splitlines()
    assert first == "toktier: no certificate: look-behind (at pre_tokenizer, character 12)"
    assert pattern[sign.index("^") :] == "(?<=[0-4])x"
    told = json.loads(campaign(tmp_path / "t", "--json").stdout)
    assert told == {"exit_code": 3, "problem": first.removeprefix("toktier: ")}
    result = campaign(tmp_path / "absent")
    assert result.exit_code == 2
    assert len(result.stderr.splitlines()) == 1
    as_json = campaign(tmp_path / "absent", "--json")
    assert (as_json.exit_code, as_json.stderr, json.loads(as_json.stdout)["exit_code"]) == (2, "", 2)


def test_planted_faults_are_caught(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "PLANTS", 1)
    result = campaign(folder, "--plant", "--jobs", "1", "--json")
    assert result.exit_code == 0, result.stdout
    told = json.loads(result.stdout)
    assert told["result"] == "all caught"
    assert {fault["kind"]: fault["caught"] for fault in told["plants"]}.items() >= {
        "pair": True, "class": True, "join": True, "interior": True, "next": None, "splice: a count off by one": True,
    }.items()  # fmt: skip


def test_a_missed_fault_is_exit_code_1(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from toktier.campaign.worker import PlantBlock

    class Hasty(PlantBlock):
        def __init__(self, kind: str, number: int, checks: int, operations: int, of: int) -> None:
            super().__init__(kind, number, 0, 0, of)

    monkeypatch.setattr(runner, "PLANTS", 1)
    monkeypatch.setattr(runner, "PlantBlock", Hasty)
    result = campaign(folder, "--plant", "--jobs", "1")
    assert result.exit_code == 1
    assert "missed" in result.stdout
    assert "does not exist here" in result.stdout


def test_a_lost_process_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any) -> None:
        raise runner.ProcessLost("a worker process ended by itself")

    monkeypatch.setattr(runner, "_drive", lost)
    result = campaign(folder, "--jobs", "1")
    assert result.exit_code == 2
    assert result.stderr == "toktier: a worker process ended by itself\n"


def started(folder: Path) -> subprocess.Popen[bytes]:
    """A campaign with processes that are up, in a group of its own, as a terminal or a service manager has it."""
    command = [sys.executable, "-m", "proxy.cli", "campaign", str(folder), "--jobs", "2", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=dict(os.environ),
        # a shell that runs the tests in the background has them, and so what they start, ignore Ctrl-C
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 120
    while len(children.read_text().split()) < 2 and time.monotonic() < deadline:  # the workers and their tracker
        time.sleep(0.05)
    time.sleep(0.5)
    return process


@pytest.mark.parametrize(
    ("number", "everybody", "code"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143)],
)
@pytest.mark.slow
def test_a_signal_ends_processes_and_prints_what_there_is(
    folder: Path, number: signal.Signals, everybody: bool, code: int
) -> None:
    """Ctrl-C goes to the whole group, `kill` to one process."""
    process = started(folder)
    (os.killpg if everybody else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=120)
    assert process.returncode == code, err.decode()
    assert err == b""
    assert json.loads(out)["ended"] == "interrupted"
    all_gone(process.pid)


@pytest.mark.slow
def test_no_process_outlives_a_campaign(folder: Path) -> None:
    process = started(folder)
    process.kill()
    process.communicate(timeout=120)
    all_gone(process.pid)


def all_gone(group: int) -> None:
    deadline = time.monotonic() + 20
    while alive(group) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not alive(group)


def alive(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def everything() -> Report:
    report = Report(
        {"source": "t", "digest": "d", "window": "w"}, {"digest": "c" * 64}, {"x": "1"}, "t", seed=1, jobs=2
    )
    report.cuts = CutTally()
    report.ropes = RopeTally(1, Account(operations=2, repaired=1))
    report.failures = [
        Failure("cuts", 3, "mixed", "ids", "a[b]", 4, 2),
        Failure("ropes", 5, "edit", "ids", "abc", 3, change={"start": 1, "end": 2, "new": "x"}),
    ]
    report.plants = [
        PlantReport("pair", "w", 2, "x", True, "cuts: mixed, ids", 7, "ab", 2),
        PlantReport("pair", "w", 0, "x", False, needed=100),
        PlantReport("join", "", 0, "", None),
        PlantReport("next", "", 9, "", None),
    ]
    return report


def test_failures_are_shown_as_they_are() -> None:
    out = io.StringIO()
    show(everything(), Console(file=out, width=200))
    told = out.getvalue()
    assert 'divergence in ids, cuts 3 (mixed) at cut 2: "a[b]", 4 characters' in told
    assert 'characters 1 to 2 replaced by "x"' in told
    assert "1 planted fault missed" in told
    assert "none of 9 candidates does harm" in told
    assert "2 harmless skipped" in told


def test_the_bar_follows_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with bar(wanted=True) as progress:
        assert progress is not None
        report = everything()
        progress(report, 0.5)
        report.plants = None
        progress(report, 0.7)
    with bar(wanted=False) as progress:
        assert progress is None
