"""What can be seen of a process from outside: its memory, descriptors, threads and children (Linux), and its log."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Seen:
    """One look. ``at``: seconds on `time.monotonic`; ``rss``: bytes; ``fds`` and ``sockets`` are counts."""

    at: float
    rss: int
    threads: int
    fds: int
    sockets: int
    children: int
    held: int = 0
    """Bytes that sessions hold, by the proxy's own count."""

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def look(pid: int) -> Seen:
    """The process as it is now. Raises OSError when it is gone."""
    folder = Path("/proc", str(pid))
    kinds = []
    for entry in os.listdir(folder / "fd"):
        with contextlib.suppress(OSError):  # closed meanwhile
            kinds.append(os.readlink(folder / "fd" / entry).partition(":")[0])
    return Seen(
        at=time.monotonic(),
        rss=int((folder / "statm").read_text().split()[1]) * _PAGE,
        threads=len(os.listdir(folder / "task")),
        fds=len(kinds),
        sockets=kinds.count("socket"),
        children=len(children(pid)),
    )


def children(pid: int) -> dict[int, str]:
    """The live processes that ``pid`` started itself, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if int(parent) == pid and state != "Z":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    return found


def alive(pid: int) -> bool:
    """Whether there is such a process."""
    return Path("/proc", str(pid)).exists()


def slope(points: list[tuple[float, float]]) -> float:
    """Of the straight line through the points that fits best (least squares); 0 for fewer than two."""
    if len(points) < 2:
        return 0.0
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0


class LogTail:
    """Reads a growing log of JSON lines, each line once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def lines(self) -> Iterator[dict[str, Any]]:
        """The whole lines that came since the last call."""
        with self._path.open("rb") as file:
            file.seek(self._at)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._at += len(raw)
                yield json.loads(raw)
