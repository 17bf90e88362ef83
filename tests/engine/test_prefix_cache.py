"""What the engine's prefix cache makes of IDs: the same as of text, and never across tenants."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import config
from tests.support.engine import Client, Engine, Proxy, Reply, serving

pytestmark = pytest.mark.engine

BLOCK = 128  # tokens in a block of vLLM's cache on the CPU


def chat(topic: str) -> dict[str, Any]:
    """Some 1,500 tokens that no other test, and no earlier run against the same engine, sends."""
    text = f"{uuid.uuid4()} {topic}: " + " ".join(
        f"{topic} number {number} has a value of {number * 7919}." for number in range(60)
    )
    return {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0}


def cached(reply: Reply) -> int:
    assert reply.status == 200, reply.body
    return int(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] or 0)


def test_ids_after_text_hit_the_cache(engine: Engine, proxy: Proxy):
    body = chat("apple")
    assert cached(engine.post("/v1/chat/completions", body)) == 0
    hits = engine.metric("vllm:prefix_cache_hits_total")
    reply, record = proxy.ask(body, "cache-ids-after-text")
    assert record["bypass"] is None
    tokens = reply.json()["usage"]["prompt_tokens"]
    assert cached(reply) >= tokens - 2 * BLOCK > 0
    assert engine.metric("vllm:prefix_cache_hits_total") - hits == cached(reply)


def test_text_after_ids_hits_the_cache(engine: Engine, proxy: Proxy):
    body = chat("pear")
    reply, record = proxy.ask(body, "cache-text-after-ids")
    assert record["bypass"] is None
    assert cached(reply) == 0
    assert cached(engine.post("/v1/chat/completions", body)) > 0


def test_an_append_reuses_the_conversation(proxy: Proxy):
    body = chat("plum")
    first, _ = proxy.ask(body, "cache-append-1")
    more = [{"role": "assistant", "content": "Noted."}, {"role": "user", "content": "And the last one?"}]
    reply, record = proxy.ask(body | {"messages": body["messages"] + more}, "cache-append-2")
    assert record["path"] == "append"
    assert cached(reply) >= first.json()["usage"]["prompt_tokens"] - 2 * BLOCK > 0


@pytest.fixture(scope="module")
def salted(engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """As TokTier comes: a salt for each tenant; here a tenant is a client credential."""
    folder: Path = tmp_path_factory.mktemp("salted")
    with serving(folder, config(engine, f'mode = "passthrough"\nstate_dir = "{folder}"')) as running:
        yield running


def tenant(proxy: Proxy, key: str) -> Client:
    return Client(proxy.url, {"authorization": f"Bearer {key}"})


def test_tenants_do_not_share_the_cache(engine: Engine, salted: Proxy):
    body = chat("cherry")
    ann, bob = tenant(salted, "ann-key"), tenant(salted, "bob-key")
    assert cached(ann.post("/v1/chat/completions", body)) == 0
    assert cached(bob.post("/v1/chat/completions", body)) == 0
    assert cached(ann.post("/v1/chat/completions", body)) > 0
    assert cached(bob.post("/v1/chat/completions", body)) > 0
    assert cached(engine.post("/v1/chat/completions", body)) == 0


def test_a_clients_own_salt_does_not_reach_another_tenants_cache(salted: Proxy):
    body = chat("grape") | {"cache_salt": "shared"}
    ann, bob = tenant(salted, "ann-key"), tenant(salted, "bob-key")
    assert cached(ann.post("/v1/chat/completions", body)) == 0
    assert cached(bob.post("/v1/chat/completions", body)) == 0
    assert cached(ann.post("/v1/chat/completions", body | {"cache_salt": "other"})) == 0
    assert cached(ann.post("/v1/chat/completions", body)) > 0


def test_a_bypassed_request_shares_its_tenants_cache(salted: Proxy):
    body = chat("melon")
    ann = tenant(salted, "ann-key")
    assert cached(ann.post("/v1/chat/completions", body)) == 0
    ann.headers["x-request-id"] = "cache-bypassed"
    reply = ann.post("/v1/chat/completions", body | {"media_io_kwargs": {}})
    assert salted.record("cache-bypassed")["bypass"] == "multimodal"
    assert cached(reply) > 0
