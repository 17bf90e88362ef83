"""Through the real proxy: what the engine says it was prompted with, and what is said to a client in error."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.engine import Engine, Proxy
from tools.engine.model import CONTEXT
from tools.traces import generate

pytestmark = pytest.mark.engine

SEED, N = 43, 40


def test_the_engine_is_prompted_with_what_it_would_have_rendered(engine: Engine, proxy: Proxy):
    """Whole conversations. `return_token_ids` makes vLLM echo the prompt; the log tells whether IDs went out."""
    requests = repaired = 0
    for conversation in generate(SEED, N, long=3):
        for index, step in enumerate(conversation.steps):
            body = {key: value for key, value in step.body.items() if key != "max_completion_tokens"}
            asked = body | {"max_tokens": 1, "temperature": 0, "return_token_ids": True}
            reply, record = proxy.ask(asked, f"{conversation.id}-{index}")
            assert reply.status == 200, reply.body
            echoed = reply.events()[0]["prompt_token_ids"] if body.get("stream") else reply.json()["prompt_token_ids"]
            assert echoed == engine.render(step.body), (conversation.id, index)
            assert record["bypass"] is None, (conversation.id, index, record["bypass"])
            assert record["tokens"] == len(echoed)
            assert record["prompt_tokens_equal"] is not False
            requests += 1
            repaired += record["path"] in ("append", "retry", "edit", "compaction")
    assert requests > 5 * N
    assert repaired >= 0.85 * requests


CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


@pytest.mark.parametrize(
    "smuggled",
    [
        {"kv_transfer_params": {"prompt_token_ids": [1, 2, 3]}},
        {"prompt_token_ids": [1, 2, 3]},
        {"input_ids": [1, 2, 3]},
    ],
    ids=lambda field: next(iter(field)),
)
def test_ids_from_a_client_are_refused(proxy: Proxy, smuggled: dict[str, Any]):
    reply = proxy.post("/v1/chat/completions", CHAT | smuggled)
    assert reply.status == 400
    assert next(iter(smuggled)) in reply.json()["error"]["message"]


def test_a_prompt_that_is_too_long_is_the_engines_400(proxy: Proxy):
    body = CHAT | {"messages": [{"role": "user", "content": "x 1" * CONTEXT}]}
    reply, record = proxy.ask(body, "too-long")
    assert reply.status == 400
    assert f"maximum context length ({CONTEXT})" in reply.json()["error"]["message"]
    assert record["upstream_status"] == 400
    assert record["bypass"] is None


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1}, {"messages": "hello"}, {"messages": [{"role": "user", "content": 5}]}, {"max_tokens": -3}],
    ids=lambda field: f"{next(iter(field))}",
)
def test_the_engines_refusals_reach_the_client_unchanged(engine: Engine, proxy: Proxy, wrong: dict[str, Any]):
    past = engine.post("/v1/chat/completions", CHAT | wrong)
    through = proxy.post("/v1/chat/completions", CHAT | wrong)
    assert past.status >= 400
    assert (through.status, through.json()) == (past.status, past.json())


@pytest.mark.parametrize(
    "bypassed",
    [
        {"echo": True, "add_generation_prompt": False},
        {"add_generation_prompt": False},
        {"continue_final_message": True, "add_generation_prompt": False},
        {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"},
        {"truncate_prompt_tokens": 4},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_bypassed_requests_are_the_engines_own(engine: Engine, proxy: Proxy, bypassed: dict[str, Any]):
    messages = [*CHAT["messages"], {"role": "assistant", "content": "Well, one"}]
    body = CHAT | {"messages": messages, "max_tokens": 6, "temperature": 0, "return_token_ids": True} | bypassed
    past = engine.post("/v1/chat/completions", body)
    through, record = proxy.ask(body, f"bypassed-{'-'.join(bypassed)}")
    assert record["path"] == "bypass"
    assert through.status == past.status
    if past.status == 200:
        for key in ("prompt_token_ids", "choices"):
            assert through.json()[key] == past.json()[key]


def test_a_template_that_cannot_render_is_the_engines_error(engine: Engine, proxy: Proxy):
    """An unknown role has no place in some templates; whatever the engine says, it says through the proxy too."""
    for messages in ([], [{"role": "assistant", "content": None}], [{"role": "martian", "content": "hello"}]):
        past = engine.post("/v1/chat/completions", CHAT | {"messages": messages, "temperature": 0})
        through = proxy.post("/v1/chat/completions", CHAT | {"messages": messages, "temperature": 0})
        assert through.status == past.status, messages
        if past.status != 200:
            assert through.json() == past.json()


def test_other_routes_are_forwarded(engine: Engine, proxy: Proxy):
    assert proxy.get("/v1/models").json()["data"][0]["id"] == "tiny"
    asked = {"model": "tiny", "prompt": "1 2 3", "max_tokens": 3, "temperature": 0}
    past, through = engine.post("/v1/completions", asked), proxy.post("/v1/completions", asked)
    assert through.json()["choices"] == past.json()["choices"]
    body = {"model": "tiny", "messages": CHAT["messages"]}
    assert proxy.post("/tokenize", body).json()["tokens"] == engine.tokenize(body)
    assert proxy.post("/reset_prefix_cache", {}).status == 404
