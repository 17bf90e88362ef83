"""The digest of the source: every module of the package counts, by name and content."""

from __future__ import annotations

from pathlib import Path

import pytest

from toktier.certificate import source


def digest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(source, "__file__", str(folder / "source.py"))
    source.derivation.cache_clear()
    try:
        return source.derivation()
    finally:
        source.derivation.cache_clear()


def test_every_change_of_a_module_is_another_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = [digest(tmp_path, monkeypatch)]
    (tmp_path / "rule.py").write_text("a")
    seen.append(digest(tmp_path, monkeypatch))
    (tmp_path / "rule.py").write_text("b")
    seen.append(digest(tmp_path, monkeypatch))
    (tmp_path / "rule.py").rename(tmp_path / "other.py")
    seen.append(digest(tmp_path, monkeypatch))
    assert len(set(seen)) == 4
    assert digest(tmp_path, monkeypatch) == seen[-1]
