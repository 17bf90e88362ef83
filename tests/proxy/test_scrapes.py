"""Who asks for the metrics, however often, gets what is true now, and slows nobody down."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator

import pytest

from proxy import scrapes
from proxy.metrics import Metrics
from proxy.scrapes import Scrapes


class Slow(Metrics):
    """Makes no text before it may; notes in which thread, and how many at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Semaphore(0)
        self.threads: list[str] = []
        self.at_once = self.most_at_once = 0
        self.fails = False

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        self.threads.append(threading.current_thread().name)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        assert self.may.acquire(timeout=20)
        self.at_once -= 1
        if self.fails:
            raise ValueError
        return f"{len(self.threads)} {accept}".encode(), "text/plain"


@pytest.fixture
async def slow() -> AsyncIterator[tuple[Slow, Scrapes]]:
    metrics = Slow()
    made = Scrapes(metrics)
    yield metrics, made
    made.close()


async def begun(metrics: Slow, count: int) -> None:
    async with asyncio.timeout(20):
        while len(metrics.threads) < count:
            await asyncio.sleep(0.001)


async def test_all_who_wait_share_one_text_made_after_they_asked(slow: tuple[Slow, Scrapes]) -> None:
    metrics, made = slow
    first = asyncio.create_task(made.text(None))
    await begun(metrics, 1)
    later = [asyncio.create_task(made.text(None)) for _ in range(50)]
    other = asyncio.create_task(made.text("application/openmetrics-text"))
    await asyncio.sleep(0)
    later.pop().cancel()  # the others still get it
    metrics.may.release(3)
    assert (await first)[0] == b"1 None"
    assert {text for text, _ in await asyncio.gather(*later)} == {b"2 None"}, "the first may not know what they know"
    assert (await other)[0] == b"3 application/openmetrics-text"
    assert (len(metrics.threads), metrics.most_at_once) == (3, 1)
    assert all(name.startswith("toktier-metrics") for name in metrics.threads)


async def test_the_thread_rests_in_proportion(slow: tuple[Slow, Scrapes], monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, made = slow
    took = iter((0.0, 0.004, 0.0, 100.0))
    monkeypatch.setattr(made, "_timed", lambda accept: (next(took), metrics.exposition(accept)))
    loop = asyncio.get_running_loop()
    metrics.may.release(10)
    for rests in (0.0, 0.036, 0.0, scrapes.MOST_REST_S):
        before = loop.time()
        await made.text(None)
        assert before + rests <= made._due <= loop.time() + rests
    before = loop.time()
    made._due = before + 0.05
    took = iter((0.0,))
    await made.text(None)
    assert loop.time() >= before + 0.05


async def test_a_text_that_fails_does_not_end_it(slow: tuple[Slow, Scrapes]) -> None:
    metrics, made = slow
    metrics.may.release(2)
    metrics.fails = True
    with pytest.raises(ValueError):
        await made.text(None)
    metrics.fails = False
    assert (await made.text(None))[0] == b"2 None"
