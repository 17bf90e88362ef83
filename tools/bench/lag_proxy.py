"""The proxy of a checkout, as `toktier serve` runs it, with a task that notes how late its event loop runs.

``python lag_proxy.py CHECKOUT OUT CONFIG``. At its end OUT holds float64 in threes: a time of `time.monotonic`, by how
many seconds a sleep of `EVERY_S` that ended then was too long, and for how many of them the process can have been the
cause: not those in which the loop's thread waited for a CPU, nor more than all threads together used. Nothing in the
proxy knows of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from array import array
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

EVERY_S = 0.001


def main() -> int:
    checkout, out, file = sys.argv[1:]
    sys.path.insert(0, checkout)
    from proxy import app, config, serve

    noted = array("d")
    create_app = app.create_app

    async def watch(_app: Any) -> AsyncIterator[None]:
        task = asyncio.create_task(_note(noted))
        yield
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    def watched(*arguments: Any, **options: Any) -> Any:
        made = create_app(*arguments, **options)
        made.cleanup_ctx.append(watch)
        return made

    app.create_app = watched

    def read() -> Any:
        return config.load(Path(file))

    code: int = serve.run(read(), read)
    Path(out).write_bytes(noted.tobytes())
    return code


async def _note(noted: array[float]) -> None:
    starved = _starved()
    while True:
        before, used, queued = time.monotonic(), time.process_time(), starved()
        await asyncio.sleep(EVERY_S)
        now = time.monotonic()
        late = now - before - EVERY_S
        noted.extend((now, late, max(0.0, min(late - starved() + queued, time.process_time() - used))))


def _starved() -> Callable[[], float]:
    """For how many seconds this thread has been ready to run and had no CPU, so far. (Linux.)"""
    file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
    return lambda: int(os.pread(file, 64, 0).split()[1]) / 1e9


if __name__ == "__main__":
    sys.exit(main())
