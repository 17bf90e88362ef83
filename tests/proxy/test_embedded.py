"""The embedded engine against the official client and raw HTTP: vLLM's contract, and its own honesty as a checker."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from proxy.embedded import EmbeddedEngine, run
from proxy.embedded_script import Call, Failure, Script, Turn

TOOL = {
    "type": "function",
    "function": {"name": "read", "description": "Read a file", "parameters": {"type": "object", "properties": {}}},
}
USER = {"role": "user", "content": "Read a.py, please."}
ARGUMENTS = '{"path":  "a.py", "über": [1, 2.50]}'
SCRIPT = {
    "turns": [
        {
            "text": "Let me see.",
            "reasoning": "A file.\nRead it.",
            "tool_calls": [{"name": "read", "arguments": ARGUMENTS}],
        },
        {"text": "Done: it is empty."},
        {"when": "MAKE A TITLE", "text": "Reading a.py"},
    ]
}


pytestmark = pytest.mark.xdist_group("embedded")  # most share one engine


@pytest.fixture(scope="module")
def engine_loop() -> Any:
    """One loop for the module: the engine lives on it, so that its reference process starts once."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def shared(engine_loop: asyncio.AbstractEventLoop) -> Any:
    """The engine, on a thread of its own."""
    engine = EmbeddedEngine(script=Script.model_validate(SCRIPT), max_model_len=5000)
    thread = threading.Thread(target=engine_loop.run_forever)
    thread.start()
    asyncio.run_coroutine_threadsafe(engine.__aenter__(), engine_loop).result(60)
    yield engine
    asyncio.run_coroutine_threadsafe(engine.__aexit__(), engine_loop).result(60)
    engine_loop.call_soon_threadsafe(engine_loop.stop)
    thread.join()


@pytest.fixture
def engine(shared: EmbeddedEngine) -> EmbeddedEngine:
    """The shared engine with its script as new."""
    shared.script = Script.model_validate(SCRIPT)
    return shared


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
def client(engine: EmbeddedEngine) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{engine.url}/v1", api_key="none", max_retries=0)


async def post(http: aiohttp.ClientSession, engine: EmbeddedEngine, body: dict[str, Any], **headers: str) -> Any:
    body = {"model": engine.model, **body}
    async with http.post(f"{engine.url}/v1/chat/completions", json=body, headers=headers) as response:
        return response.status, await response.json()


async def tokenize(http: aiohttp.ClientSession, engine: EmbeddedEngine, body: dict[str, Any]) -> list[int]:
    async with http.post(f"{engine.url}/tokenize", json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
        assert answer["count"] == len(answer["tokens"])
        return answer["tokens"]


async def verdict(http: aiohttp.ClientSession, engine: EmbeddedEngine, request_id: str) -> dict[str, Any]:
    async with http.get(f"{engine.url}/simulator/verdicts", params={"request_id": request_id}) as response:
        found = (await response.json())["verdicts"]
        assert len(found) == 1
        return found[0]


def with_ids(ids: Any, **body: Any) -> dict[str, Any]:
    return {"messages": [USER], "kv_transfer_params": {"prompt_token_ids": ids}, **body}


async def test_it_calls_itself_a_simulator(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    async with http.get(f"{engine.url}/version") as response:
        version = await response.json()
    assert version["version"] == "0.32.0"
    assert version["engine"] == "toktier-simulator"
    async with http.get(f"{engine.url}/v1/models") as response:
        (card,) = (await response.json())["data"]
    assert (card["id"], card["owned_by"]) == (engine.model, "toktier-simulator")
    async with http.get(f"{engine.url}/health") as response:
        assert (response.status, await response.read()) == (200, b"")


async def test_whole_reply_with_tools_and_reasoning(client: openai.AsyncOpenAI, engine: EmbeddedEngine) -> None:
    reply = await client.chat.completions.create(model=engine.model, messages=[USER], tools=[TOOL])
    choice = reply.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "Let me see."
    assert choice.message.model_dump()["reasoning"] == "A file.\nRead it."
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("read", ARGUMENTS)
    assert call.id.startswith("chatcmpl-tool-")
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_stream_tells_the_same_as_the_whole_reply(client: openai.AsyncOpenAI, engine: EmbeddedEngine) -> None:
    asked = {"model": engine.model, "messages": [USER], "tools": [TOOL]}
    whole = await client.chat.completions.create(**asked)
    stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    content, reasoning, arguments, calls, finish, usage = "", "", "", [], None, None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += choice.delta.model_dump().get("reasoning") or ""
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                calls += [(call.id, call.function.name)] if call.id else []
                arguments += call.function.arguments
    message = whole.choices[0].message
    assert (content, reasoning, arguments) == (message.content, message.model_dump()["reasoning"], ARGUMENTS)
    assert calls == [(message.tool_calls[0].id, "read")]
    assert finish == "tool_calls"
    assert usage.model_dump(exclude_none=True) == whole.usage.model_dump(exclude_none=True)


async def test_raw_stream_has_vllms_frame(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    body = {"model": engine.model, "messages": [USER], "stream": True}
    async with http.post(f"{engine.url}/v1/chat/completions", json=body, headers={"X-Request-Id": "frame"}) as response:
        assert response.content_type == "text/event-stream"
        events = (await response.text()).split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-frame"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("usage" not in chunk for chunk in chunks)
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_the_conversation_chooses_the_turn(client: openai.AsyncOpenAI, engine: EmbeddedEngine) -> None:
    async def ask(*messages: Any) -> str | None:
        reply = await client.chat.completions.create(model=engine.model, messages=list(messages), tools=[TOOL])
        return reply.choices[0].message.content

    said = {"role": "assistant", "content": "Let me see."}
    assert await ask(USER, said, USER) == "Done: it is empty."
    assert await ask(USER) == "Let me see."  # a fork: the first turn again
    assert await ask({"role": "system", "content": "Now MAKE A TITLE of it."}, USER, said) == "Reading a.py"
    assert "simulator" in (await ask(USER, said, USER, said, USER) or "")


async def test_exact_ids(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    ids = await tokenize(http, engine, {"messages": [USER], "tools": [TOOL]})
    status, reply = await post(http, engine, with_ids(ids, tools=[TOOL]), **{"X-Request-Id": "exact"})
    assert status == 200
    assert reply["usage"]["prompt_tokens"] == len(ids)
    found = await verdict(http, engine, "exact")
    assert (found["form"], found["exact"], found["reference_tokens"]) == ("ids", True, len(ids))
    assert found["response_id"] == reply["id"] == "chatcmpl-exact"


@pytest.mark.parametrize(
    ("change", "first"),
    [
        (lambda ids: ids[:-1], -1),
        (lambda ids: [*ids, 198], 0),
        (lambda ids: [*ids[:3], 0, *ids[4:]], None),
    ],
)
async def test_wrong_ids_are_told_and_change_no_reply(
    http: aiohttp.ClientSession, engine: EmbeddedEngine, caplog: Any, change: Any, first: int | None
) -> None:
    ids = await tokenize(http, engine, {"messages": [USER]})
    request_id = f"wrong-{first}"
    before = engine.counters["mismatched"]
    right = await post(http, engine, {"messages": [USER]})
    wrong = await post(http, engine, with_ids(change(ids)), **{"X-Request-Id": request_id})
    assert wrong[1]["choices"] == right[1]["choices"]
    found = await verdict(http, engine, request_id)
    assert found["exact"] is False
    assert found["first_difference"] == (3 if first is None else len(ids) + first)
    assert found["same_text"] is False
    assert engine.counters["mismatched"] == before + 1
    assert f"MISMATCH request {request_id}" in caplog.text


async def test_the_same_text_in_other_tokens_is_a_mismatch(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    ids = await tokenize(http, engine, {"messages": [USER]})
    split = [id_ for letter in "Read" for id_ in await tokenize(http, engine, {"prompt": letter})]
    (whole,) = await tokenize(http, engine, {"prompt": "Read"})
    at = ids.index(whole)
    wrong = [*ids[:at], *split, *ids[at + 1 :]]
    await post(http, engine, with_ids(wrong), **{"X-Request-Id": "split"})
    found = await verdict(http, engine, "split")
    assert (found["exact"], found["first_difference"], found["same_text"]) == (False, at, True)


async def test_a_probe_is_no_mismatch(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    before = engine.counters["mismatched"]
    _, reply = await post(http, engine, with_ids([100] * 17, max_tokens=1), **{"X-Request-Id": "probe"})
    assert reply["usage"]["prompt_tokens"] == 17
    assert (await verdict(http, engine, "probe"))["form"] == "probe"
    await post(http, engine, with_ids([100] * 17), **{"X-Request-Id": "constant"})
    assert (await verdict(http, engine, "constant"))["exact"] is False
    assert engine.counters["mismatched"] == before + 1


@pytest.mark.parametrize("ids", [[], [-1], [1.5], ["a"], [True], "abc", 7, [10**6]])
async def test_malformed_ids(http: aiohttp.ClientSession, engine: EmbeddedEngine, ids: Any) -> None:
    status, reply = await post(http, engine, with_ids(ids))
    assert status == 400
    assert reply["error"]["param"] == "kv_transfer_params.prompt_token_ids"
    assert reply["error"]["code"] == 400


@pytest.mark.parametrize(
    "body",
    [
        {"echo": True},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]},
    ],
)
async def test_ids_are_ignored_with_echo_and_media(
    http: aiohttp.ClientSession, engine: EmbeddedEngine, body: dict[str, Any]
) -> None:
    request_id = f"ignored-{sorted(body)}"
    status, reply = await post(http, engine, {**with_ids([1, 2, 3]), **body}, **{"X-Request-Id": request_id})
    assert status == 200
    assert reply["usage"]["prompt_tokens"] != 3
    found = await verdict(http, engine, request_id)
    assert (found["form"], found["exact"]) == ("ignored", None)


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"messages": None}, 400, "messages"),
        ({"messages": [USER], "model": "other"}, 404, "model"),
        ({"messages": [USER], "tools": []}, 400, "tools"),
        ({"messages": [USER], "tool_choice": "auto"}, 400, "tool_choice"),
        ({"messages": [USER], "stream_options": {"include_usage": True}}, 400, "stream_options"),
        ({"messages": [USER], "chat_template": "x"}, 400, None),
        ({"messages": [USER], "cache_salt": ""}, 400, "cache_salt"),
        ({"messages": [{"role": "user", "content": None}]}, 400, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, 400, "type"),
        ({"messages": [{"role": "user", "content": "word " * 6000}]}, 400, None),
        ({"messages": ["text"]}, 400, "messages"),
        ({"messages": []}, 400, None),
    ],
)
async def test_refusals(
    http: aiohttp.ClientSession, engine: EmbeddedEngine, body: dict[str, Any], status: int, param: str | None
) -> None:
    got, reply = await post(http, engine, body)
    assert (got, reply["error"]["param"]) == (status, param)


async def test_body_that_is_not_json(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    async with http.post(f"{engine.url}/v1/chat/completions", data=b"{") as response:
        assert response.status == 400
    async with http.get(f"{engine.url}/v1/nothing") as response:
        assert (response.status, (await response.json())["error"]["code"]) == (404, 404)


async def test_limits_count_pieces(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    _, reply = await post(http, engine, {"messages": [USER], "max_tokens": 1, "n": 2, "include_reasoning": False})
    assert [choice["message"]["content"] for choice in reply["choices"]] == ["Let", "Let"]
    assert reply["choices"][0]["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("n", [0, -1, 1.5, True, "x", [2], {"a": 1}, 10**30])
async def test_a_wrong_number_of_choices_is_400(http: aiohttp.ClientSession, engine: EmbeddedEngine, n: Any) -> None:
    status, reply = await post(http, engine, {"messages": [USER], "n": n})
    assert (status, reply["error"]["param"]) == (400, "n")


async def test_prompt_ids_are_echoed_on_request(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    ids = await tokenize(http, engine, {"messages": [USER]})
    _, reply = await post(http, engine, {"messages": [USER], "return_token_ids": True})
    assert reply["prompt_token_ids"] == ids


async def test_scripted_failures_come_first_and_once(http: aiohttp.ClientSession, engine: EmbeddedEngine) -> None:
    engine.script.turns[0] = Turn(
        text="one two three", failures=[Failure(status=503, headers={"Retry-After": "1"}), Failure(cut_after=2)]
    )
    status, _ = await post(http, engine, with_ids([100] * 3, max_tokens=1))
    assert status == 200  # an engine's probe uses none of them up
    body = {"model": engine.model, "messages": [USER], "stream": True}
    url = f"{engine.url}/v1/chat/completions"
    async with http.post(url, json=body) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "1")
    async with http.post(url, json=body) as response:
        with pytest.raises(aiohttp.ClientError):
            await response.read()
    async with http.post(url, json=body) as response:
        assert (await response.text()).endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_is_noticed(
    http: aiohttp.ClientSession, engine: EmbeddedEngine, stream: bool
) -> None:
    engine.script.turns[0] = Turn(text="word " * 50, piece_delay_s=0.2)
    before = engine.counters["client_gone"]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consume(http, engine, stream), 0.4)
    for _ in range(50):
        if engine.counters["client_gone"] > before:
            return
        await asyncio.sleep(0.1)
    pytest.fail("the engine did not notice that the client left")


async def consume(http: aiohttp.ClientSession, engine: EmbeddedEngine, stream: bool) -> None:
    body = {"model": engine.model, "messages": [USER], "stream": stream}
    async with http.post(f"{engine.url}/v1/chat/completions", json=body) as response:
        await response.read()


async def test_a_script_names_the_place_of_a_mistake(tmp_path: Any) -> None:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"turns": [{"text": "a"}, {"txt": "b"}]}))
    with pytest.raises(ValueError, match=r"turns\.1\.txt"):
        Script.load(path)
    path.write_text(json.dumps({"turns": [{"tool_calls": [{"name": "f", "arguments": "{"}]}]}))
    assert Script.load(path).turns[0].tool_calls == [Call(name="f", arguments="{")]


async def test_the_command_listens_and_ends_its_reference_process() -> None:
    program = "from proxy.embedded import run; run(port=0)"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    line = json.loads(await asyncio.wait_for(process.stdout.readline(), 60))
    assert (line["event"], line["engine"]) == ("listening", "toktier-simulator")
    process.terminate()
    _, log = await asyncio.wait_for(process.communicate(), 30)  # its pipes close only when its children are gone too
    assert process.returncode == 0, log


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"turn": []}')
    with pytest.raises(SystemExit, match=r"toktier embedded: .*\n.*turn"):
        run(port=0, script=script)
    with pytest.raises(SystemExit, match=r"toktier embedded: .*No such file"):
        run(port=0, script=tmp_path / "missing.json")
