"""The simulator's reference against the real engine: what it calls right is what vLLM renders."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from proxy.embedded_check import Reference
from tests.support.engine import Engine
from tools.traces import generate

pytestmark = pytest.mark.engine


def test_the_simulators_reference_is_the_engines(engine: Engine) -> None:
    reference = Reference(Path(str(files("toktier").joinpath("data", "qwen3"))))
    compared = 0
    for conversation in generate(seed=11, n=30):
        for step in (conversation.steps[0], conversation.steps[-1]):
            body = {**step.body, "model": "tiny"}
            assert reference.chat(body) == engine.render(body), (conversation.id, step.kind)
            compared += 1
    assert compared == 60
