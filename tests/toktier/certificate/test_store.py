"""Tables on disk: what is read back, and what makes a kept one void."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toktier.certificate import store
from toktier.certificate.joins import Joins
from toktier.certificate.table import Table

FACTS = {"model": "BPE", "conditions": ["none"]}


def small(joins: bool) -> Table:
    numbers = np.arange(5, dtype=np.uint32)
    held = Joins(numbers, numbers + 1, np.ones(8, np.uint8)) if joins else None
    return Table(np.zeros(4, np.uint8), np.ones((2, 2), np.uint8), np.array([True, False]), held)


@pytest.mark.parametrize("joins", [False, True])
def test_round_trip(tmp_path: Path, joins: bool) -> None:
    store.store(tmp_path, "k", "engine 1", small(joins), FACTS)
    found = store.load(tmp_path, "k", "engine 1")
    assert found is not None
    table, facts = found
    assert facts == FACTS
    for name in ("classes", "matrix", "boundary"):
        assert np.array_equal(getattr(table, name), getattr(small(joins), name))
    assert (table.joins is not None) == joins
    if table.joins is not None:
        assert table.joins.left.tolist() == [0, 1, 2, 3, 4]
        assert table.joins.right.tolist() == [1, 2, 3, 4, 5]


def test_another_key_engine_or_derivation_is_another_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.store(tmp_path, "k", "engine 1", small(False), FACTS)
    assert store.load(tmp_path, "other", "engine 1") is None
    assert store.load(tmp_path, "k", "engine 2") is None
    monkeypatch.setattr(store, "derivation", lambda: "changed source")
    assert store.load(tmp_path, "k", "engine 1") is None


@pytest.mark.parametrize("keep", [0, 10, 40, -1])
def test_a_damaged_file_is_no_table(tmp_path: Path, keep: int) -> None:
    store.store(tmp_path, "k", "e", small(False), FACTS)
    (path,) = (tmp_path / "certificates").iterdir()
    path.write_bytes(path.read_bytes()[:keep])
    assert store.load(tmp_path, "k", "e") is None
    path.write_bytes(b"x" * 200)
    assert store.load(tmp_path, "k", "e") is None


def test_no_folder_no_key_no_cache(tmp_path: Path) -> None:
    store.store(None, "k", "e", small(False), FACTS)
    store.store(tmp_path, None, "e", small(False), FACTS)
    (tmp_path / "certificates").write_text("in the way")
    store.store(tmp_path, "k", "e", small(False), FACTS)
    assert store.load(tmp_path, "k", "e") is None
