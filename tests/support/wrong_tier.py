"""A real tier whose answers a test can spoil, and the real proxy before an honest engine that judges them."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp

from proxy.config import Model, Server
from proxy.loading import assemble
from proxy.probe import PROBE_TENANT
from proxy.registry import Loaded, State, Tier
from tests.support.fake_upstream import FakeUpstream
from tests.support.models import CACHE
from tests.support.proxy import Running, running, settings_for
from tests.support.tokenizer_files import small_spec, write
from toktier.quarantine import Quarantine
from toktier.reasons import FullEncode
from toktier.sessions import SessionStore
from toktier.tier import Prepared
from toktier.tokenizer import FrozenTokenizer

CANARY = "xylophone-canary-4711"
"""Stands in every prompt here and must stand in no log."""

TEMPLATE = (
    "{% for t in tools or [] %}{{ t.function.name }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)

Spoil = Callable[[Prepared], Prepared]


class WrongTier:
    """Passes requests that are no probes through `spoil`, where a test has set one."""

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        self.spoil: Spoil | None = None

    def prepare(self, tenant: str, body: Mapping[str, Any], hint: str | None = None, **more: Any) -> Prepared:
        more.pop("ready", None)  # what is sent is what comes out of here
        prepared = self.tier.prepare(tenant, body, hint, **more)
        return prepared if self.spoil is None or tenant == PROBE_TENANT else self.spoil(prepared)


def swapped(prepared: Prepared) -> Prepared:
    """The fourth ID is another one, as long as the IDs are no reference's own."""
    return prepared if prepared.full is FullEncode.QUARANTINED else always_swapped(prepared)


def always_swapped(prepared: Prepared) -> Prepared:
    ids = prepared.ids.copy()
    ids[3] += 1
    return replace(prepared, ids=ids)


@functools.cache
def small() -> FrozenTokenizer:
    """A tokenizer with a chat template that loads in no time, in a worker process too."""
    folder = CACHE / "small-chat"
    config = {"chat_template": TEMPLATE}
    return FrozenTokenizer.load(write(folder, small_spec(), tokenizer_config=config), cache_dir=CACHE)


def load_small(
    name: str, model: Model, _server: Server, store: SessionStore, quarantine: Quarantine | None = None
) -> Loaded:
    """Whatever tokenizer the model names."""
    return assemble(name, model, small(), store, quarantine=quarantine)


@functools.cache
def _honest(load: Callable[..., Loaded]) -> Tier:
    return load("m", Model(upstream="e", tokenizer="embedded"), Server(), SessionStore(1 << 20)).tier


def reference_ids(body: Mapping[str, Any], load: Callable[..., Loaded] = load_small) -> list[int]:
    """What an engine with that tokenizer makes of a body."""
    known = {key: value for key, value in body.items() if key in ("messages", "tools", "chat_template_kwargs")}
    ids: list[int] = _honest(load).prepare("honest", known).ids.tolist()
    return ids


@dataclass
class Trial:
    up: FakeUpstream
    proxy: Running
    client: aiohttp.ClientSession
    tiers: list[WrongTier]

    @property
    def tier(self) -> WrongTier:
        return self.tiers[-1]

    async def ask(self, *contents: str, request_id: str | None = None, **more: Any) -> dict[str, Any]:
        """One chat; the messages alternate between user and assistant. Returns its log line."""
        roles = ("user", "assistant")
        messages = [{"role": roles[i % 2], "content": f"{CANARY} {text}"} for i, text in enumerate(contents)]
        before = len(self.proxy.log)
        headers = {} if request_id is None else {"X-Request-Id": request_id}
        body = {"model": "m", "messages": messages, **more}
        async with self.client.post(self.proxy.url + "/v1/chat/completions", json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.read()
            await reply.read()
        return (await self.proxy.logged(before + 1))[before]

    def sent_ids(self) -> list[int] | None:
        """The IDs in the last chat that the engine got."""
        params = self.up.chats[-1].json.get("kv_transfer_params")
        return None if params is None else params["prompt_token_ids"]

    def told(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """The log's lines of that event and with these fields."""
        return [line for line in self.proxy.events if line["event"] == event and fields.items() <= line.items()]

    async def until(self, event: str, count: int = 1, within_s: float = 300.0, **fields: Any) -> dict[str, Any]:
        """The ``count``-th such line, once it is there."""
        async with asyncio.timeout(within_s):
            while len(found := self.told(event, **fields)) < count:
                await asyncio.sleep(0.01)
        return found[count - 1]

    async def ready(self) -> dict[str, Any]:
        async with self.client.get(self.proxy.url + "/ready") as reply:
            value: dict[str, Any] = await reply.json()
            return value

    async def metric(self, name: str, **labels: str) -> float:
        async with self.client.get(self.proxy.url + "/metrics") as reply:
            text = await reply.text()
        wanted = name + ("{" + ",".join(f'{k}="{v}"' for k, v in labels.items()) + "}" if labels else "") + " "
        return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(wanted))


@asynccontextmanager
async def trial(state_dir: Path, load_tier: Callable[..., Loaded] = load_small, **changes: Any) -> AsyncIterator[Trial]:
    """Every request is checked unless ``changes`` (as for `settings_for`) say otherwise."""
    changes["shadow"] = {"rate": 1.0, **changes.get("shadow", {})}
    tiers: list[WrongTier] = []

    def load(name: str, model: Model, server: Server, store: SessionStore, quarantine: Quarantine) -> Loaded:
        loaded = load_tier(name, model, server, store, quarantine)
        tiers.append(WrongTier(loaded.tier))
        return replace(loaded, tier=tiers[-1])

    async with (
        FakeUpstream(tokenize=functools.partial(reference_ids, load=load_tier)) as upstream,
        running(settings_for(upstream.url, state_dir, **changes), load, wait=State.OK) as proxy,
        aiohttp.ClientSession() as client,
    ):
        yield Trial(upstream, proxy, client, tiers)
