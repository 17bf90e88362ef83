"""The IDs of 300 generated conversations, request by request, against the engine's own.

Two references for every request: `/v1/chat/completions/render`, which runs the chat route's own code, and `/tokenize`.
Full lists are compared. The tier keeps its sessions over the whole run, so most requests are answered by a splice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.engine import Engine
from toktier.profiles.base import ProfileSettings
from toktier.profiles.vllm import VllmProfile
from toktier.reasons import Path
from toktier.sessions import SessionStore
from toktier.template import ChatTemplate
from toktier.tier import ModelTier
from toktier.tokenizer import embedded
from tools.traces import Conversation, generate

SEED, N, BLOCK = 20261130, 300, 25


@pytest.fixture(scope="module")
def tier() -> ModelTier:
    tokenizer = embedded()
    template = ChatTemplate.load(tokenizer)
    return ModelTier("tiny", tokenizer, template, VllmProfile(), ProfileSettings(), SessionStore(budget_bytes=1 << 30))


@pytest.fixture(scope="module")
def paths() -> Counter[tuple[str, Path]]:
    """How often a kind of step was answered how, over all blocks."""
    return Counter()


def block(number: int) -> Iterator[Conversation]:
    wanted = range(number * BLOCK, (number + 1) * BLOCK)
    return (conversation for index, conversation in enumerate(generate(SEED, N)) if index in wanted)


@pytest.mark.engine
@pytest.mark.parametrize("number", range(N // BLOCK))
def test_ids_equal_the_engines_own(engine: Engine, tier: ModelTier, paths: Counter[tuple[str, Path]], number: int):
    other = Engine(engine.url)
    with ThreadPoolExecutor(2) as pool:
        for conversation in block(number):
            for index, step in enumerate(conversation.steps):
                rendered = pool.submit(engine.render, step.body)
                tokenized = pool.submit(other.tokenize, step.body)
                prepared = tier.prepare("tenant", step.body, conversation.id)
                paths[step.kind, prepared.path] += 1
                where = f"{conversation.id}, request {index} ({conversation.client}, {step.kind})"
                expect(prepared.ids.tolist(), rendered.result(), f"render: {where}")
                expect(prepared.ids.tolist(), tokenized.result(), f"tokenize: {where}")


def expect(ours: list[int], theirs: list[int], where: str) -> None:
    """Equal lists, or a failure that names the first difference instead of printing both."""
    if ours == theirs:
        return
    pairs = zip(ours, theirs, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
    pytest.fail(f"{where}: token {at} of {len(ours)} and {len(theirs)}: {ours[at : at + 8]} {theirs[at : at + 8]}")


@pytest.mark.engine
def test_most_requests_were_repaired_not_encoded_anew(engine: Engine, paths: Counter[tuple[str, Path]]):
    """Runs after the blocks above: exactness must not come from full encodes."""
    if sum(paths.values()) < sum(len(conversation.steps) for conversation in generate(SEED, N)):
        pytest.skip("needs all blocks in this process")
    appends = {path: count for (kind, path), count in paths.items() if kind == "append"}
    assert appends[Path.APPEND] >= 0.9 * sum(appends.values()), appends
    retries = {path: count for (kind, path), count in paths.items() if kind == "retry"}
    assert set(retries) == {Path.RETRY}
    assert min(paths["edit", Path.EDIT], paths["tools", Path.EDIT]) > 0
    repaired = sum(count for (_, path), count in paths.items() if path != Path.INIT)
    assert repaired >= 0.85 * sum(paths.values()), paths


def test_the_conversations_are_as_many_and_as_varied_as_they_should_be():
    counts = Counter(feature for conversation in generate(SEED, N) for feature in conversation.features)
    for feature in ("tools", "parallel", "reasoning", "parts", "odd_arguments", "mid_system", "non_ascii"):
        assert counts[feature] >= 60, (feature, counts)
    assert counts["long"] >= 20
