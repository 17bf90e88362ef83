from __future__ import annotations

import ast
import re
from dataclasses import fields
from pathlib import Path as File
from typing import Any

import numpy as np
import pytest
from structlog.testing import capture_logs

from proxy.audit import LOGGED, STAGES, Flag, RequestRecord, request_id
from toktier.reasons import Bypass, Cause, FullEncode, Path
from toktier.tier import Prepared

ROOT = File(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "log-schema.md").read_text("utf-8")


def emitted(record: RequestRecord, status: int | None) -> dict[str, Any]:
    with capture_logs() as lines:
        record.emit(status)
    assert len(lines) == 1
    return dict(lines[0])


def prepared(**changes: Any) -> Prepared:
    values: dict[str, Any] = {
        "ids": np.arange(7, dtype=np.uint32),
        "texts": ("x" * 100,),
        "path": Path.APPEND,
        "cause": Cause.NONE,
        "full": None,
        "messages": 3,
        "chars": 100,
        "scanned": 20,
        "common": 80,
        "first_changed": 5,
        "lost_reuse_tokens": 7,
        "first_changed_message": 2,
        "session": "abc",
        "stages": {"normalise": 1, "render": 2, "match": 3, "splice": 4},
        "control_tokens": 0,
        "tokenizer_digest": "t",
        "template_digest": "c",
    }
    return Prepared(**(values | changes))


def test_one_line_whatever_happens() -> None:
    record = RequestRecord("id", "/v1/models")
    with capture_logs() as lines:
        record.emit(200)
        record.emit(500)
    assert [line["status"] for line in lines] == [200]
    assert lines[0]["event"] == "request"
    assert lines[0]["stages_us"].keys() == {"total"}


def test_line_has_every_field_even_of_an_empty_record() -> None:
    line = emitted(RequestRecord("id", "none"), None)
    assert line.keys() - {"event", "log_level"} == set(LOGGED)
    assert line["status"] is None


def test_what_the_tier_found_out() -> None:
    record = RequestRecord("id", "/v1/chat/completions")
    record.take(prepared(control_tokens=1, full=FullEncode.NO_CUT, iterations=4))
    line = emitted(record, 200)
    assert line["path"] == "append"
    assert line["full"] == "no_cut"
    assert (line["served_chars"], line["scanned_chars"], line["chars"], line["tokens"]) == (100, 20, 100, 7)
    assert (line["first_changed"], line["common_chars"], line["first_changed_message"]) == (5, 80, 2)
    assert (line["lost_reuse_tokens"], line["iterations"]) == (7, 4)
    assert line["flags"] == [Flag.CONTROL_TOKEN_IN_CONTENT]
    assert {k: v for k, v in line["stages_us"].items() if k != "total"} == prepared().stages
    assert "ids" not in line


def test_a_bypass_serves_nothing_and_compares_nothing() -> None:
    record = RequestRecord("id", "/v1/chat/completions")
    record.take(prepared())
    record.bypassed(Bypass.UPSTREAM_REFUSED_IDS)
    record.usage(7)
    line = emitted(record, 200)
    assert (line["path"], line["bypass"], line["served_chars"], line["tokens"]) == (
        "bypass",
        "upstream_refused_ids",
        0,
        None,
    )
    assert line["usage_prompt_tokens"] == 7
    assert line["prompt_tokens_equal"] is None


@pytest.mark.parametrize(("counted", "equal", "level"), [(7, True, "info"), (8, False, "warning")])
def test_engine_count_against_ids_sent(counted: int, equal: bool, level: str) -> None:
    record = RequestRecord("id", "/v1/chat/completions")
    record.take(prepared())
    record.usage(counted)
    line = emitted(record, 200)
    assert (line["prompt_tokens_equal"], line["log_level"]) == (equal, level)


def test_what_is_somebodys_fault_is_a_warning() -> None:
    assert emitted(RequestRecord("i", "r"), 404)["log_level"] == "info"
    assert emitted(RequestRecord("i", "r"), 502)["log_level"] == "warning"
    assert emitted(RequestRecord("i", "r", flags={Flag.INCOMPLETE_STREAM}), 200)["log_level"] == "warning"
    assert emitted(RequestRecord("i", "r", bypass=Bypass.INTERNAL_ERROR), 200)["log_level"] == "warning"
    assert emitted(RequestRecord("i", "r", flags={Flag.CLIENT_GONE}), None)["log_level"] == "info"


def test_stages_add_up_and_survive_errors() -> None:
    record = RequestRecord("i", "r")
    record.add_stage("parse", 5_000)
    with pytest.raises(KeyError), record.stage("parse"):
        raise KeyError
    assert record.stages_us["parse"] >= 5
    with pytest.raises(ValueError, match="no stage"):
        record.add_stage("other", 1)


@pytest.mark.parametrize("given", ["abc-1.2_3:4", "x" * 128])
def test_plain_request_ids_are_kept(given: str) -> None:
    assert request_id(given) == given


@pytest.mark.parametrize("given", [None, "", "my secret prompt", "x" * 129, "a\n", "é", "a/b"])
def test_other_request_ids_are_replaced(given: str | None) -> None:
    made = {request_id(given) for _ in range(3)}
    assert len(made) == 3
    assert all(re.fullmatch(r"[0-9a-f]{32}", one) for one in made)


# The documented schema ----------------------------------------------------------------------------------------------


def rows(heading: str) -> list[list[str]]:
    section = PAGE.split(heading, 1)[1].split("\n## ")[0]
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in section.splitlines() if line.startswith("| `")]
    assert cells
    return cells


def test_documented_fields_are_the_record_s_fields_in_order() -> None:
    documented = [row[0].strip("`") for row in rows("## `request`")]
    assert documented == [f.name for f in fields(RequestRecord) if f.metadata.get("logged", True)]


def test_documented_stages_flags_and_reasons_are_the_real_ones() -> None:
    meaning = {row[0].strip("`"): row[1] for row in rows("## `request`")}
    assert tuple(re.findall(r"`(\w+)`", meaning["stages_us"])) == STAGES
    assert set(re.findall(r"`(\w+)`", meaning["flags"])) == set(Flag)
    assert set(re.findall(r"`(\w+)`", meaning["path"])) == set(Path)
    assert set(re.findall(r"`(\w+)`", meaning["cause"])) == set(Cause)
    assert set(re.findall(r"`(\w+)`", meaning["full"])) == set(FullEncode)


def events_in_the_code() -> dict[str, set[str]]:
    """Each event that a structlog call in proxy/ or toktier/ writes, and the fields given to it by name."""
    # built in proxy/logs.py
    found: dict[str, set[str]] = {
        "log_dropped": {"lines"},
        "log_not_rotated": {"reason"},
        "library": {"logger", "at"},
    }
    methods = {"debug", "info", "warning", "error", "exception", "critical"}
    for package in ("proxy", "toktier"):
        for path in (ROOT / package).rglob("*.py"):
            if path.name.startswith("embedded"):  # the simulator's log is not TokTier's
                continue
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if not isinstance(node, ast.Call) or not node.args:
                    continue
                call, first = node.func, node.args[0]
                is_log = (
                    isinstance(call, ast.Attribute)
                    and call.attr in methods
                    and isinstance(call.value, ast.Name)
                    and call.value.id in ("log", "_log")
                )
                is_alias = (isinstance(call, ast.Name) and call.id == "say") or isinstance(call, ast.IfExp)
                if not (is_log or is_alias):
                    continue
                names = {str(k.arg) for k in node.keywords if k.arg not in (None, "exc_info")}
                own = names & {"ts", "level", "schema", "event"}
                assert not own, f"{path}:{node.lineno}: every line has {own} of its own; say quarantine_level, for one"
                for event in (first.body, first.orelse) if isinstance(first, ast.IfExp) else (first,):
                    assert isinstance(event, ast.Constant), f"{path}:{node.lineno}: an event's name is a literal"
                    found.setdefault(str(event.value), set()).update(names)
    return found


def test_documented_events_are_those_in_the_code() -> None:
    documented = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in rows("## Other events")}
    written = events_in_the_code()
    request = written.pop("request")
    assert request == set()
    assert written["mismatch"] == {"capture"}  # `tests/proxy/test_mismatch.py` compares the others
    assert written.keys() == documented.keys()
    for event, names in written.items():
        assert names <= documented[event], f"{event}: fields that docs/log-schema.md does not list"
