"""The parts of README.md and docs/benchmarks.md, and the plots, from what a folder of measurements holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.conftest import ROOT
from tools.bench import engine, memory, pages, proxy, records, render
from tools.bench.records import OURS, Record


def test_what_is_not_measured_says_so(tmp_path: Path) -> None:
    for _, marker, content in pages.parts(tmp_path):
        assert content.startswith("Not measured yet: `python -m tools.bench "), marker
    assert list(pages.files(tmp_path)) == []


def test_every_suite_has_its_tables_and_a_plot(tmp_path: Path) -> None:
    def row(account: str, case: str, name: str, size: int = 1_000) -> Record:
        return Record(account, case, name, size, 3, 5.0, 6.0, 7.0, served=9, scanned=3)

    records.write(tmp_path / "repair.json", [row("library", pages.MAIN, OURS), row("library", "truncate", OURS)])
    cases = ("turn, 1 session", "added, 1 session", "added, 8 sessions")
    whole = [
        row("proxy", cases[1], name, 1_000_000) for name in (OURS, proxy.OVER_STREAMED, proxy.VLLM_TEXT, proxy.VLLM_IDS)
    ]
    records.write(tmp_path / "proxy.json", [*(row("proxy", case, OURS) for case in cases), *whole])
    kept = memory.Memory("ASCII", 100_000, 10, 5_000, memory.PROCESS, 20.0)
    records.write(
        tmp_path / "memory.json", [kept, replace(kept, sessions=1, account=memory.WORKING, bytes_a_token=90.0)]
    )
    records.write(tmp_path / "engine.json", [row("engine", engine.CASE, way) for way in engine.WAYS])
    rendered = [
        render.Render("render", name, "append", OURS, 10, 5_000, 2, 9, 1.0, 2.0, 3.0, 5_000, 40)
        for name in (render.SHIPPED, "other")
    ]
    records.write(tmp_path / "render.json", rendered)
    parts = {(document, marker): content for document, marker, content in pages.parts(tmp_path)}
    assert not [content for content in parts.values() if content.startswith("Not measured")]
    assert parts["README.md", "bench repair"].startswith("![repair](docs/bench/repair.svg)\n\n**library, ")
    assert parts[pages.PAGE, "bench engine"].startswith("![engine](bench/engine.svg)\n\n**engine, ")
    assert "truncate" not in parts["README.md", "bench repair"]
    assert "truncate" in parts[pages.PAGE, "bench library"]
    assert "8 sessions" not in parts["README.md", "bench proxy"]
    assert "8 sessions" in parts[pages.PAGE, "bench proxy"]
    for document in (pages.README, pages.PAGE):
        assert f"| {OURS}, over buffering | {OURS}, over streamed |" in parts[document, "bench proxy"]
        assert "Targets over *pass-through, streamed*" in parts[document, "bench proxy"]
    assert "a million characters" in parts["README.md", "bench front end"]
    assert "takes 5 µs" in parts["README.md", "bench front end"]
    assert "| 29.0 |" in parts[pages.PAGE, "bench memory"]
    assert "| other |" not in parts["README.md", "bench render"]
    assert "| other |" in parts[pages.PAGE, "bench render"]
    for suite in ("bench bytes", "bench proxy bytes", "bench engine bytes"):
        assert "| 1.8 MB/s | 0.6 MB/s |" in parts[pages.PAGE, suite]
    assert (
        "| render, append at 10 | toktier-proxy | 5,000 | 5 GB/s | 40 MB/s |" in parts[pages.PAGE, "bench render bytes"]
    )
    assert "other" not in parts[pages.PAGE, "bench render bytes"]
    assert proxy.DOUBLED not in parts["README.md", "bench engine"]
    pictures = dict(pages.files(tmp_path))
    assert set(pictures) == {f"docs/bench/{name}.svg" for name in ("repair", "render", "proxy", "engine")}
    assert all(OURS in picture for picture in pictures.values())


def test_every_part_has_its_place() -> None:
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in (pages.README, pages.PAGE)}
    for document, marker, _ in pages.parts(ROOT / "docs" / "bench"):
        assert f"<!-- {marker}: python -m tools.docs -->" in texts[document]
    for path, _ in pages.files(ROOT / "docs" / "bench"):
        assert any(path in text or path.removeprefix("docs/") in text for text in texts.values()), path
