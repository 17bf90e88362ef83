from __future__ import annotations

import pytest

from tests.support.cuda import Cuda
from toktier.gpu import launcher


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    """A driver of which the launcher asks for graphs and copies."""
    it = Cuda()
    monkeypatch.setattr(launcher, "capture", it.capture)
    monkeypatch.setattr(launcher, "call", it.call)
    return it
