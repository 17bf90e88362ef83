"""Shared fixtures. Test data outside the repository comes through one setting, TOKTIER_TEST_DATA."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.groups import pytest_collection_finish, pytest_configure_node, pytest_xdist_make_scheduler
from tests.support.reference import Reference

__all__ = ["pytest_collection_finish", "pytest_configure_node", "pytest_xdist_make_scheduler"]

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("TOKTIER_TEST_DATA", "../shared"))
if not DATA.is_absolute():
    DATA = (ROOT / DATA).resolve()


def data_path(*parts: str) -> Path:
    """A path in the shared test data. Skips the test where it is absent, fails in CI."""
    path = DATA.joinpath(*parts)
    if not path.exists():
        if os.environ.get("CI"):
            pytest.fail(f"test data {'/'.join(parts)} is missing; set TOKTIER_TEST_DATA")
        pytest.skip(f"no test data {'/'.join(parts)}; set TOKTIER_TEST_DATA")
    return path


@pytest.fixture(scope="session")
def reference() -> Iterator[Reference]:
    """The right answers for the shipped tokenizer, from a process of its own. Tests with it are one group."""
    with Reference() as it:
        yield it


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests come first: no process begins a long one when the others have nothing left to do."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """What was collected lives to the end: the cyclic collector is not to look at it again and again."""
    gc.collect()
    gc.freeze()
