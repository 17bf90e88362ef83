"""The proxy of a checkout, as `toktier serve` runs it, with a task that notes how late its event loop runs.

``python lag_proxy.py CHECKOUT OUT CONFIG``. At its end OUT holds pairs of float64: a time of `time.monotonic`, and by
how many seconds a sleep of `EVERY_S` that ended then was too long. Nothing in the proxy knows of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from array import array
from collections.abc import AsyncIterator
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
    while True:
        before = time.monotonic()
        await asyncio.sleep(EVERY_S)
        now = time.monotonic()
        noted.append(now)
        noted.append(now - before - EVERY_S)


if __name__ == "__main__":
    sys.exit(main())
