from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import structlog

from tests.proxy.test_certify import refused_spec
from tests.support.campaigns import folder_of, small_blocks
from tests.support.rank_data import SMALL_SIDECAR, write_ranks
from tests.support.tokenizer_files import CACHE, write
from tools import campaigns


@pytest.fixture(autouse=True)
def _own_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKTIER_SERVER__CACHE_DIR", str(CACHE))
    small_blocks(monkeypatch)


def go(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.setattr(sys, "argv", ["campaigns", *map(str, arguments)])
    try:
        return campaigns.main()
    finally:
        structlog.reset_defaults()


def test_every_tokenizer_of_a_folder_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder_of("composing", tmp_path / "all")
    write_ranks(tmp_path / "all" / "ranks", sidecar=None)
    (tmp_path / "sidecars").mkdir()
    (tmp_path / "sidecars" / "small.tiktoken.json").write_text(json.dumps(SMALL_SIDECAR))
    monkeypatch.setattr(campaigns, "SIDECARS", tmp_path / "sidecars")
    (tmp_path / "all" / "README.md").write_text("no tokenizer")
    few = ("--cases", "100", "--rope-ops", "10", "--jobs", "1", "--out", tmp_path / "out")
    assert go(monkeypatch, tmp_path / "all", *few) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["composing", "ranks"]
    assert all(line.endswith("divergence none") for line in lines)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"composing.json", "ranks.json"}
    assert json.loads((tmp_path / "out" / "ranks.json").read_text())["cuts"]["checks"] >= 100

    assert go(monkeypatch, tmp_path / "all", *few, "--only", "ranks") == 0
    assert "composing" not in capsys.readouterr().out


def test_a_refusal_and_an_unusable_file_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a", refused_spec())
    (tmp_path / "b").mkdir()
    assert go(monkeypatch, tmp_path, "--jobs", "1") == 1
    told = capsys.readouterr().out
    assert "Refusal: " in told
    assert "UnusableFile: " in told
