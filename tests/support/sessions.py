"""A store of sessions with requests put through it as the tier does; conversations for it."""

from __future__ import annotations

import itertools
from typing import Any

from tests.support.small_bpe import small_encoder, truth
from toktier.fingerprint import Group, fingerprint
from toktier.reasons import Path
from toktier.sessions import SessionStore

Messages = list[dict[str, Any]]
SYSTEM = {"role": "system", "content": "you are a fox. " * 200}


def say(role: str, text: str) -> dict[str, Any]:
    return {"role": role, "content": text}


def chat(*texts: str, system: bool = True) -> Messages:
    roles = itertools.cycle(["user", "assistant"])
    return [*([SYSTEM] if system else []), *(say(role, text) for role, text in zip(roles, texts, strict=False))]


def render(messages: Messages, tools: Messages | None = None) -> str:
    head = "".join(f"tool {tool['name']} \n" for tool in tools or [])
    return head + "".join(f"<{m['role']}> {m['content']} \n" for m in messages)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A store with requests put through it as the tier does."""

    def __init__(self, budget: int = 10**9, share: float = 1.0, ttl: float = 60.0) -> None:
        self.clock = Clock()
        self.store = SessionStore(budget, share, ttl, self.clock)
        self.encoder = small_encoder()

    def ask(
        self,
        messages: Messages,
        tools: Messages | None = None,
        *,
        tenant: str = "t",
        model: str = "m",
        settings: bytes = b"",
        hint: str | None = None,
    ) -> tuple[Path, int, str]:
        """The path, the characters scanned and the session's name. The IDs are checked."""
        wanted = fingerprint(Group(tenant, model, settings), messages, tools, hint)
        text = render(messages, tools)
        with self.store.lease(wanted, self.encoder) as lease:
            splice = lease.rope.set(text)
            assert lease.rope.ids.tolist() == truth(text)
            path = lease.path(len(text))
            lease.commit(lease.marks + bytes(len(messages) - lease.shared))
        self.consistent()
        return path, splice.scanned, lease.session

    def consistent(self) -> None:
        store = self.store
        assert store.nbytes == sum(s.nbytes for s in store._all) == sum(store._tenant_bytes.values())
        assert len(store._index) == sum(len(s.chain) for s in store._all)
        assert all(s in store._index.latest(key, len(store)) for s in store._all for key in s.chain)
        assert len(store._ends) == len(store)
        assert all(s in store._ends.latest(s.chain[-1], len(store)) for s in store._all)
        assert [s for s in store._all if not s.alive or s.pins] == []
        assert sum(map(len, store._tenants.values())) == len(store)

    def assert_empty(self) -> None:
        store = self.store
        assert not store._all
        assert not store._index
        assert not store._ends
        assert not store._tenants
        assert not store._tenant_bytes
        assert store.nbytes == 0
