"""Account *engine*: time to the first token of a turn, on a real vLLM (CPU, tiny model), for sessions that go on.

Ways, in turn: ``toktier-proxy``, the client's text through TokTier; ``vllm, text``, the same past it; ``vllm, IDs``,
the body with its IDs past TokTier, as a client would send it that knew them. Each way has a session of its own; all
begin with the same text, which is in the engine's prefix cache after the first of them, and go on differently, so that
every turn has as much to prefill as the others. What the engine computes for 1,400 characters is in all of them.

Every reply's count of prompt tokens is compared with the number of IDs that the reference's template and the fast
encoder come to, and these with the reference's once for each size.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from rich.progress import Progress

from proxy.config import load
from toktier.tokenizer import EMBEDDED, FrozenTokenizer
from tools.bench.progress import progress_bar
from tools.bench.proxy import scanned_by
from tools.bench.records import OURS, Record, record, unmeasured
from tools.bench.standin import MODEL
from tools.bench.talk import Line, Refused, Talk
from tools.engine.build import default_cache
from tools.engine.model import LONG
from tools.engine.server import current, ensure_started, stop
from tools.traffic import Served, config, reference_ids
from tools.traffic.engine import CHAT, Tokenize

ACCOUNT = "engine"
CASE = "time to first token"
SIZES = (10_000, 100_000, 1_000_000)
TEXT, IDS = "vllm, text", "vllm, IDs"
WAYS = (OURS, TEXT, IDS)
_CACHED = 0.8
"""Share of a prompt that must come from the engine's prefix cache; a row says where it did not."""
_WARM = 2
_PATIENCE_S = 3_600.0
"""For a reply: the first prefill of a million characters (400,000 tokens) takes a CPU a quarter of an hour."""


@dataclass(frozen=True)
class Plan:
    """What is measured. ``rounds``: turns of each way at most; long sessions have fewer."""

    sizes: Sequence[int] = SIZES
    rounds: int = 30
    tokenizer: Path = EMBEDDED
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Further tables of TokTier's configuration."""

    def turns(self, size: int) -> int:
        """Rounds of one size."""
        return max(2, min(self.rounds, 8_000_000 // size))


@contextlib.contextmanager
def vllm(url: str | None) -> Iterator[str]:
    """The URL of an engine: the one given, else that of `tools.engine`, which is started (for `LONG` sessions) and
    stopped again unless it runs already. Raises `EngineError`."""
    if url is not None:
        yield url
        return
    cache = default_cache()
    was_running = current(cache) is not None
    running = ensure_started(cache, timeout_s=600, shape=LONG)
    try:
        yield running.url
    finally:
        if not was_running:
            stop(cache)


def run(plan: Plan, url: str) -> list[Record]:
    """All rows, of the engine at ``url``. Shows a progress bar. Raises AssertionError where a prompt was another."""
    return asyncio.run(_run(plan, url))


async def _run(plan: Plan, url: str) -> list[Record]:
    model = {"tokenizer": "embedded" if plan.tokenizer == EMBEDDED else str(plan.tokenizer)}
    # Without a salt, so that requests through TokTier and past it share the engine's prefix cache.
    tables = {"auth": {"salt": "off"}, "shadow": {"rate": 0, "first": 0, "parity_rate": 0}, **plan.tables}
    async with Served(config(url, (MODEL,), model=model, **tables)) as proxy:
        return await asyncio.to_thread(_Bench(plan, proxy, url).rows)


class _Bench:
    def __init__(self, plan: Plan, proxy: Served, url: str) -> None:
        self._plan, self._proxy = plan, proxy
        self._urls = {OURS: proxy.url, TEXT: url, IDS: url}
        self._reference = reference_ids(plan.tokenizer)
        self._fast = _fast(plan.tokenizer)
        with Line(url) as line:
            self._context = orjson.loads(line.get("/v1/models"))["data"][0].get("max_model_len")

    def rows(self) -> list[Record]:
        rows: list[Record] = []
        with progress_bar() as progress:
            for size in self._plan.sizes:
                rows += self._size(size, progress)
        return rows

    def _size(self, size: int, progress: Progress) -> Iterator[Record]:
        asked = {"model": MODEL, "stream": True, "stream_options": {"include_usage": True}, "max_tokens": 1}
        talks = {way: Talk(f"engine {size}", size, temperature=0, **asked) for way in WAYS}
        ids = self._fast(orjson.loads(talks[IDS].body))
        assert list(ids) == list(self._reference(orjson.loads(talks[IDS].body))), "the fast encoder has other IDs"
        rounds = self._plan.turns(size)
        if self._context is not None and len(ids) * 1.05 + 1_000 * (rounds + _WARM) > self._context:
            for way in WAYS:
                yield unmeasured(ACCOUNT, CASE, way, size, f"longer than the engine's context of {self._context:,}")
            return
        task = progress.add_task(f"engine, {size:,}: first prefill", total=rounds + _WARM)
        times: dict[str, list[int]] = {way: [] for way in WAYS}
        notes: dict[str, str] = dict.fromkeys(WAYS, "")
        try:
            for way in (TEXT, OURS, IDS):  # the long one past TokTier, whose patience is not what is measured
                self._ask(way, talks[way])
                talks[way].branch(way)
            progress.update(task, description=f"engine, {size:,}")
            for number in range(rounds + _WARM):
                for way, talk in talks.items():
                    talk.turn()
                    taken, cached = self._ask(way, talk)
                    if number < _WARM:
                        continue
                    times[way].append(taken)
                    if cached is not None and cached < _CACHED:
                        notes[way] = "not from the engine's prefix cache"
                progress.advance(task)
        except Refused as error:
            for way in WAYS:
                yield unmeasured(ACCOUNT, CASE, way, size, f"the engine answered {error.status}")
            return
        served = len(talks[OURS].body)
        scanned = {TEXT: served, OURS: scanned_by(self._proxy), IDS: 0}
        for way, taken_by in times.items():
            yield record(ACCOUNT, CASE, way, size, taken_by, served=served, scanned=scanned[way], note=notes[way])

    def _ask(self, way: str, talk: Talk) -> tuple[int, float | None]:
        """Nanoseconds to the first token, and the share of the prompt that the engine knew, if it says so."""
        ids = self._fast(orjson.loads(talk.body))
        body = talk.body
        if way == IDS:
            body = body[:-1] + b',"kv_transfer_params":{"prompt_token_ids":' + orjson.dumps(list(ids)) + b"}}"
        with Line(self._urls[way], _PATIENCE_S) as line:
            taken, answer = line.first_byte(CHAT, body)
        usage = _usage(answer)
        assert usage["prompt_tokens"] == len(ids), f"{way}: the engine had a prompt of another length"
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens")
        return taken, None if cached is None else cached / len(ids)


def _fast(tokenizer: Path) -> Tokenize:
    own = FrozenTokenizer.load(tokenizer, cache_dir=load(None).server.cache_dir)
    return reference_ids(tokenizer, encode=lambda text: own.window.encode(text).tolist())


def _usage(answer: bytes) -> dict[str, Any]:
    """Of a streamed reply."""
    events = [line[6:] for line in answer.split(b"\n") if line.startswith(b"data: {")]
    usage: dict[str, Any] = orjson.loads(events[-1])["usage"]
    return usage
