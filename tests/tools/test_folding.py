from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from tools.folding import differential, report
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
    (one,) = told["templates"]
    assert one["digest"] == hashlib.sha256((tmp_path / "odd.jinja").read_bytes()).hexdigest()
    assert (one["seed"], one["sessions"]) == (told["seed"], one["checks"] // 25)
    assert told["code"] == report.code_digest()
    assert _run(monkeypatch, *arguments, "none") == 0
    assert "no_loop" in json.loads(file.read_text(encoding="utf-8"))["left_out"]["none"]
    assert _run(monkeypatch, *arguments, "absent") == 1


def test_a_report_says_in_a_line_what_ran() -> None:
    one = differential.Report("a", "d1", 5, sessions=3, checks=75, outputs=70, exceptions=5, iterations=9, messages=99)
    other = differential.Report("b", "d2", 5, sessions=1, checks=25, outputs=25, mismatches=2)
    other.fallbacks["state"] = 1
    told = report.told(report.tree(), [one, other], {"c": "no_loop: no loop"}, 5)
    line = " ".join(report.line(told).split())
    assert f"code `{report.code_digest()[:12]}`" in line
    assert "2 templates, seeds 5 to 7, 100 checks (95 texts and 5 exceptions): 2 mismatches, 1 rendered in full" in line
    assert "Left out: `c` (no_loop: no loop)." in line
    assert "MISMATCHES" in report.summary(told)


def test_the_digest_is_of_both_renders(tmp_path: Path) -> None:
    for name in ("toktier/folding/a.py", "toktier/folding/b/c.py", "toktier/template.py", "toktier/tier.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1", encoding="utf-8")
    digests = [report.code_digest(tmp_path)]
    for name in ("toktier/tier.py", "toktier/folding/b/c.py", "toktier/template.py"):
        (tmp_path / name).write_text("2", encoding="utf-8")
        digests.append(report.code_digest(tmp_path))
    assert digests[0] == digests[1]
    assert len(set(digests[1:])) == 3
    assert report.commit(tmp_path) == ""
