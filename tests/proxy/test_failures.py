"""Failures inside TokTier, through the real proxy: the request succeeds, and the next ones are as exact as before."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.config import Model, Server
from proxy.loading import assemble
from proxy.registry import Loaded, State
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import qwen3
from tests.support.proxy import Running, Stage, running, settings_for, staged
from tests.support.reference import Reference
from toktier import sessions
from toktier.engines.fastokens import FastokensEngine
from toktier.engines.reference import ReferenceEngine
from toktier.flat import FlatIds
from toktier.leaves import Leaves
from toktier.sessions import SessionStore

pytestmark = [pytest.mark.usefixtures("reference"), pytest.mark.xdist_group("reference")]


class PanicException(BaseException):
    """As pyo3 raises it."""


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    qwen3()


def turns(count: int, words: int) -> list[dict[str, Any]]:
    """The bodies of one conversation: it begins, grows, is edited, and grows again."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are terse. " * words}]
    bodies = []
    for number in range(count):
        messages = [*messages, {"role": "user", "content": f"{number} it's  naïve 你好\n\n" * words}]
        bodies.append({"model": "m", "messages": messages})
        messages = [*messages, {"role": "assistant", "content": f"answer {number} " * words}]
    edited = [*messages[:2], {"role": "assistant", "content": "another answer"}, *messages[3:]]
    more = [*edited, {"role": "user", "content": "and now?"}]
    return [*bodies, {"model": "m", "messages": edited}, {"model": "m", "messages": more}]


def rewritten(rounds: int) -> list[dict[str, Any]]:
    """As `turns`, with tool calls and thoughts: the template takes the thoughts out again when the user speaks, so that
    an append changes a kept text in many places at once."""
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You are terse. " * 40}]
    bodies = []
    for number in range(rounds):
        messages = [*messages, {"role": "user", "content": f"{number} naïve 你好\n\n" * 30}]
        bodies.append({"model": "m", "messages": messages})
        for step in range(4):
            call = {"id": f"c{step}", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
            thought = {"role": "assistant", "content": "", "reasoning": "hm é " * 60, "tool_calls": [call]}
            messages = [*messages, thought, {"role": "tool", "tool_call_id": f"c{step}", "content": "out é\n" * 60}]
        bodies.append({"model": "m", "messages": messages})
        messages = [*messages, {"role": "assistant", "content": "answer " * 40}]
    return bodies


class Raw:
    """A window engine that fails at chosen calls, and else is the real one."""

    def __init__(self, fails: Callable[[int], BaseException | None]) -> None:
        window = qwen3().window
        assert isinstance(window, FastokensEngine)
        self._raw, self._fails = window._raw, fails
        self.version = self._raw.version
        self.begun, self.begin = True, self._raw.begin
        self.calls = 0

    def _call(self) -> None:
        self.calls += 1
        error = self._fails(self.calls)
        if error is not None:
            raise error

    def encode(self, text: str) -> Any:
        self._call()
        return self._raw.encode(text)

    def encode_bytes(self, text: str) -> Any:
        self._call()
        return self._raw.encode_bytes(text)

    def encode_batch(self, texts: Sequence[str]) -> Any:
        self._call()
        return self._raw.encode_batch(texts)

    def encode_in_turn(self, texts: Sequence[str]) -> Any:
        self._call()
        return self._raw.encode_in_turn(texts)


def loader(raw: Raw) -> Callable[..., Loaded]:
    tokenizer = qwen3()
    assert isinstance(tokenizer.reference, ReferenceEngine)
    engine = FastokensEngine(raw, tokenizer.reference)  # type: ignore[arg-type]

    def load(name: str, model: Model, _server: Server, store: SessionStore, *_: object) -> Loaded:
        return assemble(name, model, dataclasses.replace(tokenizer, window=engine), store)

    return load


async def conversation(proxy: Running, up: FakeUpstream, reference: Reference, bodies: list[dict[str, Any]]) -> None:
    """Plays it, each request answered and, where it has IDs, with the reference's."""
    async with aiohttp.ClientSession() as client:
        for body in bodies:
            async with client.post(proxy.url + "/v1/chat/completions", json=body) as reply:
                assert reply.status == 200
                await reply.read()
    assert len(up.chats) == len(bodies)
    for seen in up.chats:
        body = seen.json
        transfer = body.pop("kv_transfer_params", None)
        if transfer is not None:
            assert transfer["prompt_token_ids"] == reference.ids(body)


@pytest.mark.parametrize("inline_below", [0, 1 << 20])
@pytest.mark.parametrize("words", [3, 400])
@pytest.mark.parametrize(
    "error", [RuntimeError("CANARY"), MemoryError(), PanicException("CANARY")], ids=lambda error: type(error).__name__
)
async def test_a_window_engine_that_fails_costs_nothing_but_time(
    tmp_path: Path, reference: Reference, error: BaseException, words: int, inline_below: int
) -> None:
    """Alone, in batches of chunks, on the loop and in a thread; at every second call, so that ropes are mixed."""
    raw = Raw(lambda call: error if call % 2 else None)
    async with FakeUpstream(tokenize=reference.ids) as up:
        settings = settings_for(up.url, tmp_path, server={"inline_below_bytes": inline_below})
        async with running(settings, loader(raw)) as proxy:
            await conversation(proxy, up, reference, turns(4, words))
            lines = await proxy.logged(6)
            assert [line["bypass"] for line in lines] == [None] * 6
            assert [line["path"] for line in lines] == ["init", "append", "append", "append", "edit", "append"]
            failed = [event for event in proxy.events if event["event"] == "window.failed"]
            assert failed
            assert {event["error"] for event in failed} == {type(error).__name__}
            assert "CANARY" not in repr(proxy.events)
    assert raw.calls > 6


@pytest.mark.parametrize(("place", "also"), [(FlatIds, "end_with"), (Leaves, "add")], ids=["around", "within"])
@pytest.mark.parametrize("error", [MemoryError, PanicException])
async def test_memory_that_runs_out_in_a_splice_makes_no_wrong_id(
    tmp_path: Path,
    reference: Reference,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    place: Any,
    also: str,
) -> None:
    """A rope that may be half changed is nobody's: the request goes as text, the next one begins anew."""
    # The second is called when the IDs are in place and the characters are not.
    calls = 0

    def failing(done: Callable[..., Any]) -> Callable[..., Any]:
        def fail(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 7 == 0:
                raise error
            return done(*given)

        return fail

    async with (
        FakeUpstream(tokenize=reference.ids) as up,
        running(settings_for(up.url, tmp_path), loader(Raw(lambda _: None))) as proxy,
    ):
        for name in ("put", also):
            monkeypatch.setattr(place, name, failing(getattr(place, name)))
        await conversation(proxy, up, reference, rewritten(12))
        lines = await proxy.logged(24)
    assert {line["bypass"] for line in lines} == {None, "internal_error"}
    assert sum(line["bypass"] is None for line in lines) >= 5


class Hang:
    """Hangs in the calls that it is told to, until the test is over."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.now = False

    def __call__(self, _: int) -> None:
        if self.now:
            assert self.over.wait(60)


@pytest.fixture
def hang() -> Iterator[Hang]:
    it = Hang()
    yield it
    it.over.set()


async def test_a_window_engine_that_hangs_holds_up_one_thread(
    tmp_path: Path, reference: Reference, monkeypatch: pytest.MonkeyPatch, hang: Hang
) -> None:
    """Its request goes as text, others and later ones of the same conversation get IDs, and the process can end."""
    monkeypatch.setattr(sessions, "HELD_S", 0.2)
    bodies = turns(4, 40)
    server = {"inline_below_bytes": 0, "prepare_timeout_s": 0.6, "worker_threads": 1}
    async with (
        FakeUpstream(tokenize=reference.ids) as up,
        running(settings_for(up.url, tmp_path, server=server), loader(Raw(hang))) as proxy,
    ):
        await conversation(proxy, up, reference, bodies[:1])
        hang.now = True
        await conversation_more(proxy, up, bodies[1:2])
        hang.now = False
        await conversation_more(proxy, up, bodies[1:])
        lines = await proxy.logged(7)
        for seen in up.chats:
            body = seen.json
            if "kv_transfer_params" in body:
                assert body.pop("kv_transfer_params")["prompt_token_ids"] == reference.ids(body)
        assert [line["bypass"] for line in lines] == [None, "prepare_timeout", *[None] * 5]
        assert [e["stuck"] for e in proxy.events if e["event"] == "prepare_stuck"] == [1]
        held = len(proxy.core.store)
        hang.over.set()
        async with asyncio.timeout(10):
            while proxy.core.lanes.stuck:
                await asyncio.sleep(0.01)
        assert len(proxy.core.store) == held, "what came back late is not kept"


async def conversation_more(proxy: Running, up: FakeUpstream, bodies: list[dict[str, Any]]) -> None:
    async with aiohttp.ClientSession() as client:
        for body in bodies:
            async with client.post(proxy.url + "/v1/chat/completions", json=body) as reply:
                assert reply.status == 200


async def test_when_everything_hangs_everything_goes_as_text(tmp_path: Path) -> None:
    server = {"inline_below_bytes": 0, "prepare_timeout_s": 0.2, "worker_threads": 2}
    over = threading.Event()
    async with staged(tmp_path, server=server) as stage:
        prepare = stage.tier.prepare

        def hang(tenant: str, *rest: Any, **more: Any) -> Any:
            if tenant != "toktier-probe":
                assert over.wait(60)
            return prepare(tenant, *rest, **more)

        stage.tier.prepare = hang  # type: ignore[method-assign]
        body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
        answers = await asyncio.gather(*(stage.post(body) for _ in range(12)))
        assert {status for status, _ in answers} == {200}
        lines = await stage.proxy.logged(12)
        assert {line["bypass"] for line in lines} == {"prepare_timeout"}
        start = time.monotonic()
        while not stage.proxy.core.lanes.full(0):
            assert (await stage.post(body))[0] == 200
        assert (await stage.post(body))[0] == 200
        assert time.monotonic() - start < 10
        assert (await health(stage)) == 200
        over.set()
        async with asyncio.timeout(10):
            while stage.proxy.core.lanes.stuck:
                await asyncio.sleep(0.01)
        await stage.post(body)
        assert "kv_transfer_params" in stage.up.chats[-1].json


async def health(stage: Stage) -> int:
    async with stage.client.get(stage.proxy.url + "/health") as reply:
        return reply.status


async def test_small_requests_do_not_wait_for_busy_threads(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"worker_threads": 1, "inline_below_bytes": 4096}) as stage:
        gate = stage.tier.gate = threading.Event()
        large = {"model": "m", "messages": [{"role": "user", "content": "x" * 8000}]}
        long = [asyncio.create_task(stage.post(large)) for _ in range(4)]
        await stage.holds(1)  # in the one thread there is
        stage.tier.gate = None
        assert (await stage.post({"model": "m", "messages": [{"role": "user", "content": "hi"}]}))[0] == 200
        assert (await health(stage)) == 200
        assert stage.tier.held == 1
        gate.set()
        assert [status for status, _ in await asyncio.gather(*long)] == [200] * 4
        assert stage.proxy.core.generation.registry.models["m"].state is State.OK
        assert all("kv_transfer_params" in seen.json for seen in stage.up.chats)
