"""The engine of a soak: one address at which one process after the other listens, some of them unlike the first."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tools.traffic import Engine, Received, reference_ids

QUIET_S = 6.0
"""How long an engine with another tokenizer stays: long enough to get some requests."""


class _Process(Engine):
    """`Engine` with a version of its own."""

    version = "0.32.0"

    def answer(self, method: str, path: str, headers: Mapping[str, str], raw: bytes) -> tuple[int, str, list[bytes]]:
        if path == "/version":
            return 200, "application/json", [b'{"version":"%b"}' % self.version.encode()]
        return super().answer(method, path, headers, raw)


@dataclass
class Down:
    """``[start, end]`` on `time.time`: requests of these moments may fail for want of an engine."""

    start: float
    end: float = float("inf")


@dataclass
class Upstream:
    """Use `run` in a task of its own; `received` says what came, and `foreign` what came with IDs to a wrong tokenizer.

    ``keep``: how often a received request is kept for the sample.
    """

    seed: int
    keep: float
    received: Counter[str] = field(default_factory=Counter)
    sample: list[tuple[Mapping[str, Any], Sequence[int]]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=dict)
    """Request id -> IDs received."""
    foreign: list[str] = field(default_factory=list)
    restarts: Counter[str] = field(default_factory=Counter)
    downs: list[Down] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = Random(f"engines/{self.seed}")
        right = reference_ids()
        self._right = right
        self.engine = _Process(right, delay_s=0.002, received=self._note)
        self._other = False

    def _note(self, one: Received) -> None:
        name = one.request_id or ""
        if one.ids is None:
            self.received["text"] += 1
            self.tokens.pop(name, None)  # the second try of a request whose connection broke
            return
        self.received["ids"] += 1
        self.tokens[name] = len(one.ids)
        if self._other:
            self.foreign.append(name)
        if self._rng.random() < self.keep:
            body = {key: value for key, value in one.body.items() if key not in ("kv_transfer_params", "cache_salt")}
            self.sample.append((body, one.ids))

    async def run(self, every_s: float, over: asyncio.Event) -> None:
        """Restarts it about every ``every_s`` seconds until ``over``; then it is up and the first one's like again."""
        kinds = ["crash", "at_once", "version", "tokenizer", "hangs_up"]
        turn: list[str] = []
        while not await _over(over, self._rng.uniform(0.5, 1.5) * every_s):
            turn = turn or self._rng.sample(kinds, len(kinds))
            kind = turn.pop()
            self.restarts[kind] += 1
            await getattr(self, f"_{kind}")(over)

    async def _crash(self, over: asyncio.Event) -> None:
        """Nothing listens for some seconds."""
        await self._restart(self._rng.uniform(0.5, 3.0))

    async def _at_once(self, _over: asyncio.Event) -> None:
        """The same again, within milliseconds: no connection is refused."""
        await self._restart(0.0)

    async def _version(self, _over: asyncio.Event) -> None:
        """Another version of the engine, from now on."""
        await self._restart(0.05, version="0.33.0" if self.engine.version == "0.32.0" else "0.32.0")

    async def _tokenizer(self, over: asyncio.Event) -> None:
        """Another tokenizer under the same name, version and port; later the first one again."""
        await self._restart(0.05, tokenize=lambda body: [7, *self._right(body)], other=True)
        await _over(over, QUIET_S)
        await self._restart(0.05)

    async def _hangs_up(self, _over: asyncio.Event) -> None:
        """The process lives on; its connections, idle and busy ones, break."""
        with self._down():
            for connection in list(self.engine.connections):
                connection.abort()

    async def _restart(self, pause_s: float, *, tokenize: Any = None, other: bool = False, version: str = "") -> None:
        with self._down():
            await self.engine.stop()
            await asyncio.sleep(pause_s)
            self.engine.tokenize = tokenize or self._right
            self._other = other
            self.engine.version = version or self.engine.version
            await self.engine.start()

    @contextlib.contextmanager
    def _down(self) -> Iterator[None]:
        down = Down(time.time())
        self.downs.append(down)
        try:
            yield
        finally:
            down.end = time.time()


async def _over(over: asyncio.Event, seconds: float) -> bool:
    """Whether it was over within ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await over.wait()
    return over.is_set()
