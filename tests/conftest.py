"""Shared fixtures. Test data outside the repository comes through one setting, TOKTIER_TEST_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

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
