"""The given case of kind ``startup_check`` (T15): who loads the same files must come to the same IDs.

The third party of the case, the engine's own ``/tokenize``, is in tests/proxy/test_probe.py and tests/engine.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy.jsonspan import parse
from proxy.loading import Loader
from proxy.registry import State
from tests.conftest import data_path
from tests.support.cases import Player, plays
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import CACHE
from tests.support.proxy import running, settings_for
from tests.support.reference import Reference

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="needs transformers")

BODY = {"model": "m", "messages": [{"role": "user", "content": " leading space"}]}


KEYS = {"on_mismatch", "type_of_ids"}


@plays("T15")
@pytest.mark.xdist_group("reference")
async def test_agreement_is_served_with_ids(case: dict[str, Any], tmp_path: Path, reference: Reference) -> None:
    wants = case["expected"]["assert"]
    assert wants.keys() == KEYS
    assert wants["type_of_ids"] == "list[int]"
    async with (
        FakeUpstream(tokenize=reference.ids) as up,
        running(settings_for(up.url, tmp_path, server={"cache_dir": CACHE}), Loader().load) as proxy,
        aiohttp.ClientSession() as client,
    ):
        (line,) = [line for line in proxy.events if line["event"] == "tokenizer_parity"]
        assert (line["level"], line["outcome"]) == ("info", "equal")
        await Player(up, proxy, client).bodies([BODY])
        ids = up.chats[0].json["kv_transfer_params"]["prompt_token_ids"]
        assert type(ids) is list
        assert {type(i) for i in ids} == {int}
        assert ids == reference.ids(BODY)


@plays("T15")
async def test_a_mismatch_is_passed_through_loudly(case: dict[str, Any], tmp_path: Path) -> None:
    wants = case["expected"]["assert"]
    assert wants.keys() == KEYS
    assert wants["on_mismatch"] == "passthrough"
    model = {"tokenizer": str(data_path("tokenizers", "llama2"))}
    async with FakeUpstream() as up:
        settings = settings_for(up.url, tmp_path, model=model, server={"cache_dir": CACHE})
        async with (
            running(settings, Loader().load, wait=State.TEXT) as proxy,
            aiohttp.ClientSession() as client,
        ):
            player = Player(up, proxy, client)
            await player.bodies([BODY])
            assert player.outcome.replies[0].status == 200
            assert "kv_transfer_params" not in up.chats[0].json
            assert parse(up.chats[0].body).edit({"cache_salt"}) == player.outcome.bodies[0]
            assert proxy.log[0]["bypass"] == "tokenizer_mismatch"
            async with client.get(proxy.url + "/ready") as reply:
                assert reply.status == 200
                assert "tokenizer_mismatch" in await reply.text()
            loud = {line["event"] for line in proxy.events if line["level"] == "error"}
            assert {"tokenizer_parity", "model_state"} <= loud
