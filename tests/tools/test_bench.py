"""What the benchmarks write and print; and that a run compares results before it counts them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.support.models import qwen3
from tools.bench import repair
from tools.bench.records import OURS, Record, read, record, table, write
from tools.bench.texts import corpus


def test_percentiles_are_nearest_rank() -> None:
    row = record("library", "append", OURS, 10, [k * 1000 for k in range(100, 0, -1)])
    assert row == Record("library", "append", OURS, 10, 100, 50.0, 90.0, 99.0)
    assert record("a", "b", "c", 1, [3000]) == Record("a", "b", "c", 1, 1, 3.0, 3.0, 3.0)


def test_rows_survive_the_file_one_a_line(tmp_path: Path) -> None:
    rows = [Record("library", "append", engine, size, 3, 1.5, 2.0, 2.5) for engine in ("x", OURS) for size in (1, 2)]
    path = tmp_path / "new" / "rows.json"
    write(path, rows)
    assert read(path) == rows
    assert len(path.read_text().splitlines()) == len(rows) + 2


def test_the_table_has_ratios_to_ours_and_gaps() -> None:
    rows = [
        Record("library", "append", OURS, 100_000, 9, 50.0, 60.0, 70.0),
        Record("library", "append", "hf-full", 100_000, 3, 85_000.0, 86_000.0, 2_000_000.0),
        Record("library", "append", OURS, 1_000_000, 9, 51.0, 60.0, 70.0),
    ]
    assert table(rows).splitlines() == [
        "**library, append**",
        "",
        "| characters | toktier-proxy | hf-full |",
        "|---:|---:|---:|",
        "| 100,000 | 50 µs / 60 µs / 70 µs | 85 ms / 86 ms / 2 s (1,700x) |",
        "| 1,000,000 | 51 µs / 60 µs / 70 µs | - |",
    ]


def test_the_corpus_is_seeded_and_mixed() -> None:
    text = corpus(3, 50_000)
    assert len(text) == 50_000
    assert text == corpus(3, 50_000) != corpus(4, 50_000)
    assert 0.02 < sum(ord(c) > 0x2E80 for c in text) / len(text) < 0.2
    for piece in ("def ", "Z INFO [", "{", "。"):
        assert piece in text


def test_a_run_has_a_row_for_each_engine_and_fails_on_wrong_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = qwen3()
    monkeypatch.setattr(repair, "embedded", lambda: tokenizer)
    rows = repair.run([5_000])
    assert {(row.account, row.case, row.size) for row in rows} == {("library", "append", 5_000)}
    assert {row.engine: row.n for row in rows} == {OURS: 400, "hf-full": 20, "fastokens-full": 40}

    class Wrong:
        name, version = "wrong", "0"

        def encode(self, text: str) -> object:
            return tokenizer.window.encode(text[:-1])

    monkeypatch.setattr(repair, "embedded", lambda: dataclasses.replace(tokenizer, window=Wrong()))
    with pytest.raises(AssertionError, match="differ"):
        repair.run([5_000])
