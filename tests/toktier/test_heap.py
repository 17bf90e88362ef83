from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from toktier import heap

PROGRAM = """
import ctypes, pathlib
from toktier.heap import give_back

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
blocks = [libc.malloc(60_000) for _ in range(1000)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 60_000)
keep = libc.malloc(60_000)
for block in blocks:
    libc.free(ctypes.c_void_p(block))
before = resident()
give_back()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_what_is_free_goes_back() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert int(said.stdout) > 40_000_000


def test_where_the_library_cannot_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "_libc", object())
    heap.give_back()
