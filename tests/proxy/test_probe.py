"""The probe: which upstreams get IDs, and when that is asked again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from proxy import probe, registry
from proxy.registry import State
from tests.support.fake_tier import FakeTier, ids_of
from tests.support.fake_upstream import FakeUpstream
from tests.support.proxy import Running, running, settings_for, staged
from toktier.errors import Unrenderable
from toktier.reasons import Bypass

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def reason(proxy: Running) -> tuple[State, Bypass | None, str | None]:
    model = proxy.core.generation.registry.models["m"]
    return model.state, model.reason, model.detail


async def test_an_honest_engine_gets_ids(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        assert reason(stage.proxy) == (State.OK, None, None)
        probes = [s for s in stage.up.seen if s.target == "/v1/chat/completions"]
        assert [len(s.json["kv_transfer_params"]["prompt_token_ids"]) for s in probes] == [3, 17]
        assert all(s.json["max_tokens"] == 1 for s in probes)
        compared = [s.json for s in stage.up.seen if s.target == "/tokenize"]
        assert len(compared) == 3
        assert any("tools" in body for body in compared)


@pytest.mark.parametrize(
    ("changes", "expected", "detail"),
    [
        ({"honours_ids": False}, Bypass.UPSTREAM_IGNORES_IDS, "sent 3 IDs"),
        ({"version": "0.26.1"}, Bypass.UPSTREAM_IGNORES_IDS, "older than 0.27"),
        ({"tokenize": lambda body: ids_of(body)[:-1]}, Bypass.UPSTREAM_PARITY, "first difference at"),
        (
            {"tokenize": lambda body: ids_of(body)[:-1], "has_tokenize": False},
            Bypass.UPSTREAM_PARITY,
            "as text and",
        ),
    ],
)
async def test_any_other_engine_gets_text(
    tmp_path: Path, changes: dict[str, Any], expected: Bypass, detail: str
) -> None:
    up = FakeUpstream(**{"tokenize": ids_of, **changes})
    async with staged(tmp_path, up, wait=State.TEXT) as stage:
        state, why, text = reason(stage.proxy)
        assert (state, why) == (State.TEXT, expected)
        assert detail in (text or "")
        assert any(e["level"] == "error" and e["event"] == "model_state" for e in stage.proxy.events)
        await stage.post(BODY)
        assert "kv_transfer_params" not in stage.up.chats[0].json
        assert (await stage.proxy.logged(1))[0]["bypass"] == expected.value


async def test_rust_front_end_that_ignores_ids(tmp_path: Path) -> None:
    """It answers 200 and counts the rendered messages (facts: vllm-rs 0.32, 0.33)."""
    up = FakeUpstream(tokenize=ids_of, honours_ids=False, version="0.33.0")
    async with staged(tmp_path, up, wait=State.TEXT) as stage:
        assert reason(stage.proxy)[1] is Bypass.UPSTREAM_IGNORES_IDS


async def test_a_length_that_happens_to_be_equal_does_not_pass(tmp_path: Path) -> None:
    up = FakeUpstream(tokenize=lambda body: [1, 2, 3], honours_ids=False)
    async with staged(tmp_path, up, wait=State.TEXT) as stage:
        assert "sent 17 IDs" in (reason(stage.proxy)[2] or "")


async def test_an_engine_without_tokenize_is_compared_by_counts(tmp_path: Path) -> None:
    async with staged(tmp_path, FakeUpstream(tokenize=ids_of, has_tokenize=False)) as stage:
        chats = [s.json for s in stage.up.seen if s.target == "/v1/chat/completions"]
        assert len(chats) == 2 + 2 * 3


async def test_nothing_compared_is_no_yes(tmp_path: Path) -> None:
    tier = FakeTier()

    def refuse(*_: object) -> Any:
        raise Unrenderable(Bypass.UNSUPPORTED_MESSAGE)

    tier.prepare = refuse  # type: ignore[method-assign]
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), tier.load, wait=State.TEXT) as proxy,
    ):
        assert reason(proxy)[1] is Bypass.UPSTREAM_PARITY


async def test_wrong_ids_of_ours_are_found(tmp_path: Path) -> None:
    tier = FakeTier()
    tier.wrong = True
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), tier.load, wait=State.TEXT) as proxy,
    ):
        assert reason(proxy)[1] is Bypass.UPSTREAM_PARITY


async def test_starts_before_its_upstream(tmp_path: Path) -> None:
    async with FakeUpstream(tokenize=ids_of) as up:
        await up.stop()
        async with running(settings_for(up.url, tmp_path), FakeTier().load, wait=None) as proxy:
            await asyncio.sleep(0.1)
            assert reason(proxy)[:2] == (State.UNPROBED, Bypass.UPSTREAM_UNPROBED)
            async with aiohttp.ClientSession() as client:

                async def get(path: str) -> int:
                    async with client.get(proxy.url + path) as reply:
                        return reply.status

                async def post() -> tuple[int, Any]:
                    async with client.post(proxy.url + "/v1/chat/completions", json=BODY) as reply:
                        return reply.status, await reply.json()

                assert [await get(path) for path in ("/health", "/ready")] == [200, 503]
                status, answer = await post()
                assert (status, answer["error"]["code"]) == (502, "upstream_unreachable")
                await up.listen(up.port)
                await proxy.settled(State.OK)
                assert [await get(path) for path in ("/health", "/ready")] == [200, 200]
                assert (await post())[0] == 200
            assert "kv_transfer_params" in up.chats[-1].json
            assert [line["status"] for line in proxy.log] == [502, 200]


async def test_an_unlisted_model_waits(tmp_path: Path) -> None:
    async with (
        FakeUpstream(tokenize=ids_of, model="other") as up,
        running(settings_for(up.url, tmp_path), FakeTier().load, wait=None) as proxy,
    ):
        await asyncio.sleep(0.2)
        assert reason(proxy)[0] is State.UNPROBED
        assert "does not list" in (reason(proxy)[2] or "")
        up.model = "m"
        await proxy.settled(State.OK)


async def test_served_name_is_what_probes_use(tmp_path: Path) -> None:
    async with staged(
        tmp_path,
        FakeUpstream(tokenize=ids_of, model="lora-a"),
        model={"served_name": "lora-a", "aliases": ["lora-a"]},
    ) as stage:
        assert all(s.json["model"] == "lora-a" for s in stage.up.seen if s.body)
        await stage.post({**BODY, "model": "lora-a"})
        assert stage.up.chats[0].json["model"] == "lora-a"
        assert (await stage.proxy.logged(1))[0]["model"] == "m"


async def test_another_model_after_a_restart_is_noticed(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        await stage.up.stop()
        assert (await stage.post(BODY))[0] == 502
        stage.up.tokenize = lambda body: [7, *ids_of(body)]
        await stage.up.listen(stage.up.port)
        await stage.proxy.settled(State.TEXT)
        assert reason(stage.proxy)[1] is Bypass.UPSTREAM_PARITY


async def test_a_stream_that_breaks_off_is_a_doubt(tmp_path: Path) -> None:
    async with staged(tmp_path) as stage:
        asked = len(stage.up.seen)
        stage.up.scripts.append([{"send": "data: {}\n\n"}, {"sleep_ms": 20}, {"close": True}])
        await stage.post({**BODY, "stream": True})
        await stage.proxy.settled(State.OK)
        again = [s.target for s in stage.up.seen[asked + 1 :]]
        assert "/tokenize" in again


SILENCE: list[list[dict[str, Any]]] = [
    [{"sleep_ms": 60_000}],
    [{"send": "data: {}\n\n"}, {"sleep_ms": 60_000}],
]


@pytest.mark.parametrize("script", SILENCE)
async def test_silence_on_one_connection_is_no_doubt(tmp_path: Path, script: list[dict[str, Any]]) -> None:
    """Else one tenant's slow requests would have all models of the engine served as text."""
    async with staged(tmp_path, upstream={"read_timeout_s": 0.2}) as stage:
        model = stage.proxy.core.generation.registry.models["m"]
        for _ in range(3):
            stage.up.scripts.append(script)
            await stage.post({**BODY, "stream": True})
            assert (model.state, model.doubts, model.recheck.is_set()) == (State.OK, 0, False)
            await stage.post(BODY)
        line = (await stage.proxy.logged(6))[0]
        assert line["flags"], "the request itself had no whole reply"
        assert ["kv_transfer_params" in seen.json for seen in stage.up.chats] == [True] * 6
        assert not [e for e in stage.proxy.events if e["event"] == "model_state" and e["state"] == "unprobed"][1:]


async def test_an_engine_that_is_silent_to_everyone_is_noticed_by_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "WATCH_S", 0.05)
    monkeypatch.setattr(probe, "QUICK_S", 0.2)

    class Mute(FakeUpstream):
        mute = False

        async def _request(self, *arguments: Any) -> bool:
            if self.mute:
                await asyncio.sleep(60)
            return await super()._request(*arguments)

    up = Mute(tokenize=ids_of)
    async with staged(tmp_path, up) as stage:
        up.mute = True
        await stage.proxy.settled(State.UNPROBED)
        up.mute = False
        await stage.proxy.settled(State.OK)


async def test_a_doubt_is_forgiven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has served undoubted for a while is not restored ever more slowly for what was before."""
    async with staged(tmp_path) as stage:
        model = stage.proxy.core.generation.registry.models["m"]
        for forgiven_s, doubts in ((60.0, [1, 2, 3]), (-1.0, [1, 1])):
            monkeypatch.setattr(registry, "FORGIVEN_S", forgiven_s)
            for count in doubts:
                model.set_ok()
                model.doubt("a test")
                assert model.doubts == count


async def test_a_name_longer_than_any_is_not_looked_up(tmp_path: Path) -> None:
    class Long(str):
        __slots__ = ()

        def __hash__(self) -> int:
            raise AssertionError("takes a tenth of a second for 60 MB")

    async with staged(tmp_path, model={"aliases": ("another",)}) as stage:
        models = stage.proxy.core.generation.registry
        assert models.find(Long("another!")) is None
        assert models.find("another") is models.find("m") is not None
        status, error = await stage.error({**BODY, "model": "m" * 3_000_000})
        assert (status, error["code"]) == (404, "model_not_found")


async def test_probe_credential(tmp_path: Path) -> None:
    async with staged(tmp_path, upstream={"api_key": "sk-up"}) as stage:
        assert {s.header("Authorization") for s in stage.up.seen} == {"Bearer sk-up"}
        await stage.post(BODY, headers={"Authorization": "Bearer client", "Cookie": "a=b", "X-Api-Key": "k"})
        chat = stage.up.chats[0]
        assert chat.header("Authorization") == "Bearer sk-up"
        assert chat.header("Cookie") is None
        assert chat.header("X-Api-Key") is None


async def test_text_mode_by_configuration_is_not_probed_with_chats(tmp_path: Path) -> None:
    async with staged(tmp_path, model={"mode": "text"}, wait=State.TEXT) as stage:
        await asyncio.sleep(0.1)
        assert {s.target for s in stage.up.seen} == {"/version", "/v1/models"}
        raw = json.dumps(BODY).encode()
        await stage.post(raw)
        assert (await stage.proxy.logged(1))[0]["bypass"] == "text_mode_configured"
