"""The quarantine: its ladder, and its file under restarts, other writers, damage and a disk that does not take it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from pathlib import Path as File

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from toktier import quarantine as module
from toktier.quarantine import Entry, Level, Quarantine, Source
from toktier.reasons import Path

WRITER = """
import sys
from pathlib import Path as File
from toktier.quarantine import Quarantine, Source
from toktier.reasons import Path
quarantine = Quarantine(File(sys.argv[1]))
for k in range(int(sys.argv[3])):
    name = f"own-{sys.argv[2]}" if k % 2 else "shared"
    quarantine.add(name, Path.EDIT, Source.SHADOW, model="m", request_id=str(k), at_reference=False)
assert quarantine.unwritable is None
"""


@pytest.fixture
def file(tmp_path: File) -> File:
    return tmp_path / "state" / "quarantine.json"


def add(
    quarantine: Quarantine, digest: str = "d", path: Path = Path.APPEND, *, at_reference: bool = False, by: str = "r"
) -> Entry:
    return quarantine.add(digest, path, Source.SHADOW, model="m", request_id=by, at_reference=at_reference)


def test_nothing_is_in_quarantine_at_first(file: File) -> None:
    quarantine = Quarantine(file)
    assert quarantine.level("d", Path.APPEND) is None
    assert not quarantine
    assert quarantine.entries() == []
    assert not quarantine.refresh()
    assert (quarantine.everything, quarantine.unreadable, quarantine.unwritable) == (None, None, None)
    assert not file.parent.exists()


def test_the_first_mismatch_takes_its_path_to_the_reference_and_no_other(file: File) -> None:
    quarantine = Quarantine(file)
    entry = add(quarantine)
    assert (entry.level, entry.count, entry.request_id, entry.source) == (Level.REFERENCE, 1, "r", Source.SHADOW)
    assert quarantine.level("d", Path.APPEND) is Level.REFERENCE
    assert quarantine.level("d", Path.EDIT) is None
    assert quarantine.level("other", Path.APPEND) is None
    assert quarantine
    assert quarantine.entries() == [entry]


def test_only_a_request_that_the_reference_served_climbs_further(file: File) -> None:
    quarantine = Quarantine(file)
    add(quarantine, by="first")
    for _ in range(3):  # in flight from before
        assert add(quarantine, by="late").level is Level.REFERENCE
    raised = add(quarantine, at_reference=True)
    assert (raised.level, raised.count, raised.request_id) == (Level.TEXT, 5, "first")
    assert add(quarantine).level is Level.TEXT
    quarantine.lift()
    # served before the lift: the first rung again, since an operator has said that all is well
    assert add(quarantine, at_reference=True).level is Level.REFERENCE


def test_a_restart_forgets_nothing(file: File) -> None:
    first = Quarantine(file)
    add(first)
    add(first, path=Path.EDIT)
    add(first, path=Path.EDIT, at_reference=True)
    second = Quarantine(file)
    assert second.entries() == first.entries()
    assert second.level("d", Path.APPEND) is Level.REFERENCE
    assert second.level("d", Path.EDIT) is Level.TEXT
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert {each.name for each in file.parent.iterdir()} == {"quarantine.json", "quarantine.json.lock"}


def test_a_running_process_sees_what_another_adds_raises_and_lifts(file: File) -> None:
    running, operator = Quarantine(file), Quarantine(file)
    entry = add(operator)
    changes = running.refresh()
    assert (changes.added, changes.lifted, changes.everything) == ((entry,), (), False)
    assert running.level("d", Path.APPEND) is Level.REFERENCE
    assert not running.refresh()
    raised = add(operator, at_reference=True)
    assert running.refresh().added == (raised,)
    assert running.level("d", Path.APPEND) is Level.TEXT
    assert operator.lift("d", Path.APPEND) == [raised]
    changes = running.refresh()
    assert (changes.added, changes.lifted) == ((), (raised,))
    assert running.level("d", Path.APPEND) is None
    assert not running


def test_a_lift_takes_what_matches(file: File) -> None:
    quarantine = Quarantine(file)
    for digest in ("a", "b"):
        for path in (Path.APPEND, Path.EDIT):
            add(quarantine, digest, path)
    assert quarantine.lift("c") == quarantine.lift("a", Path.RETRY) == []
    assert [entry.key for entry in quarantine.lift("a", Path.EDIT)] == [("a", Path.EDIT)]
    assert [entry.key for entry in quarantine.lift(path=Path.APPEND)] == [("a", Path.APPEND), ("b", Path.APPEND)]
    assert [entry.key for entry in quarantine.entries()] == [("b", Path.EDIT)]
    assert len(Quarantine(file).lift("b")) == 1
    assert Quarantine(file).entries() == []


def test_a_damaged_file_is_one_more_thing_in_quarantine(file: File) -> None:
    quarantine = Quarantine(file)
    assert len(quarantine) == 0
    add(quarantine)
    add(quarantine, path=Path.EDIT)
    assert len(quarantine) == 2
    file.write_text("no JSON")
    assert len(Quarantine(file)) == 1


def test_a_file_that_an_operator_removes_is_an_empty_one(file: File) -> None:
    quarantine = Quarantine(file)
    entry = add(quarantine)
    file.unlink()
    assert quarantine.refresh().lifted == (entry,)
    assert not quarantine


# damage


GOOD = {
    "tokenizer_digest": "d",
    "path": "append",
    "level": "text",
    "source": "usage",
    "model": "m",
    "since": "2026-11-30T00:00:00+00:00",
    "request_id": "r",
    "count": 3,
    "versions": "tokenizers 0.23",
    "stale": False,
}


def content(*entries: object, **other: object) -> bytes:
    return json.dumps({"schema": 2, "everything": None, "entries": list(entries), **other}).encode()


def test_the_format_on_disk(file: File) -> None:
    file.parent.mkdir()
    file.write_bytes(content(GOOD))
    (entry,) = Quarantine(file).entries()
    since = "2026-11-30T00:00:00+00:00"
    assert entry == Entry("d", Path.APPEND, Level.TEXT, Source.USAGE, "m", since, "r", 3, "tokenizers 0.23", False)


def old(**changes: object) -> dict[str, object]:
    """An entry as schema 1 has it."""
    return {key: value for key, value in {**GOOD, **changes}.items() if key not in ("versions", "stale")}


def test_what_an_older_version_distrusted_is_distrusted_for_every_tokenizer_until_it_is_lifted(file: File) -> None:
    file.parent.mkdir()
    first = old(tokenizer_digest="with-versions", level="reference")
    file.write_bytes(content(first, old(tokenizer_digest="with-others", path="edit"), schema=1))
    quarantine = Quarantine(file)
    assert (quarantine.everything, quarantine.unreadable) == (None, None)
    assert [(entry.tokenizer_digest, entry.stale) for entry in quarantine.entries()] == [
        ("with-others", True),
        ("with-versions", True),
    ]
    # A mismatch beside it is one of its own, and the file that then is written says as much.
    assert add(quarantine, at_reference=True).level is Level.TEXT
    for known in (quarantine, Quarantine(file)):
        assert known.level("d", Path.APPEND) is Level.TEXT
        assert known.level("another", Path.APPEND) is Level.REFERENCE
        assert known.level("another", Path.EDIT) is Level.TEXT
        assert known.level("another", Path.INIT) is None
        assert len(known) == 3
    assert add(quarantine, path=Path.EDIT).level is Level.REFERENCE, "in flight from before"
    assert quarantine.level("d", Path.EDIT) is Level.TEXT
    assert [entry.key for entry in quarantine.lift("with-versions")] == [("with-versions", Path.APPEND)]
    assert quarantine.level("another", Path.APPEND) is None
    assert len(quarantine.lift()) == 3
    assert quarantine.level("another", Path.EDIT) is None


def test_of_stale_entries_of_a_path_the_higher_level_counts(file: File) -> None:
    file.parent.mkdir()
    levels = [old(tokenizer_digest=str(n), level=level) for n, level in enumerate(("reference", "text", "reference"))]
    file.write_bytes(content(*levels, schema=1))
    assert Quarantine(file).level("any", Path.APPEND) is Level.TEXT


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        content(schema=3),
        content(old()),
        content({**GOOD, "stale": None}),
        content({**GOOD, "versions": 1}),
        content("d", schema=1),
        content(GOOD)[:-20],
        content({**GOOD, "path": "sideways"}),
        content({**GOOD, "level": "none"}),
        content({**GOOD, "source": "rumour"}),
        content({**GOOD, "count": "3"}),
        content({**GOOD, "since": None}),
        content({key: value for key, value in GOOD.items() if key != "model"}),
        content("d"),
        content(everything=5),
        b'{"schema": 1}',
    ],
)
def test_while_the_file_is_damaged_nothing_is_trusted(file: File, raw: bytes) -> None:
    file.parent.mkdir()
    file.write_bytes(raw)
    with capture_logs() as lines:
        quarantine = Quarantine(file)
    assert [(line["event"], line["log_level"]) for line in lines] == [("quarantine_unreadable", "error")]
    assert quarantine.everything is not None
    assert quarantine.unreadable
    assert quarantine
    for path in Path:
        assert quarantine.level("any", path) is Level.REFERENCE
    assert file.read_bytes() == raw


def test_damage_outlasts_additions_restarts_and_single_lifts_but_not_a_lift_of_all(file: File) -> None:
    file.parent.mkdir()
    file.write_bytes(b"{")
    add(Quarantine(file), "d", Path.EDIT)
    quarantine = Quarantine(file)
    assert quarantine.unreadable is None
    assert quarantine.level("other", Path.INIT) is Level.REFERENCE
    assert add(quarantine, "other", Path.INIT, at_reference=True).level is Level.TEXT
    assert len(quarantine.lift("d")) == 1
    since = quarantine.everything
    assert since is not None
    running = Quarantine(file)
    assert running.everything == since
    assert running.level("d", Path.EDIT) is Level.REFERENCE
    assert len(quarantine.lift()) == 1
    assert quarantine.level("other", Path.INIT) is None
    changes = running.refresh()
    assert changes.everything
    assert not running
    assert not Quarantine(file)


def test_a_file_that_gets_damaged_is_noticed_and_so_is_its_repair(file: File) -> None:
    quarantine = Quarantine(file)
    add(quarantine)
    good = file.read_bytes()
    file.write_bytes(b"garbage")
    with capture_logs() as lines:
        changes = quarantine.refresh()
        assert not quarantine.refresh()
    assert changes.everything
    assert len(lines) == 1
    assert quarantine.level("other", Path.INIT) is Level.REFERENCE
    file.write_bytes(good)
    assert quarantine.refresh().everything
    assert quarantine.level("other", Path.INIT) is None
    assert quarantine.level("d", Path.APPEND) is Level.REFERENCE


def test_a_lift_of_all_repairs_a_file_that_is_still_damaged(file: File) -> None:
    file.parent.mkdir()
    file.write_bytes(b"\0" * 100)
    operator = Quarantine(file)
    assert operator.lift("d") == []
    assert file.read_bytes() == b"\0" * 100
    assert operator.lift() == []
    assert not operator
    assert not Quarantine(file)


def test_what_cannot_be_read_is_not_trusted(file: File) -> None:
    file.mkdir(parents=True)
    quarantine = Quarantine(file)
    assert quarantine.unreadable is not None
    assert quarantine.unreadable.startswith("IsADirectoryError")
    assert quarantine.level("d", Path.INIT) is Level.REFERENCE
    below = Quarantine(File("/dev/null/quarantine.json"))
    assert below.level("d", Path.INIT) is Level.REFERENCE


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=60), st.integers(0, 400), st.integers(0, 60))
def test_whatever_the_file_holds_is_read_or_distrusted(tmp_path: File, patch: bytes, at: int, cut: int) -> None:
    good = content(GOOD, {**GOOD, "path": "edit"})
    raw = good[:at] + patch + good[at + cut :]
    file = tmp_path / "q.json"
    file.write_bytes(raw)
    quarantine = Quarantine(file)
    if quarantine.unreadable:
        assert quarantine.level("d", Path.APPEND) is Level.REFERENCE
        assert quarantine.level("x", Path.RETRY) is Level.REFERENCE
    else:
        assert all(isinstance(entry.level, Level) for entry in quarantine.entries())


# a disk that does not take it


def test_what_cannot_be_written_counts_and_is_written_later(file: File) -> None:
    lock = file.with_name("quarantine.json.lock")
    lock.mkdir(parents=True)
    quarantine = Quarantine(file)
    with capture_logs() as lines:
        entry = add(quarantine)
        assert add(quarantine).count == 2
    assert [(line["event"], line["log_level"]) for line in lines] == [("quarantine_unwritable", "error")]
    assert quarantine.unwritable is not None
    assert quarantine.level("d", Path.APPEND) is Level.REFERENCE
    assert not file.exists()
    with pytest.raises(OSError):
        quarantine.lift()
    assert quarantine.level("d", Path.APPEND) is Level.REFERENCE
    assert not quarantine.refresh()
    lock.rmdir()
    add(Quarantine(file), "elsewhere")
    assert [entry.key for entry in quarantine.refresh().added] == [("elsewhere", Path.APPEND)]
    assert quarantine.unwritable is None
    kept = {entry.key: entry.count for entry in Quarantine(file).entries()}
    assert kept == {entry.key: 2, ("elsewhere", Path.APPEND): 1}


def test_a_full_disk_leaves_the_old_file_whole(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine = Quarantine(file)
    add(quarantine)
    before = file.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        add(quarantine, path=Path.EDIT, at_reference=True)
    assert quarantine.unwritable == "OSError: No space left on device"
    assert file.read_bytes() == before
    assert len(list(file.parent.iterdir())) == 2
    assert quarantine.level("d", Path.EDIT) is Level.REFERENCE
    add(quarantine)
    assert {entry.path for entry in Quarantine(file).entries()} == {Path.APPEND, Path.EDIT}


def test_a_writer_that_never_ends_is_not_waited_for(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.05)
    quarantine = Quarantine(file)
    file.parent.mkdir()
    with open(file.with_name("quarantine.json.lock"), "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert add(quarantine).level is Level.REFERENCE
        assert quarantine.unwritable is not None
        assert quarantine.unwritable.startswith("TimeoutError")
    add(quarantine)
    assert quarantine.unwritable is None
    assert Quarantine(file).entries()[0].count == 2


def test_nothing_is_lost_among_writers_in_threads_and_processes(file: File) -> None:
    each = 16
    commands = [[sys.executable, "-c", WRITER, str(file), str(k), str(each)] for k in range(3)]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for command in commands]
    one = Quarantine(file)

    def write(number: int) -> None:
        for k in range(each):
            add(one if number % 2 else Quarantine(file), "shared", Path.EDIT, by=f"{number} {k}")

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for process in processes:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors.decode()
    counts = {entry.tokenizer_digest: entry.count for entry in Quarantine(file).entries()}
    assert counts == {"shared": 4 * each + 3 * each // 2, **{f"own-{k}": each // 2 for k in range(3)}}
    assert len(list(file.parent.iterdir())) == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_root_writes_belongs_to_the_owner_of_the_folder(tmp_path: File) -> None:
    os.chown(tmp_path, 12345, 12346)
    quarantine = Quarantine(tmp_path / "quarantine.json")
    quarantine.add("t", Path.APPEND, Source.SHADOW, model="m", request_id="r", at_reference=False)
    owners = {file.name: (file.stat().st_uid, file.stat().st_gid) for file in tmp_path.iterdir()}
    assert owners == dict.fromkeys(("quarantine.json", "quarantine.json.lock"), (12345, 12346))
