"""What a session keeps of a body: what it counts, what it does without, and when it is given back."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from typing import Any

import pytest

from proxy.ingest import Ingest
from tests.support.tiers import maker
from toktier.json_pieces import JsonLimits
from toktier.known import MOST_CONTAINERS
from toktier.sessions import SessionStore
from toktier.tier import ModelTier

LIMITS = JsonLimits()
MESSAGES = [{"role": "user", "content": "hello"}, {"role": "user", "content": "y" * 3000}]


@pytest.fixture
def store() -> SessionStore:
    return SessionStore(1 << 30)


@pytest.fixture
def tier(store: SessionStore) -> ModelTier:
    return maker()(store=store)


def serve(tier: ModelTier, store: SessionStore, body: dict[str, Any]) -> Ingest:
    raw = json.dumps({"model": "m", **body}, separators=(",", ":")).encode()
    ingest = Ingest(raw, LIMITS, store, "t")
    parsed = ingest.beside() or ingest.whole()
    assert parsed.value == json.loads(raw)
    tier.prepare("t", parsed.outline, source=ingest.source(parsed))
    return ingest


@pytest.mark.parametrize(
    "more",
    [
        {"metadata": [{}] * 20_000},
        {"chat_template_kwargs": {"z": [[]] * 20_000}},
        {"user": "u" * 100_000},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"x": [{}] * 20_000}}}]},
        {f"x{n}": [[]] for n in range(5_000)},
        {"\U0001f98a" + "n" * 1_000_000: 1},
    ],
    ids=lambda more: next(iter(more))[:20],
)
def test_what_is_kept_is_counted(tier: ModelTier, store: SessionStore, more: dict[str, Any]) -> None:
    serve(tier, store, {"messages": MESSAGES})
    store.clear()
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(3):
            serve(tier, store, {"messages": [{"role": "user", "content": str(number)}, *MESSAGES], **more})
        gc.collect()
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(store) == 3
    assert held < 1.3 * store.nbytes


def test_what_is_not_kept_is_read_again(tier: ModelTier, store: SessionStore) -> None:
    more = {"metadata": [{"a": 1.0}] * 2_000, "user": "u"}
    serve(tier, store, {"messages": MESSAGES, **more})
    answer = {"role": "assistant", "content": "an answer"}
    ingest = serve(tier, store, {"messages": [*MESSAGES, answer, MESSAGES[0]], **more})
    assert ingest.is_likely
    parsed = ingest.beside()
    assert parsed is not None
    assert parsed.shared
    assert parsed.outline["metadata"] == more["metadata"]


def test_too_many_objects_are_not_kept(tier: ModelTier, store: SessionStore) -> None:
    """They would be freed in one piece."""
    for count, kept in ((100, True), (MOST_CONTAINERS, False)):
        store.clear()
        function = {"name": "f", "arguments": json.dumps({"x": [[]] * count})}
        message = {"role": "assistant", "tool_calls": [{"id": "i", "type": "function", "function": function}]}
        ingest = serve(tier, store, {"messages": [message, *MESSAGES]})
        assert bool(store.sources(ingest.source(ingest.whole()).keys)) == kept  # type: ignore[union-attr]
        (session,) = store._all
        assert (session.memory.fold is not None) == kept
        serve(tier, store, {"messages": [message, *MESSAGES, message]})


def test_a_dropped_body_is_given_back_by_who_may_wait(tier: ModelTier, store: SessionStore) -> None:
    serve(tier, store, {"messages": MESSAGES})
    (session,) = store._all
    source = session.memory.source
    assert source is not None
    held = sys.getrefcount(source)
    with store._lock:
        store._drop(session)
    assert sys.getrefcount(source) == held
    store.expire()
    assert sys.getrefcount(source) == held - 1
