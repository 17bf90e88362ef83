"""What is kept on disk: whole or not at all, and nothing else beside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.full_disk import full_disk
from toktier import kept
from toktier.certificate import store
from toktier.certificate.classes import Probe
from toktier.certificate.regex import Atom
from toktier.certificate.table import Table


def test_what_was_stored_is_loaded(tmp_path: Path) -> None:
    kept.store(tmp_path / "new", "name", {"a": 1})
    assert kept.load(tmp_path / "new", "name") == {"a": 1}
    kept.store(tmp_path / "new", "name", {"a": 2})
    assert kept.load(tmp_path / "new", "name") == {"a": 2}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["name.json"]
    kept.store(None, "name", {})
    assert kept.load(None, "name") == kept.load(tmp_path, "absent") == {}


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_none(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "name.json").write_bytes(damage)
    assert kept.load(tmp_path, "name") == {}


def test_no_changed_byte_is_believed(tmp_path: Path) -> None:
    kept.store(tmp_path, "name", {"unsafe": [383], "refusal": None})
    (file,) = tmp_path.iterdir()
    right = file.read_bytes()
    for place in range(len(right)):
        for bit in (1, 2, 4, 8, 16):
            wrong = bytearray(right)
            wrong[place] ^= bit
            file.write_bytes(wrong)
            # White space, and the case of a digit of an escape, are all that may differ.
            assert kept.load(tmp_path, "name") in ({}, {"unsafe": [383], "refusal": None}), (place, bit)
    file.write_bytes(right.replace(b"383", b"393"))
    assert kept.load(tmp_path, "name") == {}
    file.write_bytes(b'{"unsafe": [383], "refusal": null}')
    assert kept.load(tmp_path, "name") == {}, "nor one without a digest"


@pytest.mark.parametrize("limit", [0, 20])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path, limit: int) -> None:
    kept.store(tmp_path, "name", {"a": 1})
    with full_disk(limit):
        assert not kept.write(tmp_path / "name.json", b"x" * 100)
        assert not kept.write(tmp_path / "other.json", b"x" * 100)
        kept.store(tmp_path, "name", {"a": "x" * 100})
    assert kept.load(tmp_path, "name") == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["name.json"]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    assert not kept.write(tmp_path / "file" / "name.json", b"x")


def test_tables_and_sets_that_do_not_fit_are_derived_again(tmp_path: Path) -> None:
    table = Table(np.zeros(0x110000, np.uint8), np.ones((1, 1), np.uint8), np.ones(1, np.bool_))
    with full_disk(10):
        store.store(tmp_path, "key", "engine", table, {})
        (found,) = Probe(tmp_path).atoms([Atom("[ab]", "test")])
    assert found.tolist() == [97, 99]
    assert store.load(tmp_path, "key", "engine") is None
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
