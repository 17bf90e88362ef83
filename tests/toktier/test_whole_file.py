"""Files are whole or not there, and nothing is left beside them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.full_disk import full_disk
from toktier import whole_file
from toktier.whole_file import whole


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_it_has_its_name_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with whole(path) as file:
        file.write(b"one")
        assert not path.exists()
        assert len(names(tmp_path)) == 1
    assert path.read_bytes() == b"one"
    assert path.stat().st_mode & 0o777 == 0o600
    with whole(path) as file:
        file.write(b"two")
        file.flush()
        assert path.read_bytes() == b"one"
    assert path.read_bytes() == b"two"
    assert names(tmp_path) == ["a.json"]


def test_an_error_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with pytest.raises(KeyError), whole(path) as file:
        file.write({b"new": b"x"}[b"absent"])
    with full_disk(2), pytest.raises(OSError), whole(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"old"
    assert names(tmp_path) == ["a"]
    with pytest.raises(OSError), whole(tmp_path / "absent" / "a"):
        pass


def test_a_link_leaves_a_file_that_is_there_alone(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with whole(path, put=os.link) as file:
        file.write(b"first")
    with pytest.raises(FileExistsError), whole(path, put=os.link) as file:
        file.write(b"second")
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["a"]


@pytest.mark.parametrize("durable", [False, True])
def test_what_must_be_durable_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, durable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def fsync(handle: int) -> None:
        assert os.fstat(handle).st_size == 1
        done.append("sync")

    def put(part: str, path: Any) -> None:
        done.append("name")
        os.replace(part, path)

    monkeypatch.setattr(whole_file.os, "fsync", fsync)
    with whole(tmp_path / "a", durable=durable, put=put) as file:
        file.write(b"x")
    assert done == (["sync", "name"] if durable else ["name"])
