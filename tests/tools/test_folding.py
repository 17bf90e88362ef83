from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tools.folding.__main__ import main


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["tools.folding", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def test_a_campaign_writes_what_it_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd.jinja").write_text(
        "{% set j = joiner() %}{% for m in messages %}{{ j() }}{{ m.content }}{% endfor %}", encoding="utf-8"
    )
    (tmp_path / "none.jinja").write_text("no loop", encoding="utf-8")
    file = tmp_path / "out" / "report.json"
    arguments = ("--checks", "60", "--json", str(file), "--templates", str(tmp_path), "--only")
    assert _run(monkeypatch, *arguments, "odd") == 0
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["totals"]["checks"] >= 60
    assert told["totals"]["mismatches"] == 0
    assert told["templates"][0]["fallbacks"]["stateful"] > 0
    assert _run(monkeypatch, *arguments, "none") == 0
    assert "no_loop" in json.loads(file.read_text(encoding="utf-8"))["left_out"]["none"]
    assert _run(monkeypatch, *arguments, "absent") == 1
