"""Another process at an upstream's address: noticed before IDs meant for the last one reach it.

Every restart here is quicker than any engine's, within the watch interval, and leaves no failed connection behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from proxy import probe
from proxy.config import Settings
from proxy.registry import CannotLoad, Loaded, State
from tests.support.fake_tier import FakeTier, ids_of
from tests.support.fake_upstream import FakeUpstream, Seen
from tests.support.proxy import Running, Stage, running, settings_for, staged
from toktier.reasons import Bypass

BODY: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def with_ids(seen: Seen) -> bool:
    return "kv_transfer_params" in seen.json


def details(proxy: Running) -> list[str]:
    return [e["detail"] for e in proxy.events if e["event"] == "model_state" and e.get("state") == "unprobed"]


async def restart(up: FakeUpstream, **changes: Any) -> None:
    """The process ends and another one listens on the port at once."""
    await up.stop()
    for name, value in changes.items():
        setattr(up, name, value)
    await up.listen(up.port)


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    async with staged(tmp_path, FakeUpstream(tokenize=ids_of, fingerprint="fp-1", server="uvicorn")) as it:
        yield it


async def test_another_tokenizer_under_the_same_name_gets_no_ids_of_ours(stage: Stage) -> None:
    assert (await stage.post(BODY))[0] == 200
    await restart(stage.up, tokenize=lambda body: [7, *ids_of(body)])
    assert (await stage.post(BODY))[0] == 200
    assert [with_ids(seen) for seen in stage.up.chats] == [True, False]
    first, second = await stage.proxy.logged(2)
    assert (first["bypass"], second["bypass"]) == (None, "upstream_unprobed")
    assert "the upstream ended the connection that watches it" in details(stage.proxy)
    assert "upstream_failure" not in {e["event"] for e in stage.proxy.events}, "no connection failed"
    await stage.proxy.settled(State.TEXT)
    assert stage.proxy.core.generation.registry.models["m"].reason is Bypass.UPSTREAM_PARITY


async def test_the_same_engine_again_gets_ids_again(stage: Stage) -> None:
    for number in range(1, 3):
        await restart(stage.up)
        await stage.post(BODY)
        await stage.proxy.settled(State.OK)
        await stage.post(BODY)
        assert [with_ids(seen) for seen in stage.up.chats] == [False, True] * number


async def test_a_connection_that_died_idle_is_replaced_by_one_with_text(stage: Stage) -> None:
    """A balancer may keep the silent connection and lose the other: nothing says which process gets the second try."""
    await stage.post(BODY)
    stage.up.scripts.append([{"close": True}])
    assert (await stage.post(BODY))[0] == 200
    assert [with_ids(seen) for seen in stage.up.chats] == [True, True, False]
    line = (await stage.proxy.logged(2))[1]
    assert (line["attempts"], line["bypass"], line["flags"]) == (2, "upstream_unprobed", ["connection_retry"])
    assert (line["tokens"], line["served_chars"]) == (None, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("mark", "value"), [("fingerprint", "fp-2"), ("server", "gunicorn"), ("model", "other")])
async def test_a_reply_with_other_marks_is_a_doubt(stage: Stage, mark: str, value: str, stream: bool) -> None:
    """As behind a balancer that keeps its connections while the engine behind it changes."""
    body = {**BODY, "stream": stream}
    await stage.post(body)
    setattr(stage.up, mark, value)
    stage.up.tokenize = lambda body: [7, *ids_of(body)]
    await stage.post(body)
    assert (await stage.post(body))[0] == 200
    assert [with_ids(seen) for seen in stage.up.chats] == [True, True, False]
    assert f"a reply bears another {mark} than those to the probe" in details(stage.proxy)
    await asyncio.sleep(0.1)
    assert stage.proxy.core.generation.registry.models["m"].state is not State.OK


async def test_marks_that_change_with_every_reply_are_no_doubt(tmp_path: Path) -> None:
    class Restless(FakeUpstream):
        def engine(self, seen: Seen) -> tuple[int, bytes, str]:
            self.fingerprint = f"fp-{len(self.seen)}"
            return super().engine(seen)

    async with staged(tmp_path, Restless(tokenize=ids_of)) as stage:
        for _ in range(5):
            await stage.post(BODY)
        assert all(map(with_ids, stage.up.chats))


async def test_a_name_that_is_not_known_any_more_is_a_doubt(tmp_path: Path) -> None:
    async with staged(tmp_path, FakeUpstream(tokenize=ids_of, strict_names=True)) as stage:
        await stage.post(BODY)
        stage.up.model = "other"
        assert (await stage.post(BODY))[0] == 404
        assert (await stage.post(BODY))[0] == 404
        assert [with_ids(seen) for seen in stage.up.chats] == [True, True, False]
        assert "the upstream does not know the model any more" in details(stage.proxy)


async def test_a_busy_balancers_page_is_no_doubt(stage: Stage) -> None:
    head = {"status": "503 Busy", "headers": {"Server": "nginx", "Retry-After": "3"}}
    stage.up.scripts.append([{"head": head}, {"send": '{"error":{"message":"busy"}}'}])
    async with stage.client.post(stage.proxy.url + "/v1/chat/completions", json=BODY) as reply:
        assert (reply.status, reply.headers["Retry-After"], reply.headers["Server"]) == (503, "3", "nginx")
    await stage.post(BODY)
    assert all(map(with_ids, stage.up.chats))


async def test_ids_prepared_before_the_doubt_are_not_sent_after_it(tmp_path: Path) -> None:
    async with staged(tmp_path, server={"inline_below_bytes": 0}) as stage:
        gate = stage.tier.gate = threading.Event()
        slow = asyncio.create_task(stage.post(BODY))
        await stage.holds(1)
        await restart(stage.up)
        async with asyncio.timeout(10):
            while not details(stage.proxy):
                await asyncio.sleep(0.005)
        gate.set()
        assert (await slow)[0] == 200
        assert [with_ids(seen) for seen in stage.up.chats] == [False]
        assert (await stage.proxy.logged(1))[0]["bypass"] == "upstream_unprobed"


async def test_a_reload_that_changes_nothing_costs_nothing(stage: Stage, tmp_path: Path) -> None:
    core, up = stage.proxy.core, stage.up
    before = core.generation.registry
    asked = len(up.seen)
    for number in range(3):
        settings = settings_for(up.url, tmp_path, limits={"messages": 100 + number})
        assert await core.reload(settings) == ["m: state kept"]
        assert (await stage.post(BODY))[0] == 200
    assert [seen.target for seen in up.seen[asked:]] == ["/v1/chat/completions"] * 3, "no probe"
    assert all(map(with_ids, up.chats))
    assert len({seen.connection for seen in up.chats}) == 1, "and no new connection"
    await asyncio.sleep(0)
    assert core.generation.registry is not before
    assert core.generation.registry.models["m"] is before.models["m"]
    assert not before.upstreams["e"]._pooled.closed, "what retired has nothing of its own"
    await restart(up, tokenize=lambda body: [7, *ids_of(body)])
    assert (await stage.post(BODY))[0] == 200
    assert not with_ids(up.chats[-1])
    await stage.proxy.settled(State.TEXT)


async def test_a_reload_begins_anew_what_it_changes(stage: Stage, tmp_path: Path) -> None:
    core, up = stage.proxy.core, stage.up
    up.scripts.append([{"send": "data: {}\n\n"}, {"wait": (done := asyncio.Event())}, {"send": "data: [DONE]\n\n"}])
    waiting = asyncio.create_task(stage.post({**BODY, "stream": True}))
    async with asyncio.timeout(10):
        await up.script_started.wait()
    first = core.generation.registry
    extra = {"upstream": "e", "mode": "text"}
    both = settings_for(up.url, tmp_path).model_dump()
    both["models"]["n"] = extra
    assert await core.reload(Settings.model_validate(both)) == ["m: state kept"]
    second = core.generation.registry
    assert second.upstreams["e"] is first.upstreams["e"]
    assert second.models["m"] is first.models["m"]
    key = tmp_path / "key"
    key.write_text("sk-1")
    with_key = settings_for(up.url, tmp_path, upstream={"api_key_file": key})
    assert await core.reload(with_key) == ["m: tokenizer kept"]
    third = core.generation.registry
    assert third.upstreams["e"] is not first.upstreams["e"]
    assert not first.upstreams["e"]._pooled.closed, "a request of the first generation is under way"
    await stage.proxy.settled(State.OK)
    key.write_text("sk-2")
    assert await core.reload(with_key) == ["m: tokenizer kept"], "the file has another key"
    await stage.proxy.settled(State.OK)
    asked = len(up.seen)
    assert (await stage.post(BODY))[0] == 200
    assert up.seen[asked].header("Authorization") == "Bearer sk-2"
    assert not first.upstreams["e"]._pooled.closed
    done.set()
    assert (await waiting)[1].endswith(b"[DONE]\n\n")
    async with asyncio.timeout(10):
        while not (first.upstreams["e"]._pooled.closed and third.upstreams["e"]._pooled.closed):
            await asyncio.sleep(0.005)
    assert not core.generation.registry.upstreams["e"]._pooled.closed
    assert len(core._tasks) == 2, "the model and what watches its upstream"


async def test_a_model_that_is_in_doubt_is_probed_at_once_by_a_reload(stage: Stage, tmp_path: Path) -> None:
    core = stage.proxy.core
    old = core.generation.registry.models["m"]
    old.doubts = 10
    old.doubt("a test")
    assert await core.reload(settings_for(stage.up.url, tmp_path)) == ["m: tokenizer kept"]
    assert core.generation.registry.models["m"] is not old
    await stage.proxy.settled(State.OK, within_s=20)  # it would rest for 30
    assert core.generation.registry.models["m"].upstream is old.upstream
    await restart(stage.up)
    assert (await stage.post(BODY))[0] == 200
    assert not with_ids(stage.up.chats[-1]), "it hears of what befalls the upstream"


class Files:
    """A model's files on disk, as a loader sees them."""

    def __init__(self) -> None:
        self.tier = FakeTier()
        self.read_again = 0
        self.found: Callable[[], Loaded | None] = lambda: None
        self.checks = 0
        self.refuted: Loaded | None = None

    def load(self, *_: object) -> Loaded:
        return dataclasses.replace(self.tier.load(), again=self.again, checked=self.checked)

    def checked(self) -> Loaded | None:
        self.checks += 1
        return self.refuted

    def again(self) -> Loaded | None:
        self.read_again += 1
        return self.found()


@pytest.mark.parametrize("changes", [{}, {"version": "0.33.0"}, {"max_model_len": 8192}])
async def test_files_are_read_again_for_another_process(tmp_path: Path, changes: dict[str, Any]) -> None:
    files = Files()
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), files.load) as proxy,
    ):
        assert files.read_again == 0
        await restart(up, **changes)
        await asyncio.sleep(0)
        async with asyncio.timeout(10):
            while not files.read_again:
                await asyncio.sleep(0.005)
        await proxy.settled(State.OK)
        async with asyncio.timeout(10):
            while not files.checks:
                await asyncio.sleep(0.005)
        assert (files.read_again, files.checks) == (1, 1)
        assert proxy.core.generation.registry.models["m"].tier is files.tier


async def test_a_refuted_certificate_serves_no_longer(tmp_path: Path) -> None:
    files, without = Files(), FakeTier()
    files.refuted = without.load()
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), files.load) as proxy,
    ):
        await restart(up)
        async with asyncio.timeout(10):
            while proxy.core.generation.registry.models["m"].tier is not without:
                await asyncio.sleep(0.005)
        await proxy.settled(State.OK)
        assert len(without.calls) == 3, "and is probed anew"


async def test_an_identity_that_changes_in_place_is_noticed_by_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "WATCH_S", 0.05)
    files = Files()
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), files.load) as proxy,
    ):
        up.max_model_len = 8192
        async with asyncio.timeout(10):
            while "the upstream's version or model changed" not in details(proxy):
                await asyncio.sleep(0.005)
        await proxy.settled(State.OK)
        assert files.read_again == 1


async def test_changed_files_serve_from_then_on(tmp_path: Path) -> None:
    files, newer = Files(), FakeTier()
    files.found = newer.load
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), files.load) as proxy,
    ):
        await restart(up)
        async with asyncio.timeout(10):
            while proxy.core.generation.registry.models["m"].tier is not newer:
                await asyncio.sleep(0.005)
        await proxy.settled(State.OK)
        assert len(newer.calls) in (3, 6), "the new one is what the last probe compared"


async def test_files_that_cannot_be_read_mean_text_until_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "TEXT_RETRY_S", 0.05)
    files = Files()

    def gone() -> Loaded:
        raise CannotLoad(Bypass.TOKENIZER_UNAVAILABLE, "no such file", final=False)

    files.found = gone
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), files.load) as proxy,
    ):
        await restart(up)
        await proxy.settled(State.TEXT)
        assert proxy.core.generation.registry.models["m"].reason is Bypass.TOKENIZER_UNAVAILABLE
        async with asyncio.timeout(10):
            while files.read_again < 2:
                await asyncio.sleep(0.005)
        assert proxy.core.generation.registry.models["m"].state is State.TEXT
        files.found = lambda: None
        await proxy.settled(State.OK)


class PanicException(BaseException):
    """As pyo3 raises it."""


@pytest.mark.parametrize("where", ["read_again", "prepare"])
async def test_a_panic_in_the_probe_is_no_end_of_probing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr(probe, "TEXT_RETRY_S", 0.05)
    files = Files()
    broken = True
    prepare = files.tier.prepare

    def panic(*_: Any, **__: Any) -> Any:
        if broken:
            raise PanicException("CANARY")
        return prepare(*_, **__) if where == "prepare" else None

    if where == "prepare":
        files.tier.prepare = panic  # type: ignore[method-assign]
    else:
        files.found = panic
    async with (
        FakeUpstream(tokenize=ids_of) as up,
        running(settings_for(up.url, tmp_path), files.load, wait=None) as proxy,
    ):
        if where == "read_again":
            await proxy.settled(State.OK)
            await restart(up)
        await proxy.settled(State.TEXT)
        assert proxy.core.generation.registry.models["m"].reason is Bypass.INTERNAL_ERROR
        broken = False
        await proxy.settled(State.OK)
