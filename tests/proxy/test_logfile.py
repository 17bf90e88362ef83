from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from proxy import logfile, logs
from proxy.logfile import LogFile

ROOT = Path(__file__).resolve().parents[2]


def lines_in(folder: Path) -> list[bytes]:
    return [line for file in folder.iterdir() for line in file.read_bytes().split(b"\n") if line]


def put_all(file: LogFile, lines: list[bytes]) -> None:
    for line in lines:
        file.begin()
        file.write(line)
    file.close()


def test_old_files_are_numbered_from_the_newest(tmp_path: Path) -> None:
    put_all(LogFile(tmp_path / "log", max_bytes=10, keep_files=3), [b"%04d" % n for n in range(8)])
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {
        "log": "0006\n0007\n",
        "log.1": "0004\n0005\n",
        "log.2": "0002\n0003\n",
        "log.3": "0000\n0001\n",
    }


def test_no_more_files_than_asked_for(tmp_path: Path) -> None:
    put_all(LogFile(tmp_path / "log", max_bytes=10, keep_files=2), [b"%04d" % n for n in range(20)])
    assert sorted(f.name for f in tmp_path.iterdir()) == ["log", "log.1", "log.2"]
    assert b"".join((tmp_path / n).read_bytes() for n in ("log.2", "log.1", "log")).split() == [
        b"%04d" % n for n in range(14, 20)
    ]


def test_a_gap_is_filled_before_anything_is_removed(tmp_path: Path) -> None:
    for name in ("log.1", "log.3", "log.4"):
        (tmp_path / name).write_text(name)
    put_all(LogFile(tmp_path / "log", max_bytes=5, keep_files=4), [b"0000", b"0001"])
    assert {f.name: f.read_text() for f in tmp_path.iterdir()} == {
        "log": "0001\n",
        "log.1": "0000\n",
        "log.2": "log.1",
        "log.3": "log.3",
        "log.4": "log.4",
    }


def test_a_line_larger_than_a_file_gets_one_of_its_own(tmp_path: Path) -> None:
    put_all(LogFile(tmp_path / "log", max_bytes=5, keep_files=9), [b"a", b"b" * 50, b"c"])
    assert [(tmp_path / n).read_bytes() for n in ("log.2", "log.1", "log")] == [b"a\n", b"b" * 50 + b"\n", b"c\n"]


def test_what_another_process_left_torn_is_not_continued(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"torn')
    put_all(LogFile(tmp_path / "log"), [b"whole"])
    assert (tmp_path / "log").read_bytes() == b'{"torn\nwhole\n'


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "log").symlink_to(tmp_path / "there" / "real")
    put_all(LogFile(tmp_path / "log", max_bytes=5, keep_files=2), [b"0000", b"0001"])
    assert (tmp_path / "log").is_symlink()
    assert (tmp_path / "there" / "real.1").read_bytes() == b"0000\n"
    assert (tmp_path / "there" / "real").read_bytes() == b"0001\n"


def test_a_device_is_never_rotated() -> None:
    put_all(LogFile(Path("/dev/null"), max_bytes=1, keep_files=1), [b"0000", b"0001"])
    assert not Path("/dev/null.1").exists()


def test_somebody_elses_lock_postpones_the_rotation(tmp_path: Path) -> None:
    path = tmp_path / "log"
    file = LogFile(path, max_bytes=5, keep_files=2)
    file.begin()
    file.write(b"0000")
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    file.write(b"0001")
    assert file.problem is None
    os.close(other)
    file.write(b"0002")
    file.close()
    assert path.with_name("log.1").read_bytes() == b"0000\n0001\n"
    assert path.read_bytes() == b"0002\n"


def test_lines_in_a_removed_file_are_counted(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "log")
    file.begin()
    file.write(b"a")
    assert file.gone() == 0
    file.begin()
    file.write(b"b")
    (tmp_path / "log").unlink()
    file.write(b"c")
    assert file.gone() == 2
    file.begin()
    assert file.gone() == 0
    file.close()


# Every line is in exactly one file, or counted ------------------------------------------------------------------------

ACTIONS = ("ok", "full", "short", "move", "no_rename")
Plan = list[tuple[str, int]]


class Adversary:
    """Stands between the writer and the system: before the n-th call it does what the plan says."""

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder, self.steps = folder, iter([action for action, count in plan for _ in range(count)])
        self.moved = itertools.count()
        self.write, self.replace = os.write, os.replace

    def on_write(self, fd: int, data: bytes) -> int:
        if threading.current_thread().name != "toktier-log":
            return self.write(fd, data)
        action = next(self.steps, "ok")
        if action == "move":
            self.move()
        elif action == "full":
            raise OSError(errno.ENOSPC, "no space")
        elif action == "short":  # what a disk that fills up takes; the rest fails or, with room made, fits
            return self.write(fd, data[: len(data) // 2 or 1])
        return self.write(fd, data)

    def on_replace(self, source: str, target: str) -> None:
        action = next(self.steps, "ok")
        if action == "move":
            self.move()
        elif action == "no_rename":
            raise OSError(errno.EACCES, "not writable")
        self.replace(source, target)

    def move(self) -> None:
        with_name = self.folder / f"moved-{next(self.moved)}"
        for name in ("log", "log.1"):
            with contextlib.suppress(FileNotFoundError):
                self.replace(self.folder / name, with_name)
                return


@contextmanager
def against(adversary: Adversary) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "write", adversary.on_write)
        patched.setattr(os, "replace", adversary.on_replace)
        patched.setattr(logfile, "RETRY_S", 0.0)
        patched.setattr(logs, "_RETRY_S", 0.0)
        yield


class Recording(logs.Writer):
    """Remembers every line that was put, also what the writer says of itself."""

    def __init__(self, file: LogFile) -> None:
        self.lines: list[bytes] = []
        super().__init__(file, 100_000)

    def put(self, line: bytes) -> None:
        self.lines.append(line)
        super().put(line)


def check(folder: Path, put: list[bytes], dropped: int) -> None:
    found, expected = Counter(lines_in(folder)), Counter(put)
    assert all(found[line] <= count for line, count in expected.items()), "no line twice"
    assert (expected - found).total() == dropped
    told = 0
    for line in found:
        try:
            event = json.loads(line)
        except ValueError:
            assert any(one.startswith(line) for one in put) or line.startswith(b'{"ts'), "torn lines stand alone"
        else:
            told += event.get("lines", 0) if event.get("event") == "log_dropped" else 0
    assert told <= dropped


plans = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(1, 6)), max_size=40)


@given(
    plan=plans,
    sizes=st.lists(st.integers(0, 90), min_size=1, max_size=60),
    max_bytes=st.sampled_from([0, 1, 60, 200, 1000]),
)
@example(plan=[("short", 6), ("full", 1)], sizes=[12], max_bytes=0)  # all but the newline
@example(plan=[("short", 1), ("full", 3), ("move", 2)], sizes=[40] * 20, max_bytes=60)
@settings(max_examples=100, deadline=None)
def test_every_line_is_in_exactly_one_file_or_counted(
    tmp_path_factory: pytest.TempPathFactory, plan: Plan, sizes: list[int], max_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    put = [json.dumps({"n": n, "fill": "x" * size}).encode() for n, size in enumerate(sizes)]
    with against(Adversary(folder, plan)):
        writer = Recording(LogFile(folder / "log", max_bytes=max_bytes, keep_files=10_000))
        for line in put:
            writer.put(line)
        writer.close()
    assert not writer._thread.is_alive()
    check(folder, writer.lines, writer.dropped)


@given(plans=st.tuples(plans, plans), max_bytes=st.sampled_from([60, 200, 1000]))
@settings(max_examples=30, deadline=None)
def test_two_writers_of_one_file(
    tmp_path_factory: pytest.TempPathFactory, plans: tuple[Plan, Plan], max_bytes: int
) -> None:
    """Each writer holds a descriptor and locks of its own, as two processes do. Without short writes: what follows one
    may be another writer's line."""
    folder = tmp_path_factory.mktemp("logs")
    plan = [
        (action, count) for pair in itertools.zip_longest(*plans) for step in pair if step for action, count in [step]
    ]
    with against(Adversary(folder, [step for step in plan if step[0] != "short"])):
        writers = [Recording(LogFile(folder / "log", max_bytes=max_bytes, keep_files=10_000)) for _ in "ab"]
        for n in range(120):
            writers[n % 2].put(json.dumps({"n": n, "fill": "x" * (n % 50)}).encode())
        for writer in writers:
            writer.close()
    check(folder, writers[0].lines + writers[1].lines, sum(writer.dropped for writer in writers))


def test_two_processes_lose_and_tear_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from proxy import logs; from proxy.logfile import LogFile\n"
        "writer = logs.Writer(LogFile(Path(sys.argv[1]), max_bytes=20_000, keep_files=10_000), 10_000)\n"
        "for n in range(2000): writer.put(f'{sys.argv[2]} {n} '.encode() + b'x' * (n % 100))\n"
        "writer.close(60); assert writer.dropped == 0"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "log"), name], cwd=ROOT) for name in ("a", "b")
    ]
    assert [process.wait(60) for process in running] == [0, 0]
    expected: Counter[bytes] = Counter(
        f"{name} {n} ".encode() + b"x" * (n % 100) for name in ("a", "b") for n in range(2000)
    )
    assert Counter(lines_in(tmp_path)) == expected
    sizes: list[Any] = [file.stat().st_size for file in tmp_path.iterdir()]
    assert len(sizes) > 5, "it was rotated"
