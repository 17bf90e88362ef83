"""Requests that go upstream as soon as their IDs are there, before the tier is done with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proxy.registry import State
from proxy.upstream import Upstream
from tests.support.fake_tier import ids_of
from tests.support.proxy import Stage, staged
from toktier.errors import Unrenderable
from toktier.reasons import Bypass

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi ü"}]}
IDS = {"prompt_token_ids": ids_of(BODY)}


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    """With a connection that is free."""
    async with staged(tmp_path) as it:
        assert (await it.post(BODY))[0] == 200
        yield it


def ids_sent(stage: Stage) -> list[Any]:
    return [seen.json.get("kv_transfer_params") for seen in stage.up.chats]


async def test_ids_are_sent_before_the_tier_is_done(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    begin, prepare = Upstream.begin, stage.tier.prepare

    def noted_begin(*arguments: Any) -> None:
        order.append("sent")
        begin(*arguments)

    def noted_prepare(*arguments: Any, **more: Any) -> Any:
        made = prepare(*arguments, **more)
        order.append("done")
        return made

    monkeypatch.setattr(Upstream, "begin", noted_begin)
    monkeypatch.setattr(stage.tier, "prepare", noted_prepare)
    for stream in (False, True):
        assert (await stage.post({**BODY, "stream": stream}))[0] == 200
    assert order == ["sent", "done"] * 2
    assert ids_sent(stage) == [IDS] * 3
    assert len({seen.connection for seen in stage.up.chats}) == 1
    for line in await stage.proxy.logged(3):
        assert (line["attempts"], line["flags"], line["prompt_tokens_equal"]) == (1, [], True)
        assert line["stages_us"]["ttfb"] > 0


async def test_a_fault_after_that_is_served_as_text_on_another_connection(stage: Stage) -> None:
    stage.tier.fault, stage.tier.late = ZeroDivisionError("CANARY"), True
    assert (await stage.post(BODY))[0] == 200
    assert ids_sent(stage)[-1] is None
    assert stage.up.chats[-1].connection != stage.up.chats[0].connection
    line = (await stage.proxy.logged(2))[1]
    assert (line["path"], line["bypass"], line["tokens"], line["attempts"]) == ("bypass", "internal_error", None, 1)
    stage.tier.fault = None
    assert (await stage.post(BODY))[0] == 200
    assert ids_sent(stage)[-1] == IDS


@pytest.mark.parametrize("busy", [False, True])
async def test_a_connection_that_was_not_needed_serves_the_next(stage: Stage, busy: bool) -> None:
    stage.tier.fault = None if busy else Unrenderable(Bypass.MULTIMODAL, "messages[0]")
    stage.tier.busy = busy
    for _ in range(3):
        assert (await stage.post(BODY))[0] == 200
    assert ids_sent(stage) == [IDS, *[IDS if busy else None] * 3]
    assert len({seen.connection for seen in stage.up.chats}) == 1


async def test_a_doubt_in_between_takes_the_ids_back(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stage.proxy.core.generation.registry.models["m"]
    prepare = stage.tier.prepare

    def doubted(*arguments: Any, **more: Any) -> Any:
        made = prepare(*arguments, **more)
        if arguments[0] != "toktier-probe":
            model.doubt("a test")
        return made

    monkeypatch.setattr(stage.tier, "prepare", doubted)
    assert (await stage.post(BODY))[0] == 200
    assert ids_sent(stage)[-1] is None
    assert (await stage.proxy.logged(2))[1]["bypass"] == "upstream_unprobed"
    await stage.proxy.settled(State.OK)


async def test_an_engine_that_has_gone_meanwhile_gets_text_on_a_new_connection(stage: Stage) -> None:
    stage.up.scripts.append([{"close": True}])
    assert (await stage.post(BODY))[0] == 200
    assert ids_sent(stage) == [IDS, IDS, None]
    line = (await stage.proxy.logged(2))[1]
    assert (line["attempts"], line["flags"]) == (2, ["connection_retry"])
