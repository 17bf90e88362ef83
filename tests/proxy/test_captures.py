from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from structlog.testing import capture_logs

from proxy import captures
from proxy.captures import Captures
from proxy.sent import Content

EVENT: dict[str, Any] = {"source": "shadow", "first_id": 3}
BODY = {"messages": [{"role": "user", "content": 'said "ü\u2028🫨"\n' * 9000}], "api_key": "CANARY", "user": "CANARY"}
RAW = json.dumps(BODY, ensure_ascii=False).encode()
IDS = np.arange(150_000, dtype="<u4")


def keep(folder: Captures, level: Any = "full", raw: bytes = RAW) -> str | None:
    return folder.keep(level, EVENT, Content(raw, (BODY["messages"][0]["content"],), IDS))


def test_a_full_one_reads_back(tmp_path: Path) -> None:
    name = keep(Captures(tmp_path / "new"))
    assert name is not None
    kept = orjson.loads((tmp_path / "new" / name).read_bytes())
    assert kept["mismatch"] == EVENT
    assert kept["body"] == {"messages": BODY["messages"]}
    assert kept["text"] == BODY["messages"][0]["content"]
    assert kept["ids"] == IDS.tolist()
    assert "CANARY" not in json.dumps(kept)


def test_digests_hold_no_text(tmp_path: Path) -> None:
    name = keep(Captures(tmp_path), "digests")
    assert name is not None
    assert set(json.loads((tmp_path / name).read_text())) == {"schema", "mismatch", "body_digest", "body_bytes"}


def test_a_large_request_leaves_digests_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captures, "MAX_BODY_BYTES", len(RAW) - 1)
    name = keep(Captures(tmp_path))
    assert name is not None
    assert "text" not in json.loads((tmp_path / name).read_text())


def test_number_and_size_are_bounded_and_the_newest_stay(tmp_path: Path) -> None:
    few = Captures(tmp_path / "few", max_files=3)
    names = [keep(few, "digests") for _ in range(8)]
    assert sorted(file.name for file in (tmp_path / "few").iterdir()) == names[-3:]
    small = Captures(tmp_path / "small", max_bytes=1000)
    names = [keep(small, "digests") for _ in range(30)]
    left = sorted((tmp_path / "small").iterdir())
    assert 1 < len(left) < 30
    assert sum(file.stat().st_size for file in left) <= 1000
    assert [file.name for file in left] == names[-len(left) :]
    assert (
        keep(Captures(tmp_path / "small", max_bytes=10)) == sorted(f.name for f in (tmp_path / "small").iterdir())[-1]
    )


def test_no_file_of_anything_else_goes(tmp_path: Path) -> None:
    folder = Captures(tmp_path, max_files=1)
    first = keep(folder, "digests")
    assert first is not None
    stamp = first[:-14]
    others = [
        "000.json",
        "settings.json",
        first + ".json",
        f"{stamp}-0123ABCD.json",
        f"{stamp}-01234567.jsonl",
        "." + first,
    ]
    for name in others:
        (tmp_path / name).write_text("precious" * 10_000)
    (tmp_path / "00000000T000000-000000000-00000000.json").mkdir()
    target = tmp_path / "00000000T000000-000000000-00000001.json"
    target.symlink_to(tmp_path / "nowhere")
    with capture_logs() as lines:
        last = keep(folder, "digests")
    assert lines == []
    left = {file.name for file in tmp_path.iterdir()}
    assert left == {*others, last, target.name, "00000000T000000-000000000-00000000.json"}


@pytest.mark.parametrize("there", [True, False])
def test_a_folder_that_is_a_link_is_not_used(tmp_path: Path, there: bool) -> None:
    elsewhere = tmp_path / "elsewhere"
    if there:
        elsewhere.mkdir()
    (tmp_path / "captures").symlink_to(elsewhere)
    with capture_logs() as lines:
        assert keep(Captures(tmp_path / "captures")) is None
    assert [(line["event"], line["error"]) for line in lines] == [("capture_failed", "LinkedFolder")]
    assert elsewhere.exists() is there
    assert not there or list(elsewhere.iterdir()) == []


def test_what_cannot_be_kept_is_told_by_type(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with capture_logs() as lines:
        assert keep(Captures(tmp_path / "file" / "below")) is None
        assert keep(Captures(tmp_path / "broken"), raw=b"[CANARY") is None
    assert [line["event"] for line in lines] == ["capture_failed"] * 2
    assert "CANARY" not in json.dumps(lines)
    assert list((tmp_path / "broken").iterdir()) == [], "no part of a file is left"
