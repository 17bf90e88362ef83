"""The templates of real models, wherever this machine has some."""

from __future__ import annotations

import pytest

from tools.folding.corpus import corpus
from tools.folding.differential import run

SOURCES = corpus()
NOT_FOLDED: frozenset[str] = frozenset()
"""By name. Every other template that is found must fold."""


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_random_sessions_render_as_in_full(name: str) -> None:
    if name in NOT_FOLDED:
        with pytest.raises(ValueError, match=":"):
            run(name, SOURCES[name], 1, 1)
        return
    report = run(name, SOURCES[name], 150, 7)
    assert report.mismatches == 0, report.example
    assert report.outputs > 20
    assert not report.fallbacks


def test_the_models_own_template_is_found() -> None:
    assert "embedded" in SOURCES
