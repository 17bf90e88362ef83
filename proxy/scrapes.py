"""``GET /metrics``: needs no key, so whoever asks often must not slow anyone down.

Invariants
1. The text is made in a thread, by one at a time: with a hundred models that takes a tenth of a second.
2. After each, so much time goes by as keeps that thread below a tenth of one processor; who asks meanwhile waits, and
   all who wait get the same text.
3. No text is older than the request for it.
"""

from __future__ import annotations

import asyncio
import time

from proxy.metrics import Metrics, openmetrics
from proxy.workers import Workers

REST = 9.0
"""Times as long as a text took to make, until the next one is made."""
MOST_REST_S = 1.0

Text = tuple[bytes, str]
"""The text, and its content type."""


class Scrapes:
    """For the event loop's thread."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._thread = Workers(1, "toktier-metrics")
        self._turn = asyncio.Lock()
        self._due = 0.0
        self._coming: dict[bool, asyncio.Task[Text]] = {}
        """Texts that are not begun yet, by whether they are OpenMetrics."""

    async def text(self, accept: str | None) -> Text:
        """The metrics as they are now, in the form that the Accept header names."""
        form = openmetrics(accept)
        coming = self._coming.get(form)
        if coming is None:
            coming = self._coming[form] = asyncio.create_task(self._make(form, accept))
        return await asyncio.shield(coming)  # others may wait for it, too

    async def _make(self, form: bool, accept: str | None) -> Text:
        loop = asyncio.get_running_loop()
        async with self._turn:
            await asyncio.sleep(self._due - loop.time())
            del self._coming[form]  # whoever comes now wants to know of what happens now
            took_s, text = await asyncio.wrap_future(self._thread.submit(self._timed, accept))
            self._due = loop.time() + min(MOST_REST_S, REST * took_s)
            return text

    def _timed(self, accept: str | None) -> tuple[float, Text]:
        start = time.thread_time()
        text = self._metrics.exposition(accept)
        return time.thread_time() - start, text

    def close(self) -> None:
        """Nobody asks any more."""
        for task in self._coming.values():
            task.cancel()
        self._thread.shutdown(wait=False)
