"""The way back: byte equality, early ends, slow clients, and the observer beside it."""

from __future__ import annotations

import asyncio
import gzip
import json
import resource
import socket
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import relay
from proxy.observers import JsonObserver, SseObserver
from tests.support.fake_tier import ids_of
from tests.support.fake_upstream import FakeUpstream
from tests.support.observed import STREAM, observed
from tests.support.proxy import Stage, staged

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "q"}], "stream": True}


async def test_stream_is_relayed_byte_for_byte_as_it_comes(stage: Stage) -> None:
    pieces = [STREAM[i : i + 17] for i in range(0, len(STREAM), 17)]
    script: list[dict[str, Any]] = []
    for piece in pieces:
        script += [{"send_hex": piece.hex()}, {"sleep_ms": 3}]
    stage.up.scripts.append(script)
    got = []
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=BODY) as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        assert "Server" not in reply.headers
        async for chunk, _ in reply.content.iter_chunks():
            got.append(chunk)
    assert b"".join(got) == STREAM
    assert len(got) > len(pieces) // 2
    line = (await stage.proxy.logged(1))[0]
    assert (line["usage_prompt_tokens"], line["bytes_out"], line["flags"]) == (41, len(STREAM), [])


async def test_first_bytes_are_not_held_back(stage: Stage) -> None:
    stage.up.scripts.append([{"send_hex": "646174613a20e4"}, {"wait": asyncio.Event()}, {"send_hex": "bda00a0a"}])
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=BODY) as reply:
        async with asyncio.timeout(20):
            assert await reply.content.readany() == b"data: \xe4"


async def test_encoded_replies_pass_as_they_are(stage: Stage) -> None:
    text = json.dumps({"choices": [], "usage": {"prompt_tokens": 1}})
    stage.up.scripts.append([{"send_gzip": text}])
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json={**BODY, "stream": False}) as reply:
        assert reply.headers["Content-Encoding"] == "gzip"
        raw = await reply.read()
    assert raw == stage.up.sent
    assert gzip.decompress(raw).decode() == text


@pytest.mark.parametrize("framing", ["chunked", "close"])
@pytest.mark.parametrize(
    "sent",
    [
        b'data: {"choices":[{"index":0,"delta":{"content":"ha"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"ha"}}]}\n',
        b'data: {"choi',
    ],
)
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_stream_that_breaks_off_ends_in_one_error_event(
    tmp_path: Path, framing: str, sent: bytes, end: str
) -> None:
    if framing == "close" and end == "close" and not sent.endswith(b"\n\n"):
        pytest.skip("an orderly end; the first case covers it")
    async with staged(tmp_path, FakeUpstream(tokenize=ids_of, framing=framing)) as stage:
        stage.up.scripts.append([{"send_hex": sent.hex()}, {"sleep_ms": 50}, {end: True}])
        _, body = await stage.post(BODY)
        assert body.startswith(sent)
        rest = body[len(sent) :]
        assert rest.lstrip(b"\n").startswith(b"event: error\ndata: {")
        assert b"[DONE]" not in body
        event = rest.strip().split(b"data: ")[1]
        assert json.loads(event)["error"]["code"] == "upstream_closed"
        assert observed([body]).events == (2 if b"data" in sent else 1)
        line = (await stage.proxy.logged(1))[0]
        assert line["flags"] == ["incomplete_stream"]
        assert line["level"] == "warning"


@pytest.mark.parametrize("last", [b"data: [DONE]\n\n", b'data: {"choices":[{"finish_reason":"stop"}]}\n\n'])
async def test_stream_that_said_its_end_gets_no_error_event(tmp_path: Path, last: bytes) -> None:
    async with staged(tmp_path, FakeUpstream(tokenize=ids_of, framing="close")) as stage:
        stage.up.scripts.append([{"send_hex": last.hex()}])
        assert (await stage.post(BODY))[1] == last
        assert (await stage.proxy.logged(1))[0]["flags"] == []


async def test_error_event_of_the_engine_is_enough(stage: Stage) -> None:
    sent = 'data: {"error":{"message":"out of memory","code":500}}\n\n'
    stage.up.scripts.append([{"send": sent}])
    assert (await stage.post(BODY))[1] == sent.encode()
    line = (await stage.proxy.logged(1))[0]
    assert (line["status"], line["flags"], line["level"]) == (200, ["error_under_200"], "warning")


@pytest.mark.parametrize(
    ("reply", "flags"),
    [
        ({"error": {"message": "no memory"}}, ["error_under_200"]),
        ({"error": None, "choices": []}, []),
        ({"choices": [{"message": {"content": '"error": {"message"'}}]}, []),
    ],
)
async def test_an_error_under_200_is_noted(stage: Stage, reply: dict[str, Any], flags: list[str]) -> None:
    sent = json.dumps(reply)
    stage.up.scripts.append([{"send": sent}])
    assert await stage.post({**BODY, "stream": False}) == (200, sent.encode())
    assert (await stage.proxy.logged(1))[0]["flags"] == flags


async def test_an_error_in_the_middle_of_a_stream_is_noted_and_relayed(stage: Stage) -> None:
    delta = 'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n'
    sent = delta + 'event: error\ndata: {"type":"error","error":{"type":"overloaded_error"}}\n\ndata: [DONE]\n\n'
    stage.up.scripts.append([{"send": sent}])
    assert (await stage.post(BODY))[1] == sent.encode()
    assert (await stage.proxy.logged(1))[0]["flags"] == ["error_under_200"]


async def test_json_reply_that_breaks_off_breaks_the_connection(stage: Stage) -> None:
    stage.up.scripts.append([{"send": '{"choices":['}, {"sleep_ms": 20}, {"close": True}])
    with pytest.raises(aiohttp.ClientError):
        await stage.post({**BODY, "stream": False})
    assert (await stage.proxy.logged(1))[0]["flags"] == ["incomplete_stream"]


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream", "text/plain"])
@pytest.mark.parametrize("end", ["close", "reset"])
async def test_a_reply_shorter_than_its_length_breaks_the_connection(stage: Stage, kind: str, end: str) -> None:
    """There is no room for an error event, and no other way to say it."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: 100\r\n\r\n"
    stage.up.scripts.append([{"raw": head.encode() + b"data: x\n\n"}, {"sleep_ms": 20}, {end: True}])
    with pytest.raises(aiohttp.ClientError):
        await stage.post(BODY)
    assert (await stage.proxy.logged(1))[0]["flags"] == ["incomplete_stream"]


async def test_json_reply_that_never_begins_is_502(stage: Stage) -> None:
    stage.up.scripts.append([{"close": True}])
    stage.up.scripts.append([{"close": True}])
    status, error = await stage.error({**BODY, "stream": False})
    assert (status, error["code"]) == (502, "upstream_unreachable")


async def test_stalled_client_holds_little_and_is_cut(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"write_timeout_s": 0.5}) as stage:
        chunk = {"send_repeat": ["data: ", "a", 1 << 20, ""]}
        stage.up.scripts.append([{"repeat": {"times": 200, **chunk}}])
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", stage.proxy.port))
        raw = json.dumps(BODY).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await loop.sock_sendall(client, head + raw)
        line = (await stage.proxy.logged(1))[0]
        client.close()
        assert "client_stalled" in line["flags"]
        # What the kernel's socket buffers take is not the proxy's; 200 MiB would be.
        assert stage.up.written < 24 << 20
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 24 << 10
        async with asyncio.timeout(20):
            while not stage.up.ended:
                await asyncio.sleep(0.01)


async def test_replies_that_fit_into_one_piece_wait_for_their_client_too(tmp_path: Path) -> None:
    up = FakeUpstream(tokenize=ids_of, reply_text="x" * 50_000)
    async with staged(tmp_path, up, server={"write_timeout_s": 0.5}) as stage:
        raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
        one = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, ("127.0.0.1", stage.proxy.port))
            sending = asyncio.create_task(loop.sock_sendall(client, one * 200))
            async with asyncio.timeout(20):
                while not (stage.proxy.log and stage.proxy.log[-1]["flags"]):
                    await asyncio.sleep(0.01)
                while stage.proxy.core.door.connections:
                    await asyncio.sleep(0.01)
            sending.cancel()
        last = stage.proxy.log[-1]
        assert (last["flags"], last["status"]) == (["client_stalled"], 200)
        assert len(stage.up.chats) < 200


async def test_long_pauses_are_no_time_out(tmp_path: Path) -> None:
    async with staged(tmp_path, FakeUpstream(tokenize=ids_of, time_scale=0.01)) as stage:
        dot = 'data: {"choices":[{"index":0,"delta":{"content":"."}}]}\n\n'
        stage.up.scripts.append(
            [
                {"sleep_ms": 45_000},
                {"repeat": {"times": 20, "sleep_ms": 1000, "send": dot}},
                {"send": "data: [DONE]\n\n"},
            ]
        )
        _, body = await stage.post(BODY)
        assert body.endswith(b"data: [DONE]\n\n")
        assert body.count(b"content") == 20


@pytest.mark.parametrize(("observer", "least"), [(SseObserver, 25), (JsonObserver, 0)])
async def test_others_get_their_turn_while_many_lines_are_looked_into(
    observer: type[SseObserver] | type[JsonObserver], least: int
) -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    looking = observer()
    piece = b"data: {}\n\n" * 20_000 + b'data: {"usage":{"prompt_tokens":5}}\n\n'
    await relay._look(looking, piece)
    beside.cancel()
    assert turns >= least
    if isinstance(looking, SseObserver):
        assert (looking.events, looking.prompt_tokens) == (20_001, 5)
