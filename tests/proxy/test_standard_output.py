"""Standard output that takes no more, as a user's shell makes it, for the real command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from proxy.standard_output import UNWRITTEN
from tests.conftest import ROOT
from tools import audit_sample

FULL = "toktier: standard output cannot be written: no space left on device\n"
CLOSED = "toktier: standard output cannot be written: it is closed\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    it: Path = tmp_path_factory.mktemp("output")
    lines = [orjson.dumps(one) for one in audit_sample.lines(requests=50)]
    (it / "log").write_bytes(b"\n".join(lines))
    (it / "t.jinja").write_text("{{ messages }}")
    (it / "c.toml").write_text(f'[auth]\nstate_dir = "{it / "state"}"\n')
    return it


def run(folder: Path, shell: str) -> tuple[int, str]:
    """Exit code of ``toktier``, standing in ``shell`` as $T, and what it says on standard error."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TOKTIER_")}
    env |= {"T": f"{sys.executable} -m proxy.cli", "D": str(folder), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-c", shell],
        env=env,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "--version",
        "--help",
        "audit $D/log",
        "audit $D/log --json",
        "quarantine list --config $D/c.toml",
        "template $D/t.jinja",
        "check --upstream http://h --model m",
    ],
)
def test_a_full_disk(folder: Path, command: str) -> None:
    assert run(folder, f"$T {command} > /dev/full") == (UNWRITTEN, FULL)


def test_a_reader_that_has_gone(folder: Path) -> None:
    gone = "exec 3> >(true); wait $!; $T audit $D/log >&3"
    assert run(folder, gone) == (UNWRITTEN, "")
    assert run(folder, "$T audit $D/log --json | head -c 1 > /dev/null; exit ${PIPESTATUS[0]}")[1] == ""


def test_a_closed_one(folder: Path) -> None:
    assert run(folder, "$T audit $D/log >&-") == (UNWRITTEN, CLOSED)
    assert run(folder, "$T audit $D/log >&- 2>&-") == (UNWRITTEN, "")


def test_what_can_be_written_is(folder: Path) -> None:
    out = folder / "out"
    assert run(folder, f"$T audit $D/log --json > {out}") == (0, "")
    assert orjson.loads(out.read_bytes())["exit_code"] == 0
    assert run(folder, f"PYTHONIOENCODING=ascii $T audit $D/log > {out}") == (0, "")
    assert "requests" in out.read_text()
