from __future__ import annotations

import pytest

from tests.support import folding_cases, folding_state_cases
from tests.support.folding import run, unfoldable
from tests.support.folding_case import Case


@pytest.mark.parametrize("case", [*folding_cases.CASES, *folding_state_cases.CASES], ids=lambda case: case.name)
def test_every_trap(case: Case) -> None:
    seen = run(case.source, case.requests)
    assert not seen.mismatches
    if case.unfolds is not None:
        assert unfoldable(case.source).reason is case.unfolds
    elif case.fallback is not None:
        assert case.fallback in seen.fallbacks
    else:
        assert seen.iterations
        assert set(seen.fallbacks) == {None}
    if case.iterations is not None:
        assert seen.iterations[-1] <= case.iterations
