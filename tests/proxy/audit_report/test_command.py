from __future__ import annotations

import asyncio
import gzip
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
import structlog
from typer.testing import CliRunner, Result

from proxy import logs
from proxy.cli import app
from proxy.config import Log
from tests.conftest import ROOT
from tests.support.proxy import staged
from tests.support.wrong_tier import swapped, trial
from toktier.errors import Unrenderable
from toktier.quarantine import Quarantine
from toktier.reasons import Bypass
from tools import audit_sample

SAMPLE = [orjson.dumps(one) for one in audit_sample.lines(requests=300)]
OPEN = [one for one in SAMPLE if b'"quarantine_lifted"' not in one]


def run(*arguments: str | Path, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, ["audit", *map(str, arguments)], input=stdin, catch_exceptions=False)


def built(*arguments: str | Path, stdin: bytes | None = None) -> dict[str, Any]:
    result = run(*arguments, "--json", stdin=stdin)
    report: dict[str, Any] = json.loads(result.stdout)
    assert report["exit_code"] == result.exit_code
    return report


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "toktier.log"
    path.write_bytes(b"\n".join(SAMPLE) + b"\n")
    return path


def test_files_in_any_order_packed_or_not_are_one_log(tmp_path: Path, log: Path) -> None:
    parts = [SAMPLE[:100], SAMPLE[100:200], SAMPLE[200:]]
    (tmp_path / "a.1").write_bytes(b"\n".join(parts[0]))
    (tmp_path / "a.2.gz").write_bytes(gzip.compress(b"\n".join(parts[1])))
    several = built(tmp_path / "a.2.gz", "-", tmp_path / "a.1", stdin=b"\n".join(parts[2]))
    whole = built(log)
    assert [file["own"] for file in several["files"]] == [100, len(parts[2]), 100]
    assert {**several, "files": None} == {**whole, "files": None}


def test_exit_codes(tmp_path: Path, log: Path) -> None:
    assert run(log).exit_code == 0
    result = run("-", stdin=b"\n".join(OPEN))
    assert result.exit_code == 1
    assert "NOT RESOLVED" in result.stdout
    assert run(log, "--since", "1s").exit_code == 0, "old lines are TokTier's as well"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"of another program\n{}\n", "none of 2 lines is one of TokTier's log"),
        (b"", "there is no line in it"),
        (b"\n\n", "there is no line in it"),
        (gzip.compress(b"", mtime=0), "there is no line in it"),
        (b"\x1f\x8bnothing", "not what gzip wrote"),
        (b'{"ts":"x","schema":7,"event":"request"}\n', "line 1: schema 7 is newer than the 1 that this version reads"),
        (None, "no such file or directory"),
    ],
)
def test_unusable_input(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    result = run(path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("toktier: ")
    assert says in result.stderr
    report = built(path)
    assert (report["exit_code"], says in report["problem"]) == (2, True)


def test_a_wrong_since(log: Path) -> None:
    result = run(log, "--since", "yesterday")
    assert result.exit_code == 2
    assert "30m, 2h or 7d" in result.stderr


def test_since_and_repeated_files(log: Path) -> None:
    report = built(log, log, "--since", "2026-11-30T14:00:00Z")
    assert report["repeated"] == [str(log)]
    assert report["since"] == "2026-11-30T14:00:00Z"
    assert 0 < report["lines"]["counted"] < len(SAMPLE) == report["lines"]["read"]
    assert run(log, "--since", "1s").exit_code == 0  # long after the sample: nothing is counted


def test_the_page_is_written_beside_the_text(tmp_path: Path, log: Path) -> None:
    result = run(log, "--html", tmp_path / "report.html")
    assert result.exit_code == 0
    assert "requests" in result.stdout
    assert (tmp_path / "report.html").read_text("utf-8").startswith("<!doctype html>")
    result = run(log, "--html", tmp_path / "absent" / "report.html")
    assert result.exit_code == 2
    assert "no such file or directory" in result.stderr


def test_a_log_that_the_process_itself_writes_and_rotates(tmp_path: Path) -> None:
    path = tmp_path / "toktier.log"
    written = logs.configure(Log(path=path, max_bytes=65_536, keep_files=1000))
    try:
        for one in audit_sample.lines(requests=300):
            fields = {key: value for key, value in one.items() if key not in ("ts", "level", "schema", "event")}
            structlog.get_logger().info(one["event"], **fields)
    finally:
        written.close()
        structlog.reset_defaults()
        logging.getLogger().handlers = [h for h in logging.getLogger().handlers if not isinstance(h, logs._FromLogging)]
    files = sorted(tmp_path.iterdir())
    assert len(files) > 3
    report = built(*files)
    assert report["lines"]["counted"] == len(SAMPLE)
    assert (report["lines"]["malformed"], report["lines"]["foreign"], report["mismatches"]["total"]) == (0, 0, 1)
    expected = built("-", stdin=b"\n".join(SAMPLE))
    for key in ("requests", "served_chars", "scanned_chars", "by_path", "stages_us", "shadow"):
        assert report["all"][key] == expected["all"][key]


def written(events: list[dict[str, Any]]) -> bytes:
    """Events of a running proxy as its log has them."""
    return b"\n".join(logs.render(None, "", logs.plain(None, "", logs._stamp(None, "", dict(one)))) for one in events)


async def test_a_mismatch_of_a_running_proxy_is_open_until_it_is_lifted(tmp_path: Path) -> None:
    async with trial(tmp_path) as t:
        t.tier.spoil = swapped
        await t.ask("wrong", request_id="the-wrong-one")
        told = await t.until("mismatch")
        await t.until("quarantined")
        found = written(t.proxy.events)
        await asyncio.sleep(0.001)  # the stamps are made here: what follows is later
        before = len(t.proxy.events)
        Quarantine(tmp_path / "quarantine.json").lift()
        await t.until("quarantine_lifted")
        lifted = written(t.proxy.events[before:])
    report = built("-", stdin=found)
    assert report["exit_code"] == 1
    assert (report["mismatches"]["total"], report["mismatches"]["unresolved"]) == (1, 1)
    (latest,) = report["mismatches"]["latest"]
    for key in ("request_id", "kind", "tokenizer_digest", "path", "tokens", "first_id", "text_digest", "piece_chars"):
        assert latest[key] == told[key] is not None, key
    (entry,) = report["quarantines"]["in_force"]
    assert (entry["path"], entry["level"], entry["source"], entry["model"]) == ("init", "reference", "shadow", "m")
    assert report["all"]["mismatches"]["by_source"] == {"shadow": 1}
    assert report["all"]["mismatches"]["delay_us"]["max"] == told["delay_us"]
    report = built("-", stdin=lifted + b"\n" + found)
    assert (report["exit_code"], report["quarantines"]["in_force"]) == (0, [])
    assert report["quarantines"]["lifted"][0]["by"] == "another process"
    assert report["mismatches"]["latest"][0]["resolved"]


async def test_the_lines_of_a_running_proxy(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        for number in range(4):
            await stage.post({"model": "m", "messages": [{"role": "user", "content": "x" * number}]})
        stage.tier.fault = Unrenderable(Bypass.ECHO)
        await stage.post({"model": "m", "messages": []})
        await stage.post({"model": "unknown", "messages": []})
        requests = await stage.proxy.logged(6)
        events = list(stage.proxy.events)
    report = built("-", stdin=written(events))
    assert report["lines"]["counted"] == report["lines"]["read"] == len(events)
    tally = report["all"]
    assert tally["requests"] == 6
    assert tally["bypass"] == {"echo": 1}
    assert tally["served_chars"] == sum(one["served_chars"] or 0 for one in requests) > 0
    assert tally["tokens"] == sum(one["tokens"] or 0 for one in requests) > 0
    assert tally["errors"] == {"model_not_found": 1}
    assert tally["stages_us"]["total"]["count"] == 6
    assert [model["model"] for model in report["models"]] == ["m", None]


def test_the_real_command_reads_a_pipe() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "audit", "-", "--json"],
        input=b"\n".join(OPEN), capture_output=True, check=False, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == b""
    assert json.loads(done.stdout)["mismatches"]["unresolved"] == 1


def test_names_outside_the_terminal_s_encoding() -> None:
    made = audit_sample.line("request", audit_sample.START_US, model="\u6a21\u578b\U0001f600")
    done = subprocess.run(
        [sys.executable, "-m", "proxy.cli", "audit", "-"], env={**os.environ, "PYTHONIOENCODING": "ascii"},
        input=orjson.dumps(made), capture_output=True, check=False, cwd=ROOT, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"\\u6a21\\u578b\\U0001f600" in done.stdout
