"""`--dist loadgroup` of pytest-xdist by hooks alone: tests with one ``xdist_group`` run in one process, one by one.

xdist 3.8 writes the group into a test's node ID in a way that pytest 9.2 does not know any more: every test went
anywhere, and each process loaded each real tokenizer, most of them again and again. Here the processes that run tests
leave the groups in a file, and the scheduler reads them from it.
"""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

_FOLDER = pytest.StashKey[TemporaryDirectory[str]]()
_INPUT = "toktier_groups"


def _folder(config: pytest.Config) -> str:
    """Where the groups are left; it goes with this process."""
    if _FOLDER not in config.stash:
        config.stash[_FOLDER] = TemporaryDirectory(prefix="toktier-groups-")
    return config.stash[_FOLDER].name


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Hands out groups, those of most tests first, then single tests in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: Any, folder: Path) -> None:
        super().__init__(config, log)
        self._folder = folder

    @cached_property
    def _groups(self) -> dict[str, str]:
        found: dict[str, str] = json.loads(next(self._folder.glob("*.json")).read_text("utf-8"))
        return found

    def _split_scope(self, nodeid: str) -> str:
        return self._groups.get(nodeid, nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In the process that schedules, for each that runs tests: where that one leaves its groups."""
    node.workerinput[_INPUT] = _folder(node.config)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish(session: pytest.Session) -> None:
    """In a process that runs tests, before xdist reports what was collected."""
    given = getattr(session.config, "workerinput", None)
    if given is not None and _INPUT in given:
        marks = {item.nodeid: item.get_closest_marker("xdist_group") for item in session.items}
        groups = {nodeid: str(mark.args[0]) for nodeid, mark in marks.items() if mark is not None}
        Path(given[_INPUT], f"{given['workerid']}.json").write_text(json.dumps(groups), "utf-8")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling | None:
    if config.getoption("dist") != "loadgroup":
        return None
    return GroupScheduling(config, log, Path(_folder(config)))
