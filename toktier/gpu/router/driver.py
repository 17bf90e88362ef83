"""Whether there is a CUDA driver: all that is asked on a machine without one."""

from __future__ import annotations

import ctypes


def driver_there() -> bool:
    """A look for the driver's library, and nothing else."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True
