from __future__ import annotations

import re
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from proxy.audit_report.values import iso
from proxy.audit_report.verdicts import Verdicts
from proxy.captures import Captures
from proxy.config import Shadow
from proxy.metrics import Metrics
from proxy.mismatch import FIELDS, Mismatches, of_count, of_tokens, of_verdict
from proxy.sent import Content, Room
from tests.conftest import ROOT
from tests.support.sent import sent
from toktier.quarantine import Level, Quarantine, Source
from toktier.reasons import FullEncode, Path
from toktier.sessions import SessionStore
from toktier.shadow.check import digest_of_ids
from toktier.shadow.job import Kind, Piece, Verdict

IDS = np.arange(10, dtype=np.uint32)
CONTENT = Content(b"{}", ("CANARY",), IDS)


def verdict(piece: Piece | None = None) -> Verdict:
    return Verdict(
        kind=Kind.IDS,
        chars=6,
        reference_chars=6,
        tokens=10,
        reference_tokens=11,
        text_digest="a",
        reference_text_digest="a",
        ids_digest="b",
        reference_ids_digest="c",
        first_id=4,
        first_char=2,
        piece=piece,
        stages={},
    )


class Acting:
    def __init__(self, folder: File, **shadow: Any) -> None:
        self.quarantine = Quarantine(folder / "quarantine.json")
        self.store = SessionStore(1 << 20)
        self.metrics = Metrics()
        self.act = Mismatches(
            Shadow(**shadow), self.quarantine, self.store, Captures(folder / "captures"), self.metrics
        )

    def found(self, source: Source = Source.SHADOW, full: FullEncode | None = None) -> list[dict[str, Any]]:
        with capture_logs() as lines:
            self.act.found(source, sent(full=full, content=CONTENT), of_verdict(verdict(Piece(1, 0, 6))), 5)
        return [dict(line) for line in lines]


def test_the_ladder_and_what_is_told_of_it(tmp_path: File) -> None:
    acting = Acting(tmp_path)
    first, told = acting.found()
    assert (first["event"], told["event"], told["quarantine_level"]) == ("mismatch", "quarantined", "reference")
    assert (
        (told["tokenizer_digest"], told["path"]) == (first["tokenizer_digest"], first["path"]) == ("trusted", "append")
    )
    assert (first["prepared_with"], first["piece"], first["piece_start"], first["piece_chars"]) == ("used", 1, 0, 6)
    # One that was in flight before raises nothing, and nothing new is told of it.
    assert [line["event"] for line in acting.found()] == ["mismatch"]
    assert acting.quarantine.level("trusted", Path.APPEND) is Level.REFERENCE
    assert acting.found(full=FullEncode.QUARANTINED)[1]["quarantine_level"] == "text"
    assert acting.quarantine.level("trusted", Path.APPEND) is Level.TEXT
    assert acting.quarantine.entries()[0].count == 3


@pytest.mark.parametrize(
    ("source", "kind", "paths"),
    [
        (Source.SHADOW, Kind.IDS, ["gpu"]),
        (Source.SHADOW, Kind.TEXT, ["append"]),
        (Source.USAGE, "count", ["gpu", "append"]),
        (Source.TOKENIZE, Kind.IDS, ["gpu", "append"]),
    ],
)
def test_what_a_gpu_did_is_resolved_by_lifting_what_was_distrusted(
    tmp_path: File, source: Source, kind: str, paths: list[str]
) -> None:
    acting = Acting(tmp_path)
    with capture_logs() as lines:
        acting.act.found(source, sent(by_gpu=True), {"kind": kind}, 5)
    assert lines[0]["suspects"] == [line["path"] for line in lines[1:]] == paths
    told = [{**line, "ts": iso(at * 10**6)} for at, line in enumerate(lines)]
    for old in (False, True):
        verdicts = Verdicts()
        for line in told:
            named = {key: value for key, value in line.items() if not old or key != "suspects"}
            verdicts.take(line["event"], named)
        for at, path in enumerate(paths, len(told)):
            assert verdicts.unresolved == 1
            verdicts.take("quarantine_lifted", {**told[1], "path": path, "ts": iso(at * 10**6)})
        assert verdicts.unresolved == 0
        assert verdicts.quarantines()["in_force"] == []


def test_a_sibling_that_learns_of_it_forgets_its_sessions(tmp_path: File) -> None:
    one, other = Acting(tmp_path), Acting(tmp_path)
    before = other.store.epoch
    other.act.refresh()
    assert other.store.epoch == before
    one.found()
    other.act.refresh()
    assert other.quarantine.level("trusted", Path.APPEND) is Level.REFERENCE
    assert other.store.epoch == before + 1
    one.quarantine.lift()
    other.act.refresh()
    assert other.store.epoch == before + 1, "to trust again is no reason"
    (tmp_path / "quarantine.json").write_text("no JSON")
    other.act.refresh()
    assert other.quarantine.everything is not None
    assert other.store.epoch == before + 2


def test_what_fails_ends_nothing_else(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    acting = Acting(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CANARY")

    monkeypatch.setattr(acting.quarantine, "add", fail)
    monkeypatch.setattr(acting.store, "clear", fail)
    lines = acting.found()
    assert [(line["event"], line.get("step")) for line in lines] == [
        ("shadow_failed", "quarantine"),
        ("shadow_failed", "forget"),
        ("mismatch", None),
    ]


def test_the_engines_word() -> None:
    count = of_count(sent(content=CONTENT), 12)
    assert (count["kind"], count["tokens"], count["reference_tokens"]) == ("count", 10, 12)
    assert set(count) <= set(FIELDS)
    theirs = IDS.copy()
    theirs[7] = 99
    tokens = of_tokens(sent(content=CONTENT), IDS, theirs)
    assert (tokens["first_id"], tokens["reference_ids_digest"]) == (7, digest_of_ids(theirs.tobytes()))
    assert of_tokens(sent(content=CONTENT), IDS, IDS[:4])["first_id"] == 4
    assert set(tokens) <= set(FIELDS)
    assert set(of_verdict(verdict())) == set(FIELDS)
    assert of_count(sent(), 12) == {"chars": 6, "tokens": 10, "kind": "count", "reference_tokens": 12}


def test_a_line_holds_the_documented_fields_and_no_text(tmp_path: File) -> None:
    page = (ROOT / "docs" / "log-schema.md").read_text("utf-8")
    section = page.split("## `mismatch`", 1)[1].split("\n## ")[0]
    documented = {name for row in re.findall(r"^\| (`.*?) \|", section, re.M) for name in re.findall(r"`(\w+)`", row)}
    line = Acting(tmp_path, capture="digests").found()[0]
    assert documented == line.keys() - {"event", "log_level"}
    assert "CANARY" not in str(line)
    assert line["capture"] is not None


def test_room_for_contents_is_bounded_and_comes_back() -> None:
    room = Room(CONTENT.nbytes * 2 + 1)
    kept = [room.keep(b"{}", ("CANARY",), IDS) for _ in range(3)]
    assert [content is not None for content in kept] == [True, True, False]
    assert room.used == CONTENT.nbytes * 2
    kept.clear()
    assert room.used == 0
    assert room.keep(b"{}", ("CANARY",), IDS) is not None
