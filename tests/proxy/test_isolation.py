"""One tenant attacks another through the real proxy with the real tier: sessions, cache, identity, replies."""

from __future__ import annotations

import asyncio
import functools
import json
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDict

from proxy import routes
from proxy.config import Model
from proxy.loading import assemble
from proxy.registry import Tier
from proxy.routes import Kind
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import load_qwen3, qwen3
from tests.support.proxy import Running, running, settings_for
from toktier.sessions import SessionStore

CHAT = "/v1/chat/completions"
ALICE, BOB = "alice-secret-key", "bob-secret-key"
MODES = ("keys", "passthrough")


@functools.cache
def _engine() -> Tier:
    return assemble("m", Model(upstream="e"), qwen3(), SessionStore(0)).tier


def ids(body: Mapping[str, Any]) -> list[int]:
    """The engine's own; nothing is kept from one call to the next."""
    return _engine().prepare("engine", body).ids.tolist()


def auth(mode: str, folder: Path) -> dict[str, Any]:
    (folder / "keys").write_text(f"alice:{ALICE}\nbob:{BOB}\n")
    return {"mode": mode, **({"key_file": folder / "keys"} if mode == "keys" else {})}


class Street:
    """A proxy, its engine, and whoever comes along."""

    def __init__(self, up: FakeUpstream, proxy: Running, client: aiohttp.ClientSession) -> None:
        self.up, self.proxy, self._client = up, proxy, client

    async def ask(
        self,
        key: str | Sequence[tuple[str, str]] | None,
        body: Any,
        path: str = CHAT,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, dict[str, Any]]:
        """Status, and the log's line. ``key``: a Bearer token, or whole headers."""
        before = len(self.proxy.log)
        pairs = key if isinstance(key, list | tuple) else [("Authorization", f"Bearer {key}")] if key else []
        sent = CIMultiDict([*pairs, *(headers or {}).items(), ("Content-Type", "application/json")])
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self._client.post(self.proxy.url + path, data=raw, headers=sent) as reply:
            await reply.read()
        return reply.status, (await self.proxy.logged(before + 1))[-1]

    @property
    def salts(self) -> list[str | None]:
        return [seen.json.get("cache_salt") for seen in self.up.seen if seen.method == "POST" and not probe(seen)]


def probe(seen: Any) -> bool:
    return bool(seen.header("User-Agent") == "toktier-probe")


@asynccontextmanager
async def street(folder: Path, mode: str, **changes: Any) -> AsyncIterator[Street]:
    async with (
        FakeUpstream(tokenize=ids) as up,
        running(settings_for(up.url, folder, auth=auth(mode, folder), **changes), load_qwen3) as proxy,
        aiohttp.ClientSession() as client,
    ):
        yield Street(up, proxy, client)


def messages(turns: int, topic: str = "the secret plan") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"role": "system", "content": f"You are terse. {topic} " * 20}]
    for turn in range(turns):
        found.append({"role": "user", "content": f"Question {turn} about {topic}, " + "with many words " * 30})
        found.append({"role": "assistant", "content": f"Answer {turn} about {topic}. " * 20})
    return found[:-1]


def chat(turns: int, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": messages(turns), "prompt_cache_key": "conversation-7", **more}


TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
HINT = {"X-Session-Id": "session-of-alice"}


@pytest.mark.parametrize("mode", MODES)
async def test_a_replayed_conversation_finds_nothing_of_its_owner(tmp_path: Path, mode: str) -> None:
    async with street(tmp_path, mode) as s:
        for turns in (1, 2, 3):
            _, own = await s.ask(ALICE, chat(turns), headers=HINT)
        assert own["path"] == "append", "her own session is found"
        replays = [chat(3), chat(1), chat(2), chat(4), chat(3, tools=[TOOL]), {**chat(3), "messages": messages(3)[1:]}]
        for number, body in enumerate(replays):
            status, line = await s.ask(BOB, body, headers=HINT)
            assert status == 200
            if number == 0:
                assert (line["path"], line["full"], line["cause"]) == ("init", "no_session", "none")
                assert line["scanned_chars"] == line["chars"]
                assert line["first_changed"] == line["common_chars"] == line["lost_reuse_tokens"] == 0
                assert line["first_changed_message"] is None
            assert line["session"] != own["session"]
            assert line["tenant"] != own["tenant"]
        for hint in (own["session"], own["tenant"]):
            _, line = await s.ask(
                "another-key" if mode == "passthrough" else BOB, chat(5), headers={"session_id": hint}
            )
            assert line["session"] != own["session"]
        _, line = await s.ask(ALICE, chat(4), headers=HINT)
        assert (line["path"], line["session"]) == ("append", own["session"]), "and he disturbed nothing"


async def test_one_that_says_nothing_is_not_one_that_does(tmp_path: Path) -> None:
    async with street(tmp_path, "passthrough") as s:
        await s.ask(ALICE, chat(2))
        for nobody in (None, [("Authorization", "")], [("Authorization", "Bearer")], [("X-Api-Key", " ")]):
            _, line = await s.ask(nobody, chat(2))
            assert line["path"] in ("init", "retry")
            assert line["tenant"] != s.proxy.log[0]["tenant"]
            assert line["session"] != s.proxy.log[0]["session"]


NOT_ALICE: list[list[tuple[str, str]]] = [
    [("Authorization", "Bearer " + ALICE.upper())],
    [("Authorization", "Bearer " + ALICE[:-1])],
    [("Authorization", "Bearer " + ALICE + "\u200b")],
    [("Authorization", "Bearer " + ALICE + ", Bearer x")],
    [("Authorization", "Bearer\t" + ALICE)],
    [("Authorization", "Basic " + ALICE)],
    [("Authorization", "Bearer Bearer " + ALICE)],
    [("Authorization", "Bearer alice")],
    [("Authorization", "Bearer bogus"), ("Authorization", "Bearer " + ALICE)],
    [("Authorization", "Bearer bogus"), ("X-Api-Key", ALICE)],
    [("Authorization", "bogus"), ("Connection", "Authorization"), ("X-Api-Key", ALICE)],
    [("X-Api-Key", "bogus"), ("api-key", ALICE)],
    [("Cookie", "Authorization=" + ALICE)],
    [("Proxy-Authorization", "Bearer " + ALICE)],
    [("X-Tenant", "alice"), ("X-Forwarded-User", "alice")],
]


@pytest.mark.parametrize("mode", MODES)
async def test_no_header_trick_makes_another_one_of_a_tenant(tmp_path: Path, mode: str) -> None:
    async with street(tmp_path, mode) as s:
        _, own = await s.ask(ALICE, chat(2))
        for tried in [*NOT_ALICE, [("Authorization", f"Bearer {own['tenant']}")]]:
            status, line = await s.ask(tried, chat(2))
            assert status == (401 if mode == "keys" else 200), tried
            assert line["tenant"] != own["tenant"], tried
            assert line["session"] != own["session"], tried
        assert s.salts.count(s.salts[0]) == 1


async def test_what_the_upstream_tells_apart_is_told_apart_here(tmp_path: Path) -> None:
    """A placeholder in one header, the real key in another, as agents send that insist on a key."""
    same = ("Authorization", "Bearer unused")
    people = [
        [same],
        [same, ("X-Api-Key", "one")],
        [same, ("X-Api-Key", "two")],
        [same, ("X-Api-Key", "one"), ("X-Api-Key", "two")],
        [same, ("Cookie", "session=one")],
        [same, ("Cookie", "session=two")],
        [("Cookie", "session=one")],
        [same, ("Authorization", "Bearer second")],
        [("Authorization", "Bearer second"), same],
    ]
    async with street(tmp_path, "passthrough") as s:
        lines = [(await s.ask(headers, chat(2)))[1] for headers in people]
        assert {line["path"] for line in lines} == {"init"}
        for name in ("tenant", "session"):
            assert len({line[name] for line in lines}) == len(people), name
        assert len(set(s.salts)) == len(people)
        for seen in s.up.chats:
            assert sum(name.lower() == "authorization" for name, _ in seen.headers) <= 1
        # One key is one tenant, in whichever header it stands.
        for headers in ([("X-Api-Key", "unused")], [("api-key", "unused")], [same, ("X-Api-Key", "unused")]):
            _, line = await s.ask(headers, chat(2))
            assert (line["path"], line["session"]) == ("retry", lines[0]["session"])


SALTED = [route for route in routes.ROUTES if route.salted]


@pytest.mark.parametrize("mode", MODES)
async def test_every_salted_route_has_the_tenants_salt_and_nothing_else(tmp_path: Path, mode: str) -> None:
    async with street(tmp_path, mode) as s:
        await s.ask(ALICE, chat(1))
        stolen = s.salts[0]
        assert stolen is not None
        base: dict[str, Any] = {
            "model": "m",
            "messages": [{"role": "user", "content": "x"}],
            "prompt": "x",
            "input": "x",
        }
        twice = json.dumps(base)[:-1].encode() + b', "cache_salt": "%b", "cache_\\u0073alt": "%b"}' % (
            stolen.encode(), stolen.encode(),
        )  # fmt: skip
        bodies: list[Any] = [base, {**base, "cache_salt": stolen}, twice, {**base, "cache_salt": None}]
        bypassed = [{"echo": True}, {"documents": [{}]}, {"chat_template": "x"}, {"kv_transfer_params": {"a": 1}}]
        bodies += [{**base, **more} for more in bypassed]
        for route in SALTED:
            assert route.kind in (Kind.CHAT, Kind.JSON)
            for body in bodies:
                before = len(s.up.seen)
                status, _ = await s.ask(BOB, body, route.pattern)
                assert status in (200, 400), "400 is the engine's: what it cannot render"
                sent = [seen for seen in s.up.seen[before:] if not probe(seen)]
                pairs = json.loads(sent[-1].body, object_pairs_hook=list)
                salts = [value for name, value in pairs if name == "cache_salt"]
                assert len(salts) == 1, (route.pattern, body)
                assert salts[0] not in (stolen, None, ""), (route.pattern, body)


async def test_other_routes_need_a_key_too(tmp_path: Path) -> None:
    async with FakeUpstream(tokenize=ids) as up:
        settings = settings_for(up.url, tmp_path, auth=auth("keys", tmp_path), model={"mode": "text"})
        async with running(settings, load_qwen3, wait=None) as proxy, aiohttp.ClientSession() as client:
            for route in routes.ROUTES:
                if route.kind not in (Kind.HEALTH, Kind.READY, Kind.METRICS):
                    path = route.pattern.replace("{id}", "resp_1").replace("{model}", "m")
                    async with client.request(route.methods[0], proxy.url + path, json={"model": "m"}) as reply:
                        assert reply.status == 401, path
            assert len(proxy.log) == sum(
                route.kind not in (Kind.HEALTH, Kind.READY, Kind.METRICS) for route in routes.ROUTES
            )
            assert not [seen for seen in up.seen if not probe(seen)]


@pytest.mark.parametrize("mode", MODES)
async def test_a_flood_of_one_tenant_leaves_another_its_share(tmp_path: Path, mode: str) -> None:
    sessions = {"budget_bytes": 1 << 20, "tenant_share": 0.4}
    async with street(tmp_path, mode, sessions=sessions) as s:
        _, own = await s.ask(ALICE, chat(2))
        for number in range(40):
            flood = {"model": "m", "messages": messages(8, f"{number} flood")}
            assert (await s.ask(BOB, flood))[0] == 200
        assert s.proxy.core.store.evictions["tenant_share"] > 0
        _, line = await s.ask(ALICE, chat(3))
        assert (line["path"], line["session"]) == ("append", own["session"])


async def test_a_reload_hands_no_session_on(tmp_path: Path) -> None:
    """The same words of a client are another tenant's under another mode."""
    async with street(tmp_path, "passthrough") as s:
        seen: set[str] = set()
        tenants: set[str] = set()
        for mode in ("passthrough", "keys", "none", "keys", "passthrough"):
            await s.proxy.core.reload(settings_for(s.up.url, tmp_path, auth=auth(mode, tmp_path)))
            await s.proxy.settled()
            _, line = await s.ask(ALICE, chat(2))
            first = line["tenant"] not in tenants
            assert (line["path"] == "init") == first, mode
            assert (line["session"] in seen) == (not first), mode
            seen.add(line["session"])
            tenants.add(line["tenant"])
        assert len(tenants) == 3
        (tmp_path / "keys").write_text(f"carol:{ALICE}\nbob:{BOB}\n")
        changed = {"mode": "keys", "key_file": tmp_path / "keys"}
        await s.proxy.core.reload(settings_for(s.up.url, tmp_path, auth=changed))
        await s.proxy.settled()
        _, line = await s.ask(ALICE, chat(2))
        assert line["path"] == "init", "a key that was given to another name finds nothing of the old one"


@pytest.mark.parametrize("mode", MODES)
async def test_two_tenants_at_once_with_the_same_words(tmp_path: Path, mode: str) -> None:
    async with street(tmp_path, mode, server={"inline_below_bytes": 0}) as s:
        for turns in (1, 2, 3, 4):
            body = chat(turns)
            await asyncio.gather(*(s.ask(key, body, headers=HINT) for key in (ALICE, BOB) for _ in range(4)))
        own: dict[str, set[str]] = {}
        for line in s.proxy.log:
            own.setdefault(line["tenant"], set()).add(line["session"])
        one, other = own.values()
        assert not one & other
        for seen in s.up.chats:
            body = seen.json
            sent = body.pop("kv_transfer_params")["prompt_token_ids"]
            assert sent == ids(body)


async def test_replies_never_reach_another_client(tmp_path: Path) -> None:
    """Clients that leave in the middle, late replies: a connection that is used again carries nothing over."""

    async def engine(request: web.Request) -> web.StreamResponse:
        body = await request.json()
        mark = body["user"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(4):
            await response.write(f"data: {json.dumps({'mark': mark})}\n\n".encode())
            await asyncio.sleep(0.001)
        await response.write(b'data: {"choices":[{"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')
        return response

    served = web.Application()
    served.router.add_post(CHAT, engine)
    chance = random.Random(5)
    async with TestServer(served) as server:
        settings = settings_for(
            str(server.make_url("/")).rstrip("/"), tmp_path, auth={"mode": "passthrough"}, model={"mode": "text"}
        )
        async with (
            running(settings, load_qwen3, wait=None) as proxy,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=8)) as client,
        ):
            read = 0

            async def one(number: int) -> None:
                nonlocal read
                mark = f"mark-{number}-{chance.random()}"
                body = {"model": "m", "messages": [], "stream": True, "user": mark}
                headers = {"Authorization": f"Bearer tenant-{number % 5}"}
                with_body = client.post(proxy.url + CHAT, json=body, headers=headers)
                async with with_body as reply:
                    if chance.random() < 0.4:
                        await reply.content.readany()
                        reply.close()
                        return
                    text = (await reply.read()).decode()
                marks = {
                    json.loads(line[6:]).get("mark") for line in text.split("\n\n") if line.startswith('data: {"m')
                }
                assert marks == {mark}
                read += 1

            for start in range(0, 160, 16):
                await asyncio.gather(*(one(number) for number in range(start, start + 16)))
            assert read > 60
