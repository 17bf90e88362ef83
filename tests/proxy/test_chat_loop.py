"""The chat route and the event loop: what may take long is done beside it, and for nobody who has left."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import proxy.api.chat
from proxy.ingest import Ingest
from tests.support.proxy import Stage, staged

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi ü"}]}


async def answers_while_held(stage: Stage) -> None:
    """The loop is free while the tier holds one request, which it still does afterwards."""
    await stage.holds(1)
    async with stage.client.get(stage.proxy.url + "/health") as reply:
        assert reply.status == 200
    assert stage.tier.held == 1


async def test_large_bodies_are_prepared_off_the_loop(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": 100}) as stage:
        gate = stage.tier.gate = threading.Event()
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 1000}]}
        slow = asyncio.create_task(stage.post(body))
        await answers_while_held(stage)
        gate.set()
        assert (await slow)[0] == 200


def noted(function: Callable[..., Any], threads: list[str]) -> Callable[..., Any]:
    """``function``, whose caller's thread is noted."""

    def call(*args: Any, **more: Any) -> Any:
        threads.append(threading.current_thread().name)
        return function(*args, **more)

    return call


@pytest.mark.parametrize("large", [False, True])
async def test_what_may_take_long_is_done_off_the_loop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, large: bool
) -> None:
    """And what is small waits for a turn of the loop that has not had its share of work yet."""
    threads: list[str] = []
    monkeypatch.setattr(
        proxy.api.chat, "refuse_ids_out_of_range", noted(proxy.api.chat.refuse_ids_out_of_range, threads)
    )
    monkeypatch.setattr(Ingest, "whole", noted(Ingest.whole, threads))
    monkeypatch.setattr(stage.tier, "prepare", noted(stage.tier.prepare, threads))
    turn = stage.proxy.core.lanes.turn
    turn._spent = 1000.0
    body = {**BODY, "stop_token_ids": [1] * (200_000 if large else 3)}
    assert (await stage.post(body))[0] == 200
    assert len(threads) == 3
    assert all(name.startswith("toktier-worker") == large for name in threads)
    assert turn._spent < 1000 or large


class Slow:
    """A window engine that takes long with its first use in a thread."""

    begun = False

    def begin(self) -> None:
        self.begun = True


async def test_the_loop_begins_with_an_engine_while_nobody_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    monkeypatch.setattr(stage.tier, "prepare", noted(stage.tier.prepare, threads))
    core = stage.proxy.core
    runtime = core.generation.registry.models["m"]
    assert runtime.loaded is not None
    runtime.loaded = replace(runtime.loaded, window=(slow := Slow()))
    core.in_flight += 1  # a stream, say
    assert (await stage.post(BODY))[0] == 200
    assert not slow.begun
    core.in_flight -= 1
    assert (await stage.post(BODY))[0] == 200
    assert slow.begun
    assert (await stage.post(BODY))[0] == 200
    assert [name.startswith("toktier-worker") for name in threads] == [True, True, False]
    again = Slow()
    core._take(runtime, replace(runtime.loaded, window=again))
    assert again.begun, "as soon as it is loaded"


async def test_the_loop_does_not_wait_for_a_session_in_use(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": 1 << 20}) as stage:
        gate = stage.tier.gate = threading.Event()
        stage.tier.busy = True
        slow = asyncio.create_task(stage.post(BODY))
        await answers_while_held(stage)
        gate.set()
        assert (await slow)[0] == 200
        assert "kv_transfer_params" in stage.up.chats[-1].json


@pytest.mark.parametrize("moment", ["tokenizing", "before_first_byte", "after_first_byte", "non_stream"])
async def test_client_that_leaves_cancels_the_upstream(tmp_path: Path, moment: str) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": 0}) as stage:
        gate = threading.Event()
        stage.tier.gate = gate if moment == "tokenizing" else None
        steps: list[dict[str, Any]] = [{"wait": asyncio.Event()}, {"send": "data: x\n\n"}]
        if moment == "after_first_byte":
            steps.insert(0, {"send": "data: {}\n\n"})
        stage.up.scripts.append(steps)
        body = {**BODY, "stream": moment != "non_stream"}
        first = asyncio.Event()

        async def ask() -> None:
            async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=body) as reply:
                await reply.content.readany()
                first.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(ask())
        if moment == "tokenizing":
            await stage.holds(1)
        else:
            await (first if moment == "after_first_byte" else stage.up.script_started).wait()
        assert stage.up.script_started.is_set() == (moment != "tokenizing")
        assert first.is_set() == (moment == "after_first_byte")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        line = (await stage.proxy.logged(1))[0]
        assert "client_gone" in line["flags"]
        if moment == "tokenizing":
            gate.set()
            await stage.holds(0)
            stage.up.scripts.clear()
        else:  # the script has no end of its own
            async with asyncio.timeout(20):
                while not stage.up.ended:
                    await asyncio.sleep(0.01)
        assert (await stage.post(BODY))[0] == 200
        assert len(stage.up.chats) == (1 if moment == "tokenizing" else 2)
