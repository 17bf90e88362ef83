"""The load generator: sessions of the wanted shapes and sizes, an engine that counts, a client that survives."""

from __future__ import annotations

import asyncio
import tomllib
from collections import Counter
from pathlib import Path

import orjson
import pytest

from proxy.config import Settings
from tools.traffic import WEIGHTS, Client, Engine, ProxyFailed, Received, Served, Session, config, drive
from tools.traffic.process import to_toml


def three(_body: object) -> list[int]:
    return [1, 2, 3]


def steps(seed: int | str, count: int, **options: object) -> list[tuple[str, bytes]]:
    session = Session(seed, **options)  # type: ignore[arg-type]
    return [(step.kind, orjson.dumps(step.body)) for step in (session.step() for _ in range(count))]


def test_same_seed_same_requests_and_another_seed_others() -> None:
    assert steps(1, 40) == steps(1, 40)
    assert steps(1, 5) != steps(2, 5)


def test_every_kind_of_step_comes_and_no_session_outgrows_its_size() -> None:
    kinds: Counter[str] = Counter()
    sizes = []
    for seed in range(12):
        session = Session(seed, chars=6_000)
        for _ in range(100):
            kinds[session.step().kind] += 1
            sizes.append(session.size)
    assert set(kinds) == {"init", "append", "retry", "edit", "truncate", "tools", "side", "fork", "compaction"}
    assert kinds["init"] == 12
    assert kinds["append"] > 600
    assert max(sizes) < 6_000 + 9_000, "one turn may be long, two may not follow each other"


def test_a_fork_goes_on_with_the_branch_that_was_left() -> None:
    session = Session(5, weights={"append": 1}, chars=10**6)
    for _ in range(6):
        session.step()
    long = list(session.messages)
    session.fork()
    first = list(session.messages)
    session.fork()
    assert session.messages[:-1] == long
    session.fork()
    assert session.messages[:-1] == first
    assert first[: len(first) - 1] == long[: len(first) - 1], "a branch begins as the trunk does"


def test_weights_and_stream_are_obeyed() -> None:
    session = Session("x", weights={"append": 1}, stream=False)
    found = [session.step() for _ in range(20)]
    assert [step.kind for step in found] == ["init", *["append"] * 19]
    assert not any(step.body["stream"] for step in found)
    assert all(step.body["model"] == "m" for step in found)
    assert abs(sum(WEIGHTS.values()) - 100) < 1e-9


def test_a_session_starts_over_at_the_end_of_its_lifetime() -> None:
    session = Session(3, lifetime=10)
    kinds = [session.step().kind for _ in range(35)]
    assert [k for k, kind in enumerate(kinds) if kind == "init"] == [0, 10, 20, 30]
    assert session.size < 6_000


async def test_the_engine_counts_the_ids_it_gets_and_shows_what_came() -> None:
    seen: list[Received] = []
    body = {"model": "m", "messages": [], "kv_transfer_params": {"prompt_token_ids": [7] * 4}}
    async with Engine(three, received=seen.append) as engine, Client(engine.url) as client:
        for stream in ({}, {"stream": True, "stream_options": {"include_usage": True}}):
            reply = await client.send(body | stream, "a-1")
            assert (reply.status, reply.prompt_tokens, reply.error) == (200, 4, None)
        assert (await client.send(body | {"stream": True}, "a-2")).prompt_tokens is None
        assert (await client.send({"model": "m", "messages": []}, "a-3")).prompt_tokens == 0
        assert engine.requests == 4
    assert [(one.request_id, one.ids) for one in seen] == [
        *[("a-1", [7] * 4)] * 2,
        ("a-2", [7] * 4),
        ("a-3", None),
    ]
    assert not engine.connections


async def test_an_engine_that_goes_down_breaks_streams_and_comes_back_on_its_port() -> None:
    body = {"model": "m", "messages": [], "stream": True}
    async with Engine(three, delay_s=0.2) as engine, Client(engine.url) as client:
        url = engine.url
        running = asyncio.create_task(client.send(body, "a"))
        while not engine.connections:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.25)
        await engine.stop()
        assert (await running).status is None
        assert (await client.send(body, "b")).error == "ClientConnectorError"
        await engine.start()
        assert engine.url == url
        assert (await client.send(body, "c")).status == 200
        assert (await client.send(body, "d", leave=True)).error == "left"


async def test_a_drive_numbers_requests_and_keeps_the_order_of_each_session() -> None:
    sent: list[tuple[str, str, str]] = []
    running: Counter[str] = Counter()

    async def send(body: dict[str, object], request_id: str) -> None:
        name = next(name for number, name, _ in sent if number == request_id)
        running[name] += 1
        assert running[name] == 1, "a session sends one request at a time"
        await asyncio.sleep(0.001)
        running[name] -= 1

    sessions = [Session(seed) for seed in range(5)]
    count = await drive(
        sessions, send, requests=40, concurrent=3, on_step=lambda i, s, step: sent.append((i, s.name, step.kind))
    )
    assert count == 40
    assert sorted(int(number.removeprefix("r-")) for number, *_ in sent) == list(range(40))
    assert Counter(name for _, name, _ in sent) == dict.fromkeys("01234", 8)


def test_a_configuration_is_written_as_the_proxy_reads_it() -> None:
    tree = config("http://127.0.0.1:1", ["m", "a.b"], sessions={"ttl_s": 5}, model={"mode": "text", "aliases": ["x"]})
    tree["models"]["a.b"]["aliases"] = []
    read = tomllib.loads(to_toml(tree))
    assert read == tree
    settings = Settings.model_validate(read)
    assert settings.models["m"].mode == "text"
    assert settings.sessions.ttl_s == 5


async def test_a_proxy_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ProxyFailed, match="nonsense"):
        async with Served({**config("http://127.0.0.1:1"), "nonsense": {}}, folder=tmp_path):
            pass
