from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog

from proxy import logs
from proxy.config import Log
from toktier.reasons import Bypass


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "toktier.log"
    logs.configure(Log()).close()
    structlog.reset_defaults()
    logging.getLogger().handlers = [h for h in logging.getLogger().handlers if not isinstance(h, logs._FromLogging)]


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_line_is_whole_json_with_the_common_fields_first(path: Path) -> None:
    log = logs.configure(Log(path=path))
    structlog.get_logger().info(
        "hello", b=1, a=Bypass.ECHO, path=Path("/x"), nothing=None, nan=float("nan"), s="\ud800é"
    )
    log.close()
    raw = path.read_bytes()
    assert raw.endswith(b"\n")
    assert raw.isascii()
    line = json.loads(raw)
    assert list(line)[:4] == ["ts", "level", "schema", "event"]
    assert (line["level"], line["schema"], line["event"]) == ("info", 1, "hello")
    assert (line["a"], line["b"], line["path"], line["nothing"], line["nan"]) == ("echo", 1, "/x", None, None)
    assert time.strptime(line["ts"], "%Y-%m-%dT%H:%M:%S.%fZ")


def test_no_text_ids_or_bytes_get_through(path: Path) -> None:
    log = logs.configure(Log(path=path))
    structlog.get_logger().info(
        "x",
        text="prompt " * 100,
        ids=[1, 2, 3],
        many=np.arange(5),
        nested={"a": [7, 8], "deep": {"b": {"c": {"d": "CANARY"}}}},
        raw=b"CANARY",
        thing=object(),
    )
    log.close()
    (line,) = written(path)
    assert line["text"] == "<str of 700>"
    assert line["ids"] == "<list of 3>"
    assert line["many"] == "<ndarray of 5>"
    assert line["nested"]["a"] == "<list of 2>"
    assert line["raw"] == "<bytes of 6>"
    assert line["thing"] == "<object>"
    assert "CANARY" not in path.read_text()


def test_exceptions_keep_type_and_place_only(path: Path) -> None:
    log = logs.configure(Log(path=path))

    def fail() -> None:
        try:
            raise KeyError("CANARY inner")
        except KeyError as error:
            raise ValueError("CANARY outer") from error

    try:
        fail()
    except ValueError as error:
        structlog.get_logger().exception("caught")
        structlog.get_logger().error("given", exc_info=error)
        structlog.get_logger().info("as value", problem=error)
    log.close()
    lines = written(path)
    assert [line["level"] for line in lines] == ["error", "error", "info"]
    for shown in (lines[0]["exception"], lines[1]["exception"], lines[2]["problem"]):
        assert shown["type"] == ["ValueError", "KeyError"]
        assert shown["at"][-1].startswith("tests/proxy/test_logs.py:")
        assert shown["at"][-1].endswith(" fail")
    assert "CANARY" not in path.read_text()


def test_libraries_are_heard_without_their_words(path: Path) -> None:
    log = logs.configure(Log(path=path))
    logging.getLogger("aiohttp.server").error("Error handling %s", "CANARY", exc_info=ValueError("CANARY"))
    logging.getLogger("asyncio").warning("CANARY")
    logging.getLogger("chatty").info("CANARY")
    log.close()
    error, warning = written(path)
    assert (error["event"], error["logger"], error["level"]) == ("library", "aiohttp.server", "error")
    assert error["exception"]["type"] == ["ValueError"]
    assert error["at"].startswith("tests/proxy/test_logs.py:")
    assert (warning["logger"], warning["level"]) == ("asyncio", "warning")
    assert "CANARY" not in path.read_text()


def test_level_and_its_change(path: Path) -> None:
    log = logs.configure(Log(path=path, level="warning"))
    logger = structlog.get_logger()
    logger.info("no")
    logger.warning("yes")
    log.apply(Log(path=path, level="debug"))
    logger.debug("yes")
    log.close()
    assert [line["event"] for line in written(path)] == ["yes", "yes"]


def test_a_second_configuration_replaces_the_first(path: Path) -> None:
    logs.configure(Log(path=path))
    structlog.get_logger().info("one")
    second = logs.configure(Log(path=path.with_name("second")))
    structlog.get_logger().info("two")
    logging.getLogger("x").error("two")
    second.close()
    assert [line["event"] for line in written(path)] == ["one"]
    assert [line["event"] for line in written(path.with_name("second"))] == ["two", "library"]


def test_rotation_begins_a_new_file(path: Path) -> None:
    log = logs.configure(Log(path=path))
    structlog.get_logger().info("one")
    wait_for(lambda: path.exists() and path.stat().st_size > 0)
    path.rename(path.with_name("old"))
    structlog.get_logger().info("two")
    log.close()
    assert [line["event"] for line in written(path.with_name("old"))] == ["one"]
    assert [line["event"] for line in written(path)] == ["two"]


def test_the_file_is_rotated_as_configured_and_as_applied_later(path: Path) -> None:
    log = logs.configure(Log(path=path, max_bytes=65_536, keep_files=2))
    for number in range(1000):
        structlog.get_logger().info("filler", number=number, padding="x" * 100)
    wait_for(lambda: path.with_name("toktier.log.2").exists())
    log.apply(Log(path=path))  # no more rotation
    for number in range(1000, 2000):
        structlog.get_logger().info("filler", number=number, padding="x" * 100)
    log.close()
    assert not path.with_name("toktier.log.3").exists()
    assert path.with_name("toktier.log.1").stat().st_size <= 65_536 < path.stat().st_size
    numbers = [
        line["number"]
        for name in ("toktier.log.2", "toktier.log.1", "toktier.log")
        for line in written(path.with_name(name))
    ]
    assert numbers == list(range(numbers[0], 2000))
    assert log.writer.dropped == 0


def test_a_rotation_that_fails_is_told_once_and_costs_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(errno.EACCES, "not writable")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", refuse)
        log = logs.configure(Log(path=path, max_bytes=65_536))
        for number in range(600):
            structlog.get_logger().info("filler", number=number, padding="x" * 100)
        log.close()
    lines = written(path)
    assert [line["number"] for line in lines if line["event"] == "filler"] == list(range(600))
    (told,) = [line for line in lines if line["event"] != "filler"]
    assert (told["event"], told["level"], told["reason"]) == ("log_not_rotated", "warning", "EACCES")


def test_a_full_disk_loses_counted_lines_and_nothing_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, full = os.write, [False]

    def write(fd: int, data: bytes) -> int:
        if full[0] and os.fstat(fd).st_ino == path.stat().st_ino:
            real(fd, data[:5])  # a torn line, as a disk that fills up leaves it
            raise OSError(errno.ENOSPC, "no space")
        return real(fd, data)

    monkeypatch.setattr(os, "write", write)
    log = logs.configure(Log(path=path))
    structlog.get_logger().info("before")
    wait_for(lambda: path.exists() and path.stat().st_size > 0)
    full[0] = True
    structlog.get_logger().info("lost")
    wait_for(lambda: log.writer.dropped == 1)
    assert logs.dropped_lines() == 1
    full[0] = False
    structlog.get_logger().info("after")
    log.close()
    whole = []
    for line in path.read_bytes().splitlines():
        try:
            whole.append(json.loads(line))
        except ValueError:
            assert line == b'{"ts"', "the torn line stands alone"
    assert [line["event"] for line in whole] == ["before", "log_dropped", "after"]
    assert whole[1]["lines"] == 1
    assert whole[1].keys() >= {"ts", "level", "schema"}


def test_an_absent_folder_never_fails_a_caller(path: Path) -> None:
    log = logs.configure(Log(path=path.parent / "absent" / "x.log", queue_lines=100))
    for _ in range(500):
        structlog.get_logger().info("lost")
    log.close()
    assert log.writer.dropped == 500


def test_a_stuck_reader_costs_lines_not_time(path: Path) -> None:
    os.mkfifo(path)  # opening a pipe for writing blocks until somebody reads
    log = logs.configure(Log(path=path, queue_lines=100))
    start = time.monotonic()
    for _ in range(1000):
        structlog.get_logger().info("x")
    assert time.monotonic() - start < 5, "the caller does not wait for the reader"
    assert log.writer.dropped >= 1000 - 100 - 256 - 1
    reader = os.open(path, os.O_RDONLY)
    log.close()
    os.close(reader)


def test_standard_output_is_the_default(tmp_path: Path) -> None:
    code = (
        "import structlog; from proxy import logs; from proxy.config import Log\n"
        "log = logs.configure(Log()); structlog.get_logger().info('hello'); log.close()"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, cwd=root, timeout=60)
    assert json.loads(done.stdout)["event"] == "hello"
    assert done.stderr == b""


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.005)
