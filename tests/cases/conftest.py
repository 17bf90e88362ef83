from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conftest import data_path

pytest.register_assert_rewrite("tests.support.case_checks")


@pytest.fixture
def case(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The given case that `tests.support.cases.plays` names."""
    lines = data_path("cases", "cases.jsonl").read_text("utf-8").splitlines()
    (found,) = [case for case in map(json.loads, lines) if case["id"] == request.param]
    return dict(found)
