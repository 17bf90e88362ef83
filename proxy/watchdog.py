"""A last resort: a process whose event loop stands still ends, so that whoever supervises it can start another.

Small requests are prepared on the event loop itself, where nothing that hangs can be given up: neither native code nor
a pattern that backtracks without end lets anybody else run. The interpreter's own watchdog waits without it.

Invariant: it ends the process only after the loop has run nothing for the whole time, and says on standard error where
each thread was (files, lines, functions; no values).
"""

from __future__ import annotations

import asyncio
import faulthandler
import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_CODE = 1
"""The interpreter's own; it cannot be chosen."""
_BEATS = 8
"""How often in that time the loop shows that it runs."""


@contextmanager
def watched(still_s: float) -> Iterator[None]:
    """Inside the block, in a running event loop, the process ends when the loop stands still for ``still_s`` seconds.

    0: never.
    """
    if not still_s or sys.stderr is None:
        yield
        return
    task = asyncio.get_running_loop().create_task(_beat(still_s))
    try:
        yield
    finally:
        task.cancel()
        faulthandler.cancel_dump_traceback_later()


async def _beat(still_s: float) -> None:
    while True:
        faulthandler.dump_traceback_later(still_s, exit=True)
        await asyncio.sleep(still_s / _BEATS)
