from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.proxy import Stage, staged


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """A proxy with the settings of `tests.support.proxy.settings_for`, before an honest engine."""
    async with staged(tmp_path) as it:
        yield it
