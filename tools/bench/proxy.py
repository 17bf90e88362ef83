"""Account *proxy*: what TokTier adds to a turn of an agent's session, seen by the client.

Processes: the client (this one), TokTier as users start it, pass-throughs made with aiohttp
(`tools.bench.passthrough`), one for each way, and an upstream that reads a body and replies at once
(`tools.bench.standin`). Sessions grow by turns of `talk.TURN` characters; every turn goes all ways, one after the
other, so what disturbs the machine meets all of them. A process that has just served serves sooner, and so does
whoever comes after others: so each way has a process of its own, and they take turns at being the first. For that the
pass-throughs are a turn behind: how many bytes a turn's IDs have is known when TokTier has sent them. Cases:

- *turn*: from the first byte sent to the last one received. The ways: ``toktier-proxy``; ``pass-through``, which sends
  as many bytes upstream as TokTier did (the body, and digits for the IDs); ``pass-through, text only``, which sends the
  body; ``pass-through, streamed``, which sends the same bytes as the first, but does not wait for the whole body.
- *added*: differences of the ways, turn by turn. ``toktier-proxy`` is what it takes more than ``pass-through``;
  ``doubled upload``, what the digits cost that; ``over streamed``, TokTier beside the streamed one. The targets are
  judged over both: the first has the whole body before it sends any of it, as TokTier does, but joins it; the second
  sends while it receives, which nobody can who has to look into the body. Beside them, on the
  same bodies: vLLM's own front end on the text (`/render`, `/tokenize`), and on the body with TokTier's IDs.

Shadow checks are off: they run in another process, at the lowest priority, but here they would have a share of two
cores. After the last turn the IDs that arrived upstream are compared with the reference's.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from rich.progress import Progress

from toktier.tokenizer import EMBEDDED
from tools.bench import passthrough, standin
from tools.bench.progress import progress_bar
from tools.bench.records import OURS, Record, record, unmeasured
from tools.bench.standin import MODEL
from tools.bench.talk import Line, Refused, Talk
from tools.traffic import Served, config, reference_ids
from tools.traffic.engine import CHAT

ACCOUNT = "proxy"
SIZES = (10_000, 100_000, 1_000_000, 4_000_000)
SESSIONS = (1, 8)
PASS, TEXT, STREAMED = "pass-through", "pass-through, text only", "pass-through, streamed"
WAYS = (OURS, PASS, TEXT, STREAMED)
DOUBLED, OVER_STREAMED = "doubled upload", "over streamed"
VLLM_TEXT, VLLM_TOKENIZE, VLLM_IDS = "vllm /render, text", "vllm /tokenize", "vllm /render, IDs"
LIMITS_MS = {1_000_000: 0.6, 4_000_000: 2.5}
"""What TokTier may add to a turn of one session, over each pass-through: medians, on an otherwise idle machine."""
OVER = {OURS: PASS, OVER_STREAMED: STREAMED}
"""The rows of *added* that tell it, and the pass-through of each."""
LEAST_VLLM = 500.0
"""How many times as long as that vLLM takes to render and encode a million characters."""
_WARM = 3
_VLLM_ROUNDS = 7


@dataclass(frozen=True)
class Plan:
    """What is measured. ``rounds``: turns of each session at most; long sessions have fewer."""

    sizes: Sequence[int] = SIZES
    sessions: Sequence[int] = SESSIONS
    rounds: int = 200
    tokenizer: Path = EMBEDDED
    tables: Mapping[str, Any] = field(default_factory=dict)
    """Further tables of TokTier's configuration."""

    def turns(self, size: int, sessions: int) -> int:
        """Rounds of one row: fewer where a turn takes long."""
        return max(2, min(self.rounds, 120_000_000 // size) // (1 if sessions == 1 else 4))


def run(plan: Plan, vllm: str | None = None) -> list[Record]:
    """All rows; ``vllm`` is the URL of an engine that serves `MODEL`. Shows a progress bar.

    Raises AssertionError where the IDs that arrived are not the reference's.
    """
    return asyncio.run(_run(plan, vllm))


async def _run(plan: Plan, vllm: str | None) -> list[Record]:
    tables = {"shadow": {"rate": 0, "first": 0, "parity_rate": 0}, **plan.tables}
    model = {"tokenizer": "embedded" if plan.tokenizer == EMBEDDED else str(plan.tokenizer)}
    async with (
        process("tools.bench.standin", str(plan.tokenizer)) as upstream,
        process("tools.bench.passthrough", upstream) as passing,
        process("tools.bench.passthrough", upstream) as text,
        process("tools.bench.passthrough", upstream) as streamed,
        Served(config(upstream, (MODEL,), model=model, **tables)) as proxy,
    ):
        urls = {OURS: proxy.url, PASS: passing, TEXT: text, STREAMED: streamed}
        return await asyncio.to_thread(_Bench(plan, urls, upstream, vllm, partial(scanned_by, proxy)).rows)


def scanned_by(proxy: Served) -> int:
    """Characters that TokTier looked at for a turn, by its log (the last turns' median): about as many bytes."""
    lines = [line["scanned_chars"] for line in proxy.events("request") if line["path"] == "append"]
    return round(statistics.median(lines[-5:])) if lines else 0


@asynccontextmanager
async def process(module: str, *arguments: str) -> AsyncIterator[str]:
    """A module as a process that says its URL on standard output and ends with its standard input."""
    command = (sys.executable, "-m", module, *arguments)
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        url = (await child.stdout.readline()).decode().strip()
        if not url:
            raise RuntimeError(f"{module} did not start; it has said why")
        yield url
    finally:
        child.stdin.close()
        await child.wait()


Times = dict[str, list[int]]


class _Bench:
    def __init__(
        self, plan: Plan, urls: Mapping[str, str], upstream: str, vllm: str | None, scanned: Callable[[], int]
    ) -> None:
        self._plan, self._vllm, self._scanned = plan, vllm, scanned
        self._urls = urls
        self._upstream = upstream
        self._reference = reference_ids(plan.tokenizer)

    def rows(self) -> list[Record]:
        plan = self._plan
        rows: list[Record] = []
        with progress_bar() as progress:
            for size in plan.sizes:
                for count in plan.sessions:
                    times, last, served = self._measured(size, count, progress)
                    rows += rows_of(times, size, count, served, self._scanned())
                    if count == 1:
                        rows += self._front_end(size, last, progress)
        return rows

    def _measured(self, size: int, count: int, progress: Progress) -> tuple[Times, bytes, int]:
        """Nanoseconds of every turn by way, the last body that arrived upstream, and the bytes of the client's."""
        rounds = self._plan.turns(size, count)
        task = progress.add_task(f"proxy, {named(count)} of {size:,}", total=rounds + _WARM + 1)
        talks = [Talk(f"{size} {count} {number}", size, model=MODEL) for number in range(count)]
        times: Times = {way: [] for way in WAYS}
        with ExitStack() as stack:
            lines = {way: [stack.enter_context(Line(url)) for _ in talks] for way, url in self._urls.items()}
            at_once = stack.enter_context(_at_once(count))
            stack.enter_context(_no_collector())
            before: _Turn | None = None
            for number in range(rounds + _WARM + 1):
                turn = _Turn([talk.body for talk in talks])
                first = number % len(WAYS)
                for way in (*WAYS[first:], *WAYS[:first]):
                    sent, counted = (turn, number) if way == OURS else (before, number - 1)
                    if sent is None:
                        continue
                    taken = _sent(way, sent, lines[way], at_once)
                    if _WARM <= counted < rounds + _WARM:
                        times[way] += taken
                before = turn
                for talk in talks:
                    talk.turn()
                progress.advance(task)
            lines[OURS][0].post(CHAT, talks[0].body)
            with Line(self._upstream) as line:
                last = line.get(standin.LAST)
        self._check(talks[0].body, last)
        return times, last, len(talks[0].body)

    def _check(self, body: bytes, arrived: bytes) -> None:
        ids = orjson.loads(arrived)["kv_transfer_params"]["prompt_token_ids"]
        assert ids == list(self._reference(orjson.loads(body))), "the IDs that went upstream are not the reference's"

    def _front_end(self, size: int, last: bytes, progress: Progress) -> Iterator[Record]:
        """vLLM's rows: on the text, and on ``last``, the body with TokTier's IDs."""
        if self._vllm is None:
            return
        case = f"added, {named(1)}"
        rounds = _VLLM_ROUNDS if size <= 1_000_000 else 2
        task = progress.add_task(f"vLLM's front end, {size:,}", total=3 * rounds)
        with_ids = orjson.loads(last)
        ids = with_ids["kv_transfer_params"]["prompt_token_ids"]
        text = {name: value for name, value in with_ids.items() if name not in ("kv_transfer_params", "cache_salt")}
        asked = {name: text[name] for name in ("model", "messages", "tools")}
        ways = ((VLLM_TEXT, "/v1/chat/completions/render", text), (VLLM_TOKENIZE, "/tokenize", asked))
        for way, path, body in (*ways, (VLLM_IDS, "/v1/chat/completions/render", with_ids)):
            raw = orjson.dumps(body)
            times: list[int] = []
            note = ""
            for number in range(rounds + 1):
                try:
                    with Line(self._vllm) as line:
                        taken, answer = line.post(path, raw)
                except Refused as error:
                    note = f"vLLM answers {error.status}{error.says()}"
                    break
                if number == 0:  # warms up, and is compared
                    reply = orjson.loads(answer)
                    same = reply["tokens" if way == VLLM_TOKENIZE else "token_ids"] == ids
                    assert same, f"{way} has other IDs than TokTier at {size:,} characters"
                    continue
                times.append(taken)
                progress.advance(task)
            if not times:
                yield unmeasured(ACCOUNT, case, way, size, note)
                continue
            served = len(raw)
            yield record(ACCOUNT, case, way, size, times, served=served, scanned=0 if way == VLLM_IDS else served)


@dataclass(frozen=True)
class _Turn:
    """The bodies of one turn of each session, and the bytes that TokTier sent beside them."""

    bodies: Sequence[bytes]
    pads: list[int] = field(default_factory=list)


def _sent(way: str, turn: _Turn, lines: Sequence[Line], at_once: AtOnce) -> list[int]:
    """Nanoseconds that a turn of each session takes this way. TokTier's fills ``turn.pads``, which others need."""
    pads = [0] * len(turn.bodies) if way in (OURS, TEXT) else turn.pads
    heads: list[dict[str, str]] = [{passthrough.PAD: str(pad)} if pad else {} for pad in pads]
    if way == STREAMED:
        heads = [{**head, passthrough.STREAMED: "1"} for head in heads]
    asked = zip(lines, turn.bodies, heads, strict=True)
    replies = at_once([partial(line.post, CHAT, body, head) for line, body, head in asked])
    beside = [
        orjson.loads(answer)["received"] - len(body) for (_, answer), body in zip(replies, turn.bodies, strict=True)
    ]
    if way == OURS:
        assert all(pad > len(body) // 8 for pad, body in zip(beside, turn.bodies, strict=True)), "TokTier sent no IDs"
        turn.pads.extend(beside)
    assert beside == (turn.pads if way == OURS else pads), f"{way} sent another number of bytes"
    return [taken for taken, _ in replies]


def rows_of(
    times: Mapping[str, Sequence[int]], size: int, sessions: int, served: int = 0, scanned: int = 0
) -> list[Record]:
    """The rows of single turns, whose times stand in the same order for every way. ``served``: bytes of a client's
    body, ``scanned`` those that TokTier looked at; who only passes bodies on looks at nothing."""
    case = f"turn, {named(sessions)}"
    rows = [
        record(ACCOUNT, case, way, size, taken, served=served, scanned=scanned if way == OURS else 0)
        for way, taken in times.items()
    ]
    for name, one, other in ((OURS, OURS, PASS), (DOUBLED, PASS, TEXT), (OVER_STREAMED, OURS, STREAMED)):
        differences = [a - b for a, b in zip(times[one], times[other], strict=True)]
        rows.append(record(ACCOUNT, f"added, {named(sessions)}", name, size, differences))
    return rows


def named(sessions: int) -> str:
    """A number of sessions in words."""
    return "1 session" if sessions == 1 else f"{sessions} sessions"


Calls = Sequence[Callable[[], tuple[int, bytes]]]
AtOnce = Callable[[Calls], list[tuple[int, bytes]]]


@contextmanager
def _at_once(count: int) -> Iterator[AtOnce]:
    """Makes so many calls at the same time, each in a thread of its own."""
    if count == 1:
        yield lambda calls: [call() for call in calls]
        return
    barrier = threading.Barrier(count)

    def one(call: Callable[[], tuple[int, bytes]]) -> tuple[int, bytes]:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(count) as threads:
        yield lambda calls: list(threads.map(one, calls))


@contextmanager
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def over_limit(rows: Sequence[Record]) -> list[str]:
    """What is beyond these limits, in words: over the pass-through that buffers and over the one that streams."""
    case = f"added, {named(1)}"
    found = {(row.engine, row.size): row.p50_us for row in rows if row.case == case and row.n}
    out = [
        f"added at {size:,} over {way}: {found[name, size] / 1000:.2f} ms, not {limit:g}"
        for size, limit in LIMITS_MS.items()
        for name, way in OVER.items()
        if found.get((name, size), 0.0) > 1000 * limit
    ]
    render = found.get((VLLM_TEXT, 1_000_000))
    for name, way in OVER.items():
        added = found.get((name, 1_000_000))
        if added is not None and render is not None and render < LEAST_VLLM * added:
            out.append(
                f"vLLM's render at 1,000,000: {render / added:.0f} times what is added over {way}, not {LEAST_VLLM:g}"
            )
    return out


def verdict(rows: Sequence[Record]) -> str:
    """Markdown: what was measured of each target, over each pass-through, and whether that meets it."""
    case = f"added, {named(1)}"
    found = {(row.engine, row.size): row.p50_us for row in rows if row.case == case and row.n}
    lines = []
    for name, way in OVER.items():
        told = [
            f"{found[name, size] / 1000:.2f} ms at {size:,} (at most {limit:g}: {met})"
            for size, limit in LIMITS_MS.items()
            if (name, size) in found
            for met in (_met(found[name, size] <= 1000 * limit),)
        ]
        added, render = found.get((name, 1_000_000), 0.0), found.get((VLLM_TEXT, 1_000_000))
        if added > 0 and render is not None:
            times = render / added
            told.append(
                f"vLLM's `/render` of the text takes {times:,.0f} times that at 1,000,000"
                f" (at least {LEAST_VLLM:g}: {_met(times >= LEAST_VLLM)})"
            )
        if told:
            lines.append(f"- Targets over *{way}*: {'; '.join(told)}.")
    return "\n".join(lines)


def _met(met: bool) -> str:
    return "met" if met else "**missed**"
