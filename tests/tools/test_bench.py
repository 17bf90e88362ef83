"""What the benchmarks write and print; and that a run compares results before it counts them."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support.tokenizer_files import CACHE, small_spec
from tests.support.tokenizer_files import write as write_tokenizer
from toktier.tokenizer import FrozenTokenizer
from tools.bench import campaigns, cuts, derive, families, full, lag, records
from tools.bench.records import OURS, Record, read, record, table, write
from tools.bench.texts import STYLES, WORST, corpus, styled, worst
from tools.bench.worker import Unmeasured, Worker


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


def test_engines_may_be_called_otherwise_and_ours_have_no_ratio() -> None:
    rows = [
        Record("proxy", "added", OURS, 10, 9, 50.0, 60.0, 70.0),
        Record("proxy", "added", "over", 10, 9, 100.0, 60.0, 70.0, note="why"),
        Record("proxy", "added", "other", 10, 9, 100.0, 60.0, 70.0),
    ]
    told = table(rows, medians=True, names={OURS: f"{OURS}, a", "over": f"{OURS}, b"}).splitlines()
    assert told[2] == f"| characters | {OURS}, a | {OURS}, b | other |"
    assert told[4:] == ["| 10 | 50 µs | 100 µs | 100 µs (2x) |", "", f"- {OURS}, b, 10 characters: why"]


def test_the_corpus_is_seeded_and_mixed() -> None:
    text = corpus(3, 50_000)
    assert len(text) == 50_000
    assert text == corpus(3, 50_000) != corpus(4, 50_000)
    assert 0.02 < sum(ord(c) > 0x2E80 for c in text) / len(text) < 0.2
    for piece in ("def ", "Z INFO [", "{", "。"):
        assert piece in text


def test_a_row_without_a_number_says_why_and_one_with_a_number_may(tmp_path: Path) -> None:
    rows = [
        Record("library", "append", OURS, 10, 9, 50.0, 60.0, 70.0, served=1_000_000, scanned=100),
        Record("library", "append", "near", 10, 9, 440.0, 450.0, 460.0, note="other IDs"),
        Record("library", "append", "near", 20, 9, 440.0, 450.0, 460.0, note="other IDs"),
        records.unmeasured("library", "append", "absent", 10, "no network"),
        record("library", "append", "faster", 10, [25_000]),
    ]
    write(tmp_path / "rows.json", rows)
    assert read(tmp_path / "rows.json") == rows
    assert table(rows).splitlines()[2:] == [
        "| characters | toktier-proxy | near | absent | faster |",
        "|---:|---:|---:|---:|---:|",
        "| 10 | 50 µs / 60 µs / 70 µs | 440 µs / 450 µs / 460 µs (8.8x) | - | 25 µs / 25 µs / 25 µs (0.5x) |",
        "| 20 | - | 440 µs / 450 µs / 460 µs | - | - |",
        "",
        "- near, 10, 20 characters: other IDs",
        "- absent, 10 characters: no network",
    ]
    assert table(rows, medians=True).splitlines()[4] == "| 10 | 50 µs | 440 µs (8.8x) | - | 25 µs (0.5x) |"
    assert records.throughput(rows).splitlines()[2:] == [
        "| library, append | toktier-proxy | 10 | 20 GB/s | 2 MB/s |",
    ]
    assert records.in_words(-1500) == "-1.5 ms"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer folder that loads in a moment."""
    return write_tokenizer(tmp_path_factory.mktemp("bench") / "small", small_spec())


@pytest.mark.parametrize("kind", WORST)
def test_worst_texts_are_exact_and_seeded(kind: str) -> None:
    text = worst(kind, 1, 10_001, "<|x|>")
    assert len(text) == 10_001
    assert text == worst(kind, 1, 10_001, "<|x|>")
    assert len(set(text)) == {"one letter": 1, "spaces": 1, "newlines": 1, "one literal": 4, "digits": 10}.get(
        kind, len(set(text))
    )


def test_each_style_is_its_own() -> None:
    texts = {style: styled(style, 2, 5_000) for style in STYLES}
    assert {len(text) for text in texts.values()} == {5_000}
    assert "def " in texts["code"]
    assert "INFO" in texts["logs"]
    assert sum(ord(c) > 0x2E80 for c in texts["CJK"]) > 4_000
    assert texts["prose"].isascii()


def test_distances_between_cuts(small: Path) -> None:
    rows = cuts.run([small], CACHE, size=20_000)
    assert [row.text for row in rows] == list(STYLES)
    certificate = FrozenTokenizer.load(small, cache_dir=CACHE, window=False).certificate
    assert certificate is not None
    for row in rows:
        text = styled(row.text, 1, 20_000)
        places = [0, *(i for i in range(1, len(text)) if certificate.is_cut(text, i)), len(text)]
        distances = [b - a for a, b in pairwise(places)]
        assert row.cuts == len(places) - 2 > 100
        assert row.longest == max(distances)
        assert row.mean == round(len(text) / len(distances), 2)
        assert row.mean <= row.p9999 <= row.longest
    assert "/" in cuts.table(rows).splitlines()[2]


def test_a_tokenizer_without_a_certificate_has_a_dash(tmp_path: Path) -> None:
    refused = small_spec()
    refused["pre_tokenizer"] = {
        "type": "Split", "pattern": {"Regex": r"(?<=a)b|."}, "behavior": "Isolated", "invert": False
    }  # fmt: skip
    rows = cuts.run([write_tokenizer(tmp_path / "refused", refused)], CACHE, size=100)
    assert {row.cuts for row in rows} == {0}
    assert cuts.table(rows).splitlines()[2] == "| refused | - | - | - | - |"


def test_a_worker_measures_and_says_what_it_cannot(small: Path) -> None:
    with Worker(small, 1, CACHE, 60.0) as worker:
        found = {engine: worker.measure(engine, "fresh", 3_000, 1) for engine in (OURS, "hf-full", "hf-encode")}
        assert all(nanoseconds > 0 for nanoseconds, _ in found.values())
        assert len({ids for _, ids in found.values()}) == 1
        assert worker.measure(OURS, "fresh", 3_000, 2)[1] != found[OURS][1]
        assert worker.measure(OURS, "one literal", 3_000, 1)[1] == worker.measure("hf-full", "one literal", 3_000, 1)[1]
        with pytest.raises(Unmeasured, match="no such engine"):
            worker.measure("absent", "fresh", 10, 1)
        worker._timeout_s = 0.2
        with pytest.raises(Unmeasured, match="not within"):
            worker.measure("hf-full", "code", 20_000_000, 1)
        worker._timeout_s = 60.0
        assert worker.measure(OURS, "fresh", 3_000, 1)[1] == found[OURS][1], "a new process after one that was ended"


class FakeWorker:
    """Answers from a table: engine and text to milliseconds, or why there is none."""

    answers: ClassVar[dict[tuple[str, str], int | str]] = {}
    restarts: ClassVar[int] = 0

    def __init__(self, path: Path, cores: int, *_: object) -> None:
        self.cores = cores

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def restart(self) -> None:
        FakeWorker.restarts += 1

    def measure(self, engine: str, text: str, size: int, seed: int) -> tuple[int, str]:
        answer = self.answers.get((engine, text), 10)
        if isinstance(answer, str):
            raise Unmeasured(answer)
        return answer * 1_000_000 // self.cores, "wrong" if answer == 13 else f"{text} {size} {seed}"


def test_full_encodes_are_compared_with_the_reference(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(full, "Worker", FakeWorker)
    FakeWorker.answers = {
        ("hf-encode", "fresh"): 200,
        ("fastokens-full", "fresh"): 15,
        (OURS, "code"): 12,
        ("hf-full", "base64"): "PanicException",
        (OURS, "digits"): 11,
    }
    FakeWorker.restarts = 0
    rows = full.run([Path("some/where")], CACHE, rounds=3)
    assert FakeWorker.restarts == 8 * len(full.CORES), "each of the nine in new processes"
    file = tmp_path / "full.json"
    write(file, rows)
    assert read(file, full.Full) == rows
    (ours,) = (row for row in rows if (row.text, row.cores, row.engine) == ("fresh", 2, OURS))
    assert (ours.n, ours.p50_us, ours.tokenizer, ours.account) == (3, 5000.0, "where", "library")
    (hard,) = (row for row in rows if (row.text, row.cores, row.engine) == ("code", 1, OURS))
    assert hard.n == 9, "measured again, because it is beyond the limit"
    assert full.over_limit(rows) == ["where, code, 1 cores: 1.20x", "where, code, 2 cores: 1.20x"]
    told = full.table(rows).splitlines()
    assert "| where | 10 ms | 200 ms (20x) | 15 ms (1.5x) |" in told
    assert "| where | 5 ms | 100 ms (20x) | 15 ms (3x) |" in told  # the one thread is measured on one core
    worst_cells = "1.20 | 1.00 | 1.00 | 1.00 | 1.00 | 1.10 | reference: PanicException | 1.00"
    assert told.count(f"| where | {worst_cells} |") == 2
    FakeWorker.answers = {("fastokens-full", "fresh"): 13}
    with pytest.raises(AssertionError, match="differ"):
        full.run([Path("x")], CACHE, rounds=1, worst=0)


def test_derivations_are_timed_with_and_without_a_cache(small: Path, tmp_path: Path) -> None:
    rows = derive.run([small], rounds=1)
    (row,) = rows
    assert (row.tokenizer, row.n, row.refusal) == ("small", 1, "")
    assert 0 < row.cached_s < row.cold_s
    file = tmp_path / "derive.json"
    write(file, rows)
    assert read(file, derive.Derive) == rows
    slow = [derive.Derive("a", 1, 11.0, 0.1), derive.Derive("b", 1, 1.0, 0.4), derive.Derive("c", 1, 0, 0, "a (at b)")]
    assert derive.over_limit([*slow, derive.Derive("d", 1, 9.9, 0.29)]) == [
        "a: 11.0 s cold, 0.1 s cached",
        "b: 1.0 s cold, 0.4 s cached",
        "c: a (at b)",
    ]
    assert derive.table(slow).splitlines()[2] == "| a | 11.00 s | 0.100 s |"


def test_the_table_of_families_has_dashes_for_what_was_not_measured() -> None:
    distances = [cuts.Cuts(name, style, 100, 9, 10.0, 20, 30) for name in ("a", "b") for style in STYLES]
    times = [derive.Derive("a", 1, 4.21, 0.216)]
    encodes = [
        full.Full("library", "a", "fresh", 1, engine, 100, 1, time)
        for engine, time in ((OURS, 10.0), ("hf-encode", 500.0), (full.ONE_THREAD, 15.0))
    ]
    cells = " | ".join(["10 / 20 / 30"] * 4)
    assert families.table(distances, times, encodes).splitlines()[2:] == [
        f"| a | {cells} | 4.2 s / 0.22 s | 50x / 1.5x |",
        f"| b | {cells} | - | - / - |",
    ]
    assert families.table([], [], []).count("\n") == 1


def test_rows_of_campaigns(tmp_path: Path) -> None:
    share = {"share": 0.5}
    told = {
        "ended": "complete",
        "tokenizer": {"digest": "d"},
        "versions": {"toktier-proxy": "1", "tokenizers": "2", "fastokens": "3"},
        "seed": 7,
        "cuts": {"checks": 1000},
        "ropes": {
            "operations": 100,
            "over_20k_characters": 10,
            "over_200k_characters": 1,
            "repaired": share,
            "repaired_when_cut_closely": {"share": 0.75},
        },
        "failures": [],
    }
    planted = {"ended": "complete", "plants": [{"caught": c} for c in (True, True, None, False)]}
    (tmp_path / "a.json").write_text(json.dumps(told))
    (tmp_path / "b.json").write_text(json.dumps({**told, "failures": [1]}))
    (tmp_path / "b-plants.json").write_text(json.dumps(planted))
    rows = campaigns.rows(tmp_path)
    assert [(row.tokenizer, row.divergences, row.faults_caught, row.faults_missed) for row in rows] == [
        ("a", 0, None, None),
        ("b", 1, 2, 1),
    ]
    assert rows[0].versions == "tokenizers 2, fastokens 3"
    assert campaigns.table(rows).splitlines()[2:] == [
        "| a | 1,000 | 100 | 10 / 1 | 50%, 75% | 0 | - |",
        "| b | 1,000 | 100 | 10 / 1 | 50%, 75% | 1 | 2 of 3 |",
    ]
    (tmp_path / "a.json").write_text(json.dumps({**told, "ended": "time"}))
    with pytest.raises(ValueError, match="ended early: time"):
        campaigns.rows(tmp_path)


def test_delays_of_the_loop_are_summed_up_by_load(tmp_path: Path) -> None:
    noted = [value for at in range(100) for value in (10.0 + at / 100, at / 1000, min(at, 30) / 1000)]
    load = lag._Load("long", 10.0, 10.5, [0.01, 0.03, 0.02], [], [1.5], failed=1)
    row = lag._row("after", load, noted)
    assert (row.label, row.load, row.seconds, row.failed) == ("after", "long", 0.5, 1)
    assert (row.lag_p50, row.lag_max, row.late) == (25.0, 50.0, 30)
    assert (row.held_max, row.held_late) == (30.0, 30)
    assert (row.short_n, row.short_p50, row.short_max) == (3, 20.0, 30.0)
    assert (row.medium_n, row.medium_max, row.long_n, row.long_max) == (0, -1.0, 1, 1500.0)
    records.write(tmp_path / "rows.json", [row])
    assert records.read(tmp_path / "rows.json", lag.Lag) == [row]
    assert lag.table([row]).splitlines()[-1].startswith("| after | long | 25 / ")
