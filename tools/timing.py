"""Can a tenant tell by the time of its own request whether another tenant sent the same text before?

``python -m tools.timing [--trials N] [--chars C] [--json FILE]``. A trial draws a text of words that were never seen.
By a fair coin tenant A sends that text, or another one of the same kind; then tenant B sends the text and is timed.
What could tell the two apart is state that A's request left behind: sessions, words that an engine remembers, memory
that is warm. The settings:

- ``proxy``: through a running proxy, as an attacker sees it.
- ``proxy, same tenant``: B is A. It must be seen easily, or the measurement has no power.
- ``proxy, window off``: as ``proxy``, with the reference as the only engine.
- ``reference`` and ``window``: the engines alone, in this process, in CPU time: without the noise of HTTP and of
  whatever else runs.

`Row.auc` is the probability that a request after A's is faster than one without, 0.5 being chance: the best that any
attacker can do with one look at one number. ``p`` is that of a Mann-Whitney test.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import math
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import numpy.typing as npt

from proxy.config import load
from toktier.tokenizer import embedded
from tools.traffic.engine import CHAT, Engine, reference_ids
from tools.traffic.process import Served, config

Times = npt.NDArray[np.float64]
_KEYS = {"a": "tenant-a-key", "b": "tenant-b-key"}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Row:
    """One setting. Times in microseconds; ``after``: A had sent the text, ``without``: it had not."""

    what: str
    chars: int
    trials: int
    after_median_us: float
    without_median_us: float
    difference_us: float
    """Of the medians; above 0: faster after A's request."""
    cohens_d: float
    auc: float
    p: float


def words(chance: random.Random, chars: int) -> str:
    """About ``chars`` characters of words that no one has seen."""
    return " ".join("".join(chance.choices(_LETTERS, k=chance.randrange(6, 13))) for _ in range(chars // 10))


def row(what: str, chars: int, after: list[float], without: list[float]) -> Row:
    """What two samples of seconds say."""
    a, b = np.array(after) * 1e6, np.array(without) * 1e6
    auc, p = mann_whitney(a, b)
    pooled = math.sqrt((a.var(ddof=1) + b.var(ddof=1)) / 2)
    medians = float(np.median(a)), float(np.median(b))
    d = float((b.mean() - a.mean()) / pooled)
    return Row(
        what=what,
        chars=chars,
        trials=len(a) + len(b),
        after_median_us=round(medians[0], 1),
        without_median_us=round(medians[1], 1),
        difference_us=round(medians[1] - medians[0], 1),
        cohens_d=round(d, 3),
        auc=round(auc, 3),
        p=float(f"{p:.2g}"),
    )


def mann_whitney(a: Times, b: Times) -> tuple[float, float]:
    """The share of pairs in which the one of ``a`` is smaller (ties count half), and p of the two-sided test."""
    both = np.concatenate([a, b])
    _, place, counts = np.unique(both, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    ranks = (ends - (counts - 1) / 2)[place]
    n, m = len(a), len(b)
    larger = ranks[:n].sum() - n * (n + 1) / 2
    auc = 1 - larger / (n * m)
    ties = float((counts**3 - counts).sum())
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    z = abs(larger - n * m / 2) / math.sqrt(variance)
    return float(auc), math.erfc(z / math.sqrt(2))


def of_engine(what: str, encode: Callable[[str], Any], trials: int, chars: int, chance: random.Random) -> Row:
    """An engine alone."""
    times: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    for _ in range(trials):
        text, other, coin = words(chance, chars), words(chance, chars), chance.random() < 0.5
        encode(text if coin else other)
        start = time.process_time()
        encode(text)
        times[not coin].append(time.process_time() - start)
    gc.enable()
    return row(what, chars, *times)


async def of_proxy(what: str, second: str, trials: int, chars: int, chance: random.Random, **tables: Any) -> Row:
    """A running proxy with two tenants; ``second`` is the one that is timed."""
    times: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("".join(f"{name}:{key}\n" for name, key in _KEYS.items()))
        tree = {"auth": {"mode": "keys", "key_file": str(keys)}, **tables}
        async with (
            Engine(reference_ids()) as engine,
            Served(config(engine.url, **tree)) as proxy,
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=1)) as client,
        ):

            async def ask(tenant: str, text: str) -> float:
                raw = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()
                headers = {"Authorization": f"Bearer {_KEYS[tenant]}", "Content-Type": "application/json"}
                start = time.perf_counter()
                async with client.post(proxy.url + CHAT, data=raw, headers=headers) as reply:
                    await reply.read()
                    assert reply.status == 200
                return time.perf_counter() - start

            for number in range(trials + 20):
                text, other, coin = words(chance, chars), words(chance, chars), chance.random() < 0.5
                await ask("a", text if coin else other)
                taken = await ask(second, text)
                if number >= 20:  # the first ones warm up connections and caches
                    times[not coin].append(taken)
    return row(what, chars, *times)


def measure(trials: int, chars: int, seed: int) -> Iterator[Row]:
    """All settings."""
    chance = random.Random(seed)
    tokenizer = embedded(cache_dir=load(None).server.cache_dir)
    yield of_engine("reference", tokenizer.reference.encode, trials, chars, chance)
    yield of_engine("window", tokenizer.window.encode, trials, chars, chance)
    yield asyncio.run(of_proxy("proxy", "b", trials, chars, chance))
    yield asyncio.run(of_proxy("proxy, same tenant", "a", trials, chars, chance))
    yield asyncio.run(of_proxy("proxy, window off", "b", trials, chars, chance, model={"window": "off"}))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.timing", description=__doc__)
    parser.add_argument("--trials", type=int, default=1_000)
    parser.add_argument("--chars", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for the rows")
    args = parser.parse_args()
    rows = []
    for found in measure(args.trials, args.chars, args.seed):
        print(found, flush=True)
        rows.append(asdict(found))
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
