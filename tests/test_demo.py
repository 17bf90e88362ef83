"""The demo: its session holds what it promises, its judge fails what must fail; `make demo` shows that it succeeds."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from rich.console import Console

from tools.demo import __main__ as demo
from tools.demo import report
from tools.demo.session import Turn


def made(
    what: str = "turn", *, path: str = "append", form: str = "ids", exact: bool | None = True, **more: Any
) -> Turn:
    log = {"path": path, "bypass": None, "chars": 10, "served_chars": 10, "scanned_chars": 5, "tokens": 3}
    verdict = {"form": form, "exact": exact, "first_difference": None if exact else 2}
    return Turn(what, "id", log={**log, "stages_us": {}}, verdict=verdict, **more)


@pytest.mark.parametrize(("width", "count"), [(80, 2), (149, 2), (150, 1), (200, 1)])
def test_no_number_is_cut_on_any_terminal(width: int, count: int) -> None:
    turns = [made("a tool result that is long, and streamed", path="compaction") for _ in range(39)]
    for turn in turns:
        turn.log |= {"chars": 222_222, "served_chars": 222_222, "scanned_chars": 222_222, "tokens": 99_999}
        turn.log["stages_us"] = dict.fromkeys(report.STAGES, 99_999)
    tables = report.tables(turns, width)
    assert len(tables) == count
    console = Console(width=width, file=io.StringIO(), record=True)
    for table in tables:
        console.print(table)
    text = console.export_text()
    for name in (*report.COUNTS, *report.STAGES, "exact"):
        assert f" {name} " in f" {text} "
    assert text.count(" yes") == 39
    assert text.count("222,222") == 3 * 39
    assert text.count("99,999") == (1 + len(report.STAGES)) * 39


def test_a_good_run_has_no_problems() -> None:
    image = made("image", path="bypass", form="text", exact=None, bypass=True, eligible=False)
    assert report.problems([made(path="init", eligible=False), *[made()] * 9, made(path="edit"), image]) == []


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        (made(exact=False), "not exact"),
        (made(form="text", exact=None), "not exact"),  # IDs should have come
        (made(form="ids", exact=None), "not exact"),  # never compared
        (made(eligible=False, path="init", exact=False), "not exact"),
        (made("image", form="text", exact=None, bypass=True), "should have been bypassed"),
    ],
)
def test_one_bad_turn_fails_the_run(turn: Turn, words: str) -> None:
    (problem,) = report.problems([*[made()] * 20, turn])
    assert words in problem


def test_too_few_repaired_turns_fail_the_run() -> None:
    assert report.problems([*[made()] * 9, made(path="init")]) == []
    (problem,) = report.problems([*[made()] * 8, made(path="init"), made(path="init")])
    assert "80% of 10 eligible turns" in problem
    assert report.problems([made(path="init", eligible=False)])  # a run without eligible turns proves nothing


def whole() -> list[Turn]:
    """A session that holds all that it should."""
    turns = [made(what) for what in (*report.HELD, *["tool result"] * 25)]
    for turn in turns:
        turn.verdict |= {"tokens": 60_000, "stream": True}
    turns[4].bypass, turns[9].attempt = True, 1
    return turns


def test_a_session_that_holds_what_agents_do_lacks_nothing() -> None:
    assert report.lacking(whole()) == []


@pytest.mark.parametrize("name", report.HELD)
def test_a_session_without_one_of_them_fails_the_run(name: str) -> None:
    (lack,) = report.lacking([turn if turn.what != name else replace(turn, what="x") for turn in whole()])
    assert repr(name) in lack


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda turns: turns[:-5], "29 turns"),
        (lambda turns: [replace(turn, eligible=k < 24) for k, turn in enumerate(turns)], "24 eligible turns"),
        (lambda turns: [replace(turn, verdict=turn.verdict | {"tokens": 5}) for turn in turns], "5 tokens in a prompt"),
        (lambda turns: [replace(turn, verdict=turn.verdict | {"stream": False}) for turn in turns], "streamed turn"),
        (lambda turns: [replace(turn, bypass=False) for turn in turns], "bypass"),
        (lambda turns: [replace(turn, bypass=True) for turn in turns], "bypass"),
        (lambda turns: [replace(turn, attempt=0) for turn in turns], "second attempt"),
        (lambda turns: [replace(turn, verdict={}) if k == 20 else turn for k, turn in enumerate(turns)], "verdict"),
    ],
)
def test_a_session_that_proves_less_fails_the_run(change: Callable[[list[Turn]], list[Turn]], words: str) -> None:
    (lack,) = report.lacking(change(whole()))
    assert words in lack


async def test_the_run_fails_with_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns that are as they should be are for `make demo`, which CI runs as well."""

    class Nothing:
        url = model = ""

        def __init__(self, *_: Any, **__: Any) -> None: ...

        async def __aenter__(self) -> Self:
            return self

        async def __aexit__(self, *_: object) -> None: ...

    for turns, code in ((whole(), 0), (whole()[1:], 1), ([made(exact=False), *whole()], 1)):

        async def played(*_: Any, turns: list[Turn] = turns) -> list[Turn]:
            return turns

        monkeypatch.setattr(demo, "EmbeddedEngine", Nothing)
        monkeypatch.setattr(demo, "Proxy", Nothing)
        monkeypatch.setattr(demo, "session", played)
        for turn in turns:
            turn.log["path"] = "bypass" if turn.bypass else "append"
        assert await demo.main(Console(file=io.StringIO(), width=200)) == code


def children(parent: int) -> set[int]:
    """Direct children of a process, from the process table (Linux)."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            after_name = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(after_name[1]) == parent:
                found.add(int(entry.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads the process table")
@pytest.mark.slow
def test_ctrl_c_ends_its_own_processes() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tools.demo"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # a shell that runs the tests in the background has set the signal to be ignored, and that is inherited
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    started: set[int] = set()
    deadline = time.monotonic() + 120
    while len(started) < 2 and time.monotonic() < deadline and process.poll() is None:
        started |= children(process.pid)
        time.sleep(0.2)
    assert len(started) >= 2, "the engine's reference and the proxy are its children"
    os.killpg(process.pid, signal.SIGINT)  # what a terminal does
    assert process.wait(60) == 130
    assert not [pid for pid in started if os.path.exists(f"/proc/{pid}")]
