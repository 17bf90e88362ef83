"""Tests of one group run in one process, whatever pytest and pytest-xdist make of node IDs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from tests.conftest import ROOT

HOOKS = "from tests.support.groups import pytest_collection_finish, pytest_configure_node, pytest_xdist_make_scheduler"
TESTS = """
import os, time
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", [pytest.param(n, marks=pytest.mark.xdist_group("ab"[n % 2])) for n in range(8)])
def test_one(n):
    time.sleep(0.05)
    Path("ran", "{}-{}-{}".format("ab"[n % 2], n, os.environ["PYTEST_XDIST_WORKER"])).touch()
"""


def test_a_group_runs_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{HOOKS}\n")
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "ran").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "xdist", "-p", "no:cacheprovider", "-n", "2", "--dist", "loadgroup"],
        cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    processes = defaultdict(set)
    for name in sorted(path.name for path in (tmp_path / "ran").iterdir()):
        group, _, process = name.split("-")
        processes[group].add(process)
    assert {group: len(those) for group, those in processes.items()} == {"a": 1, "b": 1}
    assert len(list((tmp_path / "ran").iterdir())) == 8
    assert processes["a"] != processes["b"]
