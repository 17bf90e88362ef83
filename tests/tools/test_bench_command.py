"""`python -m tools.bench`: what options become, what is written, and when it ends with 1."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tools.bench import __main__ as command
from tools.bench import engine, proxy, records, render, repair
from tools.bench.records import OURS, Record
from tools.engine.build import EngineError


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str:
    monkeypatch.setattr(sys, "argv", ["bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main()
    code = ended.value.code
    assert isinstance(code, (int, str))
    return code


def test_quick_is_short_and_builds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    plans: list[Any] = []
    row = Record("library", "append 1,400", OURS, 10_000, 3, 50.0, 60.0, 70.0, served=1, scanned=1)

    def repaired(plan: repair.Plan, _cache: Path) -> list[Record]:
        plans.append(plan)
        return [row]

    monkeypatch.setattr(repair, "run", repaired)
    assert run(monkeypatch, "repair", "--json", str(file), "--quick") == 0
    assert records.read(file) == [row]
    assert (list(plans[0].sizes), plans[0].rounds, plans[0].build) == ([10_000], 3, False)
    assert run(monkeypatch, "repair", "--json", str(file), "--only", "truncate", "--sizes", "5000") == 0
    assert (plans[1].sizes, plans[1].cases, plans[1].rounds, plans[1].build) == ([5_000], ["truncate"], 20, True)

    def rendered(names: Any, rounds: int, cases: Any, *_: Any) -> list[render.Render]:
        plans.append((names, rounds, [messages for _, messages in cases]))
        return []

    monkeypatch.setattr(render, "run", rendered)
    assert run(monkeypatch, "render", "--json", str(file), "--quick") == 0
    assert plans[2] == ([render.SHIPPED], 5, [10, 100])
    assert run(monkeypatch, "render", "--json", str(file), "--only", "append", "--templates", "x") == 0
    assert plans[3] == (["x"], 25, [10, 100, 1_000, 4_000])


def test_rows_of_further_templates_are_added(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"

    def row(name: str, n: int) -> render.Render:
        return render.Render("render", name, "append", OURS, 10, 100, 2, n, 1.0, 1.0, 1.0)

    records.write(file, [row("a", 3), row("b", 3)])
    asked: list[Any] = []

    def rendered(names: list[str], _rounds: int, _cases: Any, _at: Any, _build: Any, folders: Any) -> Any:
        asked.append(folders)
        if "absent" in names:
            raise render.NotFound("no template absent")
        return [row(name, 9) for name in names]

    monkeypatch.setattr(render, "run", rendered)
    more = ("--templates", "b", "c", "--folders", str(tmp_path))
    assert run(monkeypatch, "render", "--json", str(file), "--add", *more) == 0
    assert asked == [[tmp_path]]
    assert records.read(file, render.Render) == [row("a", 3), row("b", 9), row("c", 9)]
    assert run(monkeypatch, "render", "--json", str(file), "--templates", "absent") == "error: no template absent"
    assert run(monkeypatch, "render", "--json", str(file), "--templates", "c") == 0
    assert records.read(file, render.Render) == [row("c", 9)]


def test_a_limit_that_is_not_kept_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = Record("proxy", "added, 1 session", OURS, 1_000_000, 3, 900.0, 900.0, 900.0)
    monkeypatch.setattr(proxy, "run", lambda *_: [slow])
    assert run(monkeypatch, "proxy", "--json", str(tmp_path / "p.json")) == 1
    assert "beyond the limit: added at 1,000,000 over pass-through: 0.90 ms, not 0.6" in capsys.readouterr().err


def test_the_engine_is_started_where_no_url_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    urls: list[str | None] = []

    @contextmanager
    def vllm(url: str | None) -> Any:
        urls.append(url)
        yield "http://engine"

    monkeypatch.setattr(engine, "vllm", vllm)
    monkeypatch.setattr(engine, "run", lambda _plan, url: [records.unmeasured("engine", url, OURS, 1, "not now")])
    monkeypatch.setattr(proxy, "run", lambda _plan, url=None: [records.unmeasured("proxy", str(url), OURS, 1, "")])
    file = tmp_path / "e.json"
    assert run(monkeypatch, "engine", "--json", str(file)) == 0
    assert records.read(file)[0].case == "http://engine"
    assert run(monkeypatch, "proxy", "--json", str(file), "--vllm") == 0
    assert run(monkeypatch, "proxy", "--json", str(file), "--vllm", "http://x") == 0
    assert urls == [None, None, "http://x"]
    assert records.read(file)[0].case == "http://engine"
    assert run(monkeypatch, "proxy", "--json", str(file)) == 0
    assert records.read(file)[0].case == "None"

    def broken(_url: str | None) -> Any:
        raise EngineError("not built")

    monkeypatch.setattr(engine, "vllm", broken)
    assert run(monkeypatch, "engine", "--json", str(file)) == "error: not built"
