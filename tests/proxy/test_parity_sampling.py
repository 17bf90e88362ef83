from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import numpy as np
import pytest
from structlog.testing import capture_logs

from proxy import jsonspan
from proxy.config import Model, Upstream
from proxy.metrics import Metrics
from proxy.parity_sampling import ParitySampling, _tokens, comparable
from proxy.registry import State
from proxy.sent import Room, Sent
from tests.support.fake_tier import ids_of
from tests.support.sent import sent
from toktier.ids import Ids

BODY: dict[str, Any] = {"model": "alias", "messages": [{"role": "user", "content": "hello"}]}
MODEL = Model(upstream="e", tokenizer="embedded")
UPSTREAM = Upstream(url="http://e")
IDS = np.array(ids_of(BODY), np.uint32)


@pytest.mark.parametrize(
    ("body", "settings", "upstream", "compared"),
    [
        ({}, {}, {}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "tools": [], "tool_choice": "none"}, {}, {}, True),
        ({"reasoning_effort": "low"}, {}, {}, False),
        ({"reasoning_effort": None}, {}, {}, True),
        ({"messages": [{"role": "assistant", "content": "", "reasoning_content": "why"}]}, {}, {}, False),
        ({"messages": [{"role": "assistant", "content": "", "reasoning": "why"}]}, {}, {}, True),
        ({"tool_choice": "none"}, {"exclude_tools_when_tool_choice_none": True}, {}, False),
        ({"tool_choice": "auto"}, {"exclude_tools_when_tool_choice_none": True}, {}, True),
        ({}, {"profile": "sglang"}, {}, False),
        ({}, {}, {"token_field": "sglang"}, False),
    ],
)
def test_only_what_tokenize_renders_as_chat_does_is_compared(
    body: dict[str, Any], settings: dict[str, Any], upstream: dict[str, Any], compared: bool
) -> None:
    model = MODEL.model_copy(update=settings)
    assert comparable({**BODY, **body}, model, UPSTREAM.model_copy(update=upstream)) is compared


def test_ids_are_read_in_pieces() -> None:
    many = np.random.default_rng(1).integers(0, 1 << 32, 100_000, np.uint32)
    for separators in ((",", ":"), (", ", ": ")):
        reply = json.dumps({"count": 3, "tokens": many.tolist(), "token_strs": None}, separators=separators).encode()
        read = _tokens(reply)
        assert read is not None
        assert read.tolist() == many.tolist()
    for rest in ("", "1", "1,2", "[1]", '"1"', "1,", "-1", "5000000000", "1.5"):
        reply = b'{"tokens":[' + rest.encode() + b"]}"
        read = _tokens(reply)
        assert (None if read is None else read.tolist()) == {"": [], "1": [1], "1,2": [1, 2]}.get(rest), rest
    for reply in (b"", b"{}", b'{"tokens": 5}', b'{"tokens":[1,2', b'{"error":{"message":"x"}}'):
        assert _tokens(reply) is None, reply


class Engine:
    """Stands for a model's upstream: one answer, given when `release` is set."""

    def __init__(self, status: int = 200, reply: bytes = b"") -> None:
        self.name = "e"
        self.settings = UPSTREAM
        self.status, self.reply = status, reply
        self.asked: list[dict[str, Any]] = []
        self.error: Exception | None = None
        self.release = asyncio.Event()
        self.release.set()

    async def ask(self, _method: str, path: str, body: bytes, _timeout_s: float) -> tuple[int, bytes]:
        assert path == "/tokenize"
        self.asked.append(json.loads(body))
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return self.status, self.reply


class Bench:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.metrics = Metrics()
        self.different: list[list[int]] = []
        self.doubts: list[str] = []
        self.executor = ThreadPoolExecutor(1)
        self.room = Room(1 << 20)
        self.sampling = ParitySampling(self.executor, self.metrics, self.room, self._different)
        self.model: Any = SimpleNamespace(
            name="m", upstream=engine, settings=MODEL, doubt=self.doubts.append, trusts=1, state=State.OK
        )

    def _different(self, _: Sent, ours: Ids, theirs: Ids) -> None:
        assert ours.tolist() == IDS.tolist()
        self.different.append(theirs.tolist())

    def offer(self, body: dict[str, Any] = BODY, rate: float = 1.0) -> None:
        parsed = jsonspan.parse(json.dumps(body).encode())
        question = self.sampling.question(self.model, parsed, IDS, "r", rate)
        self.sampling.offer(self.model, sent(question=question))

    async def done(self) -> None:
        async with asyncio.timeout(10):
            while self.sampling._tasks:
                await asyncio.sleep(0.001)


@asynccontextmanager
async def bench(engine: Engine) -> AsyncIterator[tuple[Bench, list[Any]]]:
    with capture_logs() as lines:
        b = Bench(engine)
        try:
            yield b, lines
        finally:
            await b.sampling.close()
            b.executor.shutdown()


def outcome(lines: list[Any]) -> list[tuple[str, str]]:
    return [(line["event"], line.get("result") or line.get("reason")) for line in lines]


def reply(ids: Ids) -> bytes:
    return json.dumps({"count": len(ids), "tokens": ids.tolist()}).encode()


async def test_equal_and_different() -> None:
    async with bench(Engine(reply=reply(IDS))) as (b, lines):
        body = {**BODY, "cache_salt": "private", "stream": True, "add_special_tokens": False, "temperature": 0}
        b.offer(body)
        await b.done()
        assert b.engine.asked == [{**BODY, "add_special_tokens": False, "add_generation_prompt": True}]
        b.engine.reply = reply(IDS[:-1])
        b.offer()
        await b.done()
        assert outcome(lines) == [("parity_check", "equal"), ("parity_check", "different")]
        assert b.different == [IDS[:-1].tolist()]
        assert len(b.doubts) == 1


async def test_a_question_takes_room_until_it_is_answered() -> None:
    def asked(b: Bench) -> Sent:
        parsed = jsonspan.parse(json.dumps(BODY).encode())
        return sent(question=b.sampling.question(b.model, parsed, IDS, "r", 1.0))

    async with bench(Engine(reply=reply(IDS))) as (b, lines):
        first = asked(b)
        assert first.question is not None
        size = len(first.question.body) + IDS.nbytes
        assert b.room.used == size
        b.room.nbytes = 2 * size
        second, third = asked(b), asked(b)
        assert (second.question is not None, third.question) == (True, None)
        assert outcome(lines) == [("parity_skipped", "no_room")]
        b.sampling.offer(b.model, first)
        del first
        await b.done()
        assert b.room.used == size
        del second
        assert b.room.used == 0


async def test_one_at_a_time() -> None:
    engine = Engine(reply=reply(IDS))
    engine.release.clear()
    async with bench(engine) as (b, lines):
        for _ in range(3):
            b.offer()
        engine.release.set()
        await b.done()
        b.offer()
        await b.done()
        assert outcome(lines) == [("parity_skipped", "busy")] * 2 + [("parity_check", "equal")] * 2
        assert len(engine.asked) == 2


@pytest.mark.parametrize(
    ("status", "given", "reason"),
    [
        (400, b"{}", "not_comparable"),
        (429, b"{}", "no_answer"),
        (500, b"{}", "no_answer"),
        (200, b"<html>", "no_answer"),
        (200, aiohttp.ClientError("CANARY"), "no_answer"),
        (200, TimeoutError(), "no_answer"),
        (200, RuntimeError("Session is closed"), "no_answer"),
        (200, ZeroDivisionError("CANARY"), "internal_error"),
        (404, b"{}", "no_route"),
    ],
)
async def test_what_is_no_answer(status: int, given: Any, reason: str) -> None:
    engine = Engine(status, given if isinstance(given, bytes) else b"")
    engine.error = given if isinstance(given, Exception) else None
    async with bench(engine) as (b, lines):
        for _ in range(2):
            b.offer()
            await b.done()
        skipped = [line for line in lines if line["event"] == "parity_skipped"]
        assert [line["reason"] for line in skipped] == [reason] * 2
        assert len(engine.asked) == (1 if reason == "no_route" else 2), "who has no such route is left alone"
        assert not b.different
        assert not b.doubts


async def test_what_cannot_be_compared_is_not_sent() -> None:
    async with bench(Engine()) as (b, lines):
        b.offer({**BODY, "reasoning_effort": "low"})
        b.offer(rate=0.0)
        await b.done()
        assert outcome(lines) == [("parity_skipped", "not_comparable")]
        assert not b.engine.asked


@pytest.mark.parametrize("changes", [{"state": State.UNPROBED}, {"trusts": 2}])
async def test_an_engine_that_changed_meanwhile_judges_nothing(changes: dict[str, Any]) -> None:
    engine = Engine(reply=reply(IDS[:-1]))
    engine.release.clear()
    async with bench(engine) as (b, lines):
        b.offer()
        while not engine.asked:
            await asyncio.sleep(0.001)
        vars(b.model).update(changes)
        engine.release.set()
        await b.done()
        assert outcome(lines) == [("parity_skipped", "doubted")]
        assert not b.different


async def test_the_end_is_no_answer_either() -> None:
    engine = Engine()
    engine.release.clear()
    async with bench(engine) as (b, lines):
        b.offer()
        while not engine.asked:
            await asyncio.sleep(0.001)
        await b.sampling.close()
        assert outcome(lines) == [("parity_skipped", "shutdown")]
