"""What parity sampling rests on: where `proxy.parity_sampling.comparable` says so, the engine's `/tokenize` of the
question that TokTier asks has the IDs that its chat route renders, for ordinary requests and for odd ones.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from proxy import config, jsonspan
from proxy.metrics import Metrics
from proxy.parity_sampling import ParitySampling
from proxy.sent import Room
from tests.engine.test_odd_requests import change
from tests.support.engine import Engine
from toktier.errors import InvalidText, Unrenderable
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.sessions import SessionStore
from toktier.template import ChatTemplate
from toktier.tier import ModelTier
from toktier.tokenizer import embedded
from tools.traces import generate

pytestmark = pytest.mark.engine

SEED, N, EACH = 41, 40, 8


@pytest.fixture(scope="module")
def tier() -> ModelTier:
    tokenizer = embedded()
    template = ChatTemplate.load(tokenizer)
    assert template is not None
    settings = ProfileSettings(engine_version="0.32.0")
    return ModelTier("tiny", tokenizer, template, VllmProfile(), settings, SessionStore(budget_bytes=1 << 30))


def bodies() -> list[dict[str, Any]]:
    found = []
    for conversation in generate(SEED, N, long=0):
        rng = Random(conversation.id)
        for number in range(EACH):
            body = copy.deepcopy(rng.choice(conversation.steps[:6]).body)
            for _ in range(number % 3):
                change(rng, body)
            found.append(body)
    return found


def test_tokenize_renders_what_chat_renders(engine: Engine, tier: ModelTier) -> None:
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    with ThreadPoolExecutor(1) as executor:
        sampling = ParitySampling(executor, Metrics(), Room(1 << 20), lambda *_: None)
        upstream = SimpleNamespace(name="e", settings=config.Upstream(url=engine.url))
        settings = config.Model(upstream="e", tokenizer="embedded")
        model: Any = SimpleNamespace(name="m", settings=settings, upstream=upstream)
        for body in bodies():
            try:
                ids = tier.prepare("tenant", body).ids
            except (Unrenderable, InvalidText):
                outcomes["bypass"] += 1
                continue
            question = sampling.question(model, jsonspan.parse(json.dumps(body).encode()), ids, "r", 1.0)
            if question is None:
                outcomes["not comparable"] += 1
                continue
            reply = engine.post("/tokenize", json.loads(question.body))
            if reply.status != 200:
                outcomes[f"refused with {reply.status}"] += 1
            elif reply.json()["tokens"] == ids.tolist():
                outcomes["equal"] += 1
            else:
                wrong.append(question.body.decode()[:2000])
    assert not wrong, "\n".join(wrong)
    assert outcomes["equal"] >= 0.3 * N * EACH, outcomes
    assert outcomes["not comparable"] > 0, outcomes
    assert {name for name in outcomes if name.startswith("refused")} <= {"refused with 400"}, outcomes
