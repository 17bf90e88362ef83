from __future__ import annotations

import json
import random
from collections import Counter
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.audit import SCHEMA
from proxy.audit_report import collect, report, timeline, verdicts
from proxy.audit_report.collect import Collected
from proxy.audit_report.sources import Unusable
from proxy.audit_report.values import OTHER
from tests.support.hostile_lines import lines as hostile
from tools import audit_sample
from tools.audit_sample import START_US, line

SAMPLE = list(audit_sample.lines(requests=1000))


def collected(lines: list[dict[str, Any]], since_us: int | None = None) -> Collected:
    found = Collected(since_us)
    for one in lines:
        found.take(orjson.dumps(one))
    return found


def of(event: str) -> list[dict[str, Any]]:
    return [one for one in SAMPLE if one["event"] == event]


def counted(lines: list[dict[str, Any]], key: str) -> dict[str, int]:
    return dict(Counter(one[key] for one in lines if one[key] is not None))


def test_sums_are_those_of_the_lines() -> None:
    tally, requests = collected(SAMPLE).all.json(), of("request")
    assert tally["requests"] == len(requests)
    for key in ("chars", "served_chars", "scanned_chars", "tokens"):
        assert tally[key] == sum(one[key] or 0 for one in requests)
    for path in {one["path"] for one in requests}:
        own = [one for one in requests if one["path"] == path]
        account = tally["by_path"][path]
        assert account["requests"] == len(own)
        assert account["served_chars"] == sum(one["served_chars"] or 0 for one in own)
        assert account["scanned_chars"] == sum(one["scanned_chars"] or 0 for one in own)
    assert tally["bypass"] == counted(requests, "bypass")
    assert tally["full"] == counted(requests, "full")
    assert tally["cause"] == counted(requests, "cause")
    assert tally["by_status"] == {str(status): n for status, n in counted(requests, "status").items()}
    assert tally["by_route"] == {"/v1/chat/completions": len(requests)}
    assert tally["flags"] == dict(Counter(flag for one in requests for flag in one["flags"]))
    assert tally["usage"] == {"compared": sum(one["tokens"] is not None for one in requests), "different": 0}
    assert tally["stages_us"]["ttfb"]["max"] == max(one["stages_us"]["ttfb"] for one in requests)


def test_checks_are_those_of_the_lines() -> None:
    tally = collected(SAMPLE).all.json()["shadow"]
    checks, dropped = of("shadow_check"), of("shadow_dropped")
    with_ids = sum(one["tokens"] is not None for one in of("request"))
    assert (tally["done"], tally["dropped"]) == (len(checks), len(dropped))
    assert (tally["equal"], tally["different"]) == (len(checks) - 1, 1)
    assert tally["with_ids"] == with_ids
    assert tally["rate"] == pytest.approx(len(checks) / with_ids)
    assert tally["by_sampled"] == counted(checks, "sampled")
    assert tally["by_path"] == counted(checks, "path")
    assert tally["dropped_by_reason"] == counted(dropped, "reason")
    assert tally["delay_us"]["max"] == max(one["delay_us"] for one in checks)
    found = collected(SAMPLE)
    parity = found.all.json()["parity"]
    assert (parity["done"], parity["equal"], parity["different"]) == (
        len(of("parity_check")),
        len(of("parity_check")),
        0,
    )
    assert parity["skipped_by_reason"] == counted(of("parity_skipped"), "reason")
    assert parity["done"] > 0
    assert found.all.json()["mismatches"]["by_source"] == {"shadow": 1}
    assert found.verdicts.unresolved == 0
    assert found.lost == 3


def test_models_add_up_to_all() -> None:
    found = collected([*SAMPLE, audit_sample.request(random.Random(1), START_US, model=None)])
    assert set(found.models) == {*audit_sample.MODELS, None}
    tallies = [tally.json() for tally in found.models.values()]
    total = found.all.json()
    for key in ("requests", "chars", "served_chars", "scanned_chars", "tokens"):
        assert sum(tally[key] for tally in tallies) == total[key]
    for key in ("done", "dropped", "with_ids", "chars"):
        assert sum(tally["shadow"][key] for tally in tallies) == total["shadow"][key]


@given(order=st.randoms(use_true_random=False))
@settings(max_examples=10, deadline=None)
def test_the_order_of_lines_does_not_matter(order: Any) -> None:
    shuffled = SAMPLE[:]
    order.shuffle(shuffled)
    assert report.build(collected(shuffled)) == report.build(collected(SAMPLE))


def test_since_limits_what_is_counted_but_not_what_is_unresolved() -> None:
    begin = START_US + 7_100_000_000
    found = collected(SAMPLE, begin)
    late = [one for one in of("request") if one["ts"] >= "2026-11-30T14:28:20"]
    assert found.all.all.requests == len(late) > 0
    assert found.lines.before == len(SAMPLE) - found.lines.counted
    assert found.all.json()["mismatches"]["total"] == 0
    assert found.verdicts.mismatches()["total"] == 1
    unlifted = [one for one in SAMPLE if one["event"] != "quarantine_lifted"]
    assert report.build(collected(unlifted, begin))["exit_code"] == 1


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b"{torn", "malformed"),
        (b"\xff\xfe", "malformed"),
        (b"[" * 100_000, "malformed"),
        (b'{"ts":"2026', "malformed"),
        (b"17", "foreign"),
        (b"[]", "foreign"),
        (b'{"msg":"of another program"}', "foreign"),
        (b'{"ts":"x","schema":true,"event":"request"}', "foreign"),
        (b'{"ts":"x","schema":0,"event":"request"}', "foreign"),
        (b'{"ts":"x","schema":"2","event":"request"}', "foreign"),
        (b'{"ts":"x","schema":1,"event":["request"]}', "foreign"),
        (None, "too_long"),
        (b'{"ts":"x","schema":1,"event":"request"}', "counted"),
    ],
)
def test_every_line_is_counted_as_what_it_is(raw: bytes | None, kind: str) -> None:
    found = Collected()
    found.take(raw)
    assert vars(found.lines) == vars(collect.Lines(read=1)) | {kind: 1}


def test_a_newer_schema_is_refused() -> None:
    newer = line("request", START_US) | {"schema": SCHEMA + 1}
    with pytest.raises(Unusable, match=f"schema {SCHEMA + 1} is newer than the {SCHEMA}"):
        collected([newer])


def test_models_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "MOST_MODELS", 2)
    found = collected([line("request", START_US, model=f"m{n}") for n in range(5)])
    assert {model: tally.all.requests for model, tally in found.models.items()} == {"m0": 1, "m1": 1, OTHER: 3}


def entries(value: Any) -> int:
    """How many things are kept in ``value``, however deep."""
    if isinstance(value, dict):
        return (
            len(value) + sum(map(entries, value.values())) + (entries(vars(value)) if hasattr(value, "__dict__") else 0)
        )
    if isinstance(value, list | tuple | set):
        return len(value) + sum(map(entries, value))
    return entries(vars(value)) if hasattr(value, "__dict__") else 1


def test_memory_does_not_grow_with_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """New names, places, models and times in every line: once the tables are full, nothing more is kept."""
    monkeypatch.setattr(collect, "MOST_MODELS", 3)
    monkeypatch.setattr(verdicts, "MOST_KEYS", 4)
    monkeypatch.setattr(verdicts, "MOST_TIMES", 16)
    monkeypatch.setattr(timeline, "MOST", 16)

    def take(found: Collected, numbers: range) -> Collected:
        for n in numbers:
            new, at = f"new-{n}", START_US + n * 86_400_000_000
            names = dict.fromkeys(
                ("model", "path", "bypass", "full", "cause", "error", "route", "result", "reason"), new
            )
            place = {"tokenizer_digest": new, "source": new, "sampled": new, "quarantine_level": new, "state": new}
            stages = {new: n, "total": n % 50}
            for event in (
                "request",
                "shadow_check",
                "shadow_dropped",
                "parity_check",
                "shadow_worker",
                "mismatch",
                "quarantined",
                new,
            ):
                made = line(event, at, **names, **place, flags=[new], stages_us=stages, delay_us=n % 50, chars=n)
                found.take(orjson.dumps(made))
            found.take(orjson.dumps(line("mismatch", at, tokenizer_digest="t", path="append")))
            found.take(orjson.dumps(line("quarantine_lifted", at, tokenizer_digest=new, path="append")))
        return found

    def kept(found: Collected) -> dict[str, int]:
        return {key: entries(value) for key, value in vars(found).items()}

    found = take(Collected(), range(300))
    before = kept(found)
    after = kept(take(found, range(300, 900)))
    for key in ("requests", "shadow"):  # 16 intervals with 64 names and the rest, once all are full
        assert after.pop(key) < 16 * 140
        del before[key]
    assert all(after[key] <= before[key] + 50 for key in before), (before, after)
    assert found.verdicts.mismatches()["total"] == 1800


@given(st.lists(hostile(), max_size=12))
@settings(max_examples=200, deadline=None)
def test_any_lines_make_a_report(lines: list[bytes]) -> None:
    found = Collected()
    for raw in lines:
        found.take(raw)
    counts = found.lines
    assert counts.read == len(lines) == counts.own + counts.malformed + counts.foreign + counts.too_long
    built = report.build(found)
    text = json.dumps(built)
    assert json.loads(text) == built
    mismatches = sum(_event(raw) == "mismatch" for raw in lines)
    assert built["mismatches"]["total"] == mismatches == built["all"]["mismatches"]["total"]


def _event(raw: bytes) -> Any:
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return None
    return value.get("event") if isinstance(value, dict) and value.get("schema") == 1 and "ts" in value else None
