from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.audit import STAGES, Flag, RequestRecord
from proxy.metrics import Metrics, openmetrics
from toktier.reasons import Bypass, FullEncode, FullRender, Path


def samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    text = metrics.exposition()[0].decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return samples(metrics)[(name, frozenset(labels.items()))]


def record(**changes: object) -> RequestRecord:
    return RequestRecord("id", "/v1/chat/completions", **{"status": 200, **changes})  # type: ignore[arg-type]


def test_a_repaired_request() -> None:
    metrics = Metrics()
    for _ in range(2):
        metrics.observe(
            record(
                model="m",
                upstream="gpu",
                path=Path.APPEND,
                full=FullEncode.NO_CUT,
                served_chars=100,
                scanned_chars=7,
                tokens=30,
                stages_us={"parse": 500, "ttfb": 2_000_000},
                prompt_tokens_equal=True,
            )
        )
    assert value(metrics, "toktier_requests_total", model="m", path="append", status="200") == 2
    assert value(metrics, "toktier_served_chars_total", model="m") == 200
    assert value(metrics, "toktier_scanned_chars_total", model="m") == 14
    assert value(metrics, "toktier_tokens_total", model="m") == 60
    assert value(metrics, "toktier_full_encode_total", model="m", reason="no_cut") == 2
    assert value(metrics, "toktier_stage_seconds_sum", stage="parse") == 0.001
    assert value(metrics, "toktier_upstream_ttfb_seconds_sum", upstream="gpu") == 4.0
    assert not any(
        name == "toktier_prompt_token_mismatch_total" and number for (name, _), number in samples(metrics).items()
    )


def test_a_bypass_a_mismatch_and_flags() -> None:
    metrics = Metrics()
    metrics.observe(record(model="m", path=Path.BYPASS, bypass=Bypass.ECHO, flags={Flag.CLIENT_GONE}, status=None))
    metrics.observe(record(model="m", path=Path.INIT, prompt_tokens_equal=False))
    assert value(metrics, "toktier_bypass_total", model="m", reason="echo") == 1
    assert value(metrics, "toktier_requests_total", model="m", path="bypass", status="none") == 1
    assert value(metrics, "toktier_prompt_token_mismatch_total", model="m") == 1
    assert value(metrics, "toktier_flag_total", flag="client_gone") == 1
    assert value(metrics, "toktier_flag_total", flag="incomplete_stream") == 0


def test_renders_in_full_are_counted_by_their_reason() -> None:
    metrics = Metrics()
    for reason in (None, FullRender.NOTHING_KEPT, *FullRender):
        metrics.observe(record(model="m", path=Path.APPEND, full_render=reason))
    found = {
        reason: value(metrics, "toktier_full_render_total", model="m", reason=reason.value) for reason in FullRender
    }
    assert found == {reason: 1 + (reason is FullRender.NOTHING_KEPT) for reason in FullRender}


def test_iterations_of_templates_are_added() -> None:
    metrics = Metrics()
    for iterations in (40, None, 2):
        metrics.observe(record(model="m", path=Path.APPEND, iterations=iterations))
    assert value(metrics, "toktier_render_iterations_total", model="m") == 42


def test_clients_cannot_make_labels() -> None:
    metrics = Metrics()
    metrics.observe(record(status=404))
    before = len(samples(metrics))
    for number in range(500):
        metrics.observe(RequestRecord(f"request-{number}", f"/client/path/{number}", session=str(number), status=404))
    assert len(samples(metrics)) == before
    assert value(metrics, "toktier_requests_total", model="none", path="other", status="404") == 501


def test_every_stage_and_flag_is_there_from_the_start() -> None:
    found = samples(Metrics())
    for stage in STAGES:
        assert found[("toktier_stage_seconds_count", frozenset({("stage", stage)}))] == 0
    for flag in Flag:
        assert found[("toktier_flag_total", frozenset({("flag", flag.value)}))] == 0


def test_a_model_has_its_counters_before_its_first_request_and_no_more_with_it() -> None:
    metrics = Metrics()
    metrics.begin(["m"])
    before = samples(metrics)
    for labels in ({"reason": "internal_error"}, {"reason": "quarantined"}):
        assert value(metrics, "toktier_bypass_total", model="m", **labels) == 0
    assert value(metrics, "toktier_shadow_dropped_total", model="m", reason="timeout") == 0
    metrics.observe(
        record(
            model="m",
            path=Path.BYPASS,
            bypass=Bypass.INTERNAL_ERROR,
            full=FullEncode.NO_CUT,
            full_render=FullRender.ERROR,
            prompt_tokens_equal=False,
            error="upstream_closed",
        )
    )
    assert {name for name, _ in samples(metrics).keys() - before.keys()} == {"toktier_requests_total"}


def test_live_values_are_read_at_each_scrape() -> None:
    metrics = Metrics()
    states = {"gpu": "unprobed"}
    sessions = [0, 0]
    metrics.watch(lambda: (sessions[0], sessions[1]), lambda: states, ("unprobed", "ok", "text"))
    assert value(metrics, "toktier_upstream_state", upstream="gpu", state="unprobed") == 1
    states["gpu"], sessions[:] = "ok", [3, 4096]
    assert value(metrics, "toktier_upstream_state", upstream="gpu", state="unprobed") == 0
    assert value(metrics, "toktier_upstream_state", upstream="gpu", state="ok") == 1
    assert value(metrics, "toktier_sessions") == 3
    assert value(metrics, "toktier_session_bytes") == 4096
    assert value(metrics, "toktier_log_lines_dropped_total") == 0


def test_applications_do_not_share_counters() -> None:
    one, two = Metrics(), Metrics()
    one.observe(record(model="m"))
    assert not any(name == "toktier_requests_total" for name, _ in samples(two))


def test_exposition_follows_the_accept_header() -> None:
    metrics = Metrics()
    plain, plain_type = metrics.exposition()
    assert plain_type.startswith("text/plain")
    assert b"_created" not in plain
    text, content_type = metrics.exposition("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/openmetrics-text", True),
        ("Application/OpenMetrics-Text;charset=utf-8; version=1.0.0;q=0.6", True),
        ("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", False),
        ("application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.5", True),
        ("application/openmetrics-text; version=abc", False),
        ("application/openmetrics-text; version=", False),
        ("application/openmetrics-text; version=99999999", False),
        ("text/plain; version=abc", False),
        ("text/plain; version=1.0.0; escaping=x", False),
        (";;=,;,version=,", False),
        ("," * 30_000 + "application/openmetrics-text", False),
    ],
)
def test_any_accept_header_gets_one_of_two_forms(accept: str | None, wanted: bool) -> None:
    text, content_type = Metrics().exposition(accept)
    assert openmetrics(accept) is wanted
    assert content_type.startswith("application/openmetrics-text; version=1.0.0" if wanted else "text/plain;")
    assert text.endswith(b"# EOF\n") is wanted


async def test_loop_lag_is_measured() -> None:
    metrics = Metrics()
    task = asyncio.create_task(metrics.sample_loop_lag(0.01))
    await asyncio.sleep(0.05)
    time.sleep(0.2)  # noqa: ASYNC251 - the loop is blocked on purpose
    await asyncio.sleep(0.05)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert value(metrics, "toktier_event_loop_lag_seconds_count") >= 3
    assert value(metrics, "toktier_event_loop_lag_seconds_sum") >= 0.15
