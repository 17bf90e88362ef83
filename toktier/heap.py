"""Memory that was needed for a while and is free now goes back to the machine."""

from __future__ import annotations

import ctypes

_libc = ctypes.CDLL(None)


def give_back() -> None:
    """Where the C library can be asked to (glibc): tens of milliseconds, without the GIL. Elsewhere nothing.

    By itself glibc keeps the pages below the last ones in use: 200 MB of them after a tokenizer's load. A thread that
    allocates from the same arena meanwhile waits; a load is done in a thread that has its own.
    """
    if hasattr(_libc, "malloc_trim"):
        _libc.malloc_trim(0)
