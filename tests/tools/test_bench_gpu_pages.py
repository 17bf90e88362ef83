"""The tables of docs/gpu.md, from files with a row of each account."""

from __future__ import annotations

from pathlib import Path

from tools.bench import gpu_pages, records
from tools.bench.gpu import Stage
from tools.bench.gpu_beside import Similarity
from tools.bench.records import Record


def row(account: str, case: str, engine: str, size: int, p50: float) -> Record:
    return Record(account, case, engine, size, 9, p50, p50 + 1, p50 + 2)


def test_each_account_has_its_numbers(tmp_path: Path) -> None:
    rows = [
        row("host to host, pinned", "steady", "t", 1_000, 25.4),
        row("host to host, bytes", "steady", "t", 1_000_000, 230),
        row("host to host, bytes, 28 processes beside", "steady", "t", 1_000_000, 290),
        row("device", "bulk code", "t", 64_000_000, 1_000),
        row("host to host, pinned, in turn", "bulk code", "t", 384_000_000, 10_000),
        row("host to host, batch", "9 documents of 200", "t", 1_800, 40),
        row("cores", "steady", "t, HF tokenizers", 1_000_000, 700_000),
        records.unmeasured("cores", "steady", "t, fastokens", 1_000_000, "it refuses"),
    ]
    records.write(tmp_path / "gpu.json", rows)
    kernels = [
        Stage("t", "code", 64_000_000, "tiles_large", 200.0),
        Stage("t", "code", 64_000_000, "probe", 100.0),
        Stage("t", "code", 1_000_000, "tiles_small", 50.0),
        Stage("t", "sequences of 128", 1_000_000, "tiles_large", 9.0),
        Stage("t", "sequences of 128", 1_000_000, "windows", 100.0),
        Stage("t", "sequences of 128", 1_000_000, "probe", 150.0),
        Similarity("t", "sequences of 128", 1_000, 300, 0.5),
    ]
    records.write(tmp_path / "gpu-stages.json", kernels)
    parts = {marker.removeprefix("bench gpu "): content for _, marker, content in gpu_pages.parts(tmp_path)}
    assert "| t | host to host, pinned, steady | 25 / 27 |" in parts["requests"]
    assert "| t | device, the whole path | 64.0 |" in parts["bulk"]
    assert "| t | device, where pieces begin | 320 |" in parts["bulk"]
    assert "| t | host to host, pinned, in turn | 38.4 |" in parts["bulk"]
    assert "| t | TokTier, host to host, bytes, 28 processes beside |  |  | 290 / 292 |" in parts["beside"]
    assert "| t | HF tokenizers, cores |  |  | 700 ms / 700 ms |" in parts["beside"]
    assert "| t | fastokens, cores (it refuses) |  |  |  |" in parts["beside"]
    assert "| t | 40 / 42 |" in parts["batches"]
    assert "| t | 4.00, 50.00% |" in parts["merges"]


def test_what_is_not_measured_says_so(tmp_path: Path) -> None:
    assert {content for _, _, content in gpu_pages.parts(tmp_path)} == {
        "Not measured yet: `python -m tools.bench gpu`."
    }
