"""Environments of other packages: made once, made again when they should be others, or not at all and why."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.bench import environments


def test_environments_are_made_once_and_say_why_they_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(environments.PINNED, "gigatoken", (str(tmp_path / "absent"),))
    with pytest.raises(environments.CannotBuild, match="pip"):
        environments.python_of("gigatoken", tmp_path)
    calls: list[list[str]] = []

    def call(command: list[str]) -> None:
        calls.append(command)
        (tmp_path / "minijinja-3.1.0" / "bin").mkdir(parents=True, exist_ok=True)

    monkeypatch.setattr(environments, "_call", call)
    python = environments.python_of("minijinja", tmp_path)
    assert python == tmp_path / "minijinja-3.1.0" / "bin" / "python"
    assert "minijinja==3.1.0" in calls[-1]
    made = len(calls)
    assert environments.python_of("minijinja", tmp_path, build=False) == python
    monkeypatch.setitem(environments.PINNED, "minijinja", ("minijinja==3.1.0", "numpy"))
    with pytest.raises(environments.CannotBuild):
        environments.python_of("minijinja", tmp_path, build=False)
    environments.python_of("minijinja", tmp_path)
    assert len(calls) > made
