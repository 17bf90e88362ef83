"""Prometheus metrics of one application, in a registry of their own.

Invariants
1. Every label value comes from the configuration, an enum or a small fixed set. What a client sends (a model name, a
   path) never becomes a label, so no client can grow the registry.
2. Every series whose increase an alert waits for is there with 0 before anything can be counted (`Metrics.begin`): of
   one that is born with its first event, Prometheus sees no increase. tests/proxy/test_dashboards.py asks each alert.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from proxy.audit import STAGES, Flag, RequestRecord
from proxy.error_codes import CODES, IN_STREAM
from proxy.logs import dropped_lines
from toktier.quarantine import Source
from toktier.reasons import Bypass, FullEncode, FullRender
from toktier.shadow.job import Drop
from toktier.shortcuts import Way

disable_created_metrics()  # type: ignore[no-untyped-call] # a second series per series, which nobody reads

NO_MODEL = "none"
"""Label for requests that name no configured model."""

OTHER_PATH = "other"
"""Label for requests that are no chat request, or that ended before they were told apart."""

# Stages from 10 us (a match) to minutes (the first byte of a long prefill).
_SECONDS = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_LAG = (1e-3, 2e-3, 5e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.5, 1.0, 5.0)


_OPENMETRICS = "application/openmetrics-text; version=1.0.0"
_ACCEPT = 1024
"""Characters of an Accept header that are looked at."""


def openmetrics(accept: str | None) -> bool:
    """Whether an Accept header names OpenMetrics, in a version that is served. Anything else gets Prometheus's text."""
    for named in (accept or "")[:_ACCEPT].lower().split(","):
        kind, *parameters = (part.strip() for part in named.split(";"))
        versions = [part.removeprefix("version=") for part in parameters if part.startswith("version=")]
        if kind == "application/openmetrics-text" and versions in ([], ["1.0.0"]):
            return True
    return False


class Metrics:
    """The counters. Call from the event loop's thread or any other; prometheus_client locks."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=registry)
        self.requests = Counter(
            "toktier_requests", "Requests by path taken and status sent", ["model", "path", "status"], registry=registry
        )
        self.bypasses = Counter(
            "toktier_bypass", "Requests that went upstream as text, by reason", ["model", "reason"], registry=registry
        )
        self.full_encodes = Counter(
            "toktier_full_encode",
            "Requests whose whole text was encoded, by reason",
            ["model", "reason"],
            registry=registry,
        )
        self.encoded = Counter(
            "toktier_encoded", "Requests with IDs by how what was new was encoded", ["model", "way"], registry=registry
        )
        self.full_renders = Counter(
            "toktier_full_render",
            "Requests with IDs whose whole template was rendered, by reason",
            ["model", "reason"],
            registry=registry,
        )
        self.iterations = Counter(
            "toktier_render_iterations", "Iterations of templates' folded loops that ran", ["model"], registry=registry
        )
        self.stages = Histogram(
            "toktier_stage_seconds", "Time in each stage of a request", ["stage"], buckets=_SECONDS, registry=registry
        )
        self.ttfb = Histogram(
            "toktier_upstream_ttfb_seconds",
            "From sending a request upstream to the reply's first byte",
            ["upstream"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.served = Counter("toktier_served_chars", "Context delivered as IDs", ["model"], registry=registry)
        self.scanned = Counter("toktier_scanned_chars", "Text actually encoded", ["model"], registry=registry)
        self.tokens = Counter("toktier_tokens", "IDs sent upstream", ["model"], registry=registry)
        self.mismatches = Counter(
            "toktier_prompt_token_mismatch",
            "Replies whose usage.prompt_tokens was not the number of IDs sent",
            ["model"],
            registry=registry,
        )
        self.refusals = Counter(
            "toktier_refusal", "What TokTier refused or gave up by itself, by error code", ["code"], registry=registry
        )
        self.shadow_checks = Counter(
            "toktier_shadow_checks",
            "Requests that the reference rendered and encoded again, by result",
            ["model", "result"],
            registry=registry,
        )
        self.shadow_dropped = Counter(
            "toktier_shadow_dropped", "Checks that were not made, by reason", ["model", "reason"], registry=registry
        )
        self.shadow_delay = Histogram(
            "toktier_shadow_delay_seconds",
            "From the IDs of a request to the verdict on them",
            buckets=_SECONDS,
            registry=registry,
        )
        self.parity_checks = Counter(
            "toktier_parity_checks",
            "Requests compared with the upstream's /tokenize, by result",
            ["model", "result"],
            registry=registry,
        )
        self.parity_skips = Counter(
            "toktier_parity_skipped",
            "Requests drawn for that and not compared, by reason",
            ["model", "reason"],
            registry=registry,
        )
        self.mismatch_found = Counter(
            "toktier_mismatch",
            "Requests whose IDs were found wrong, by who found it",
            ["model", "source"],
            registry=registry,
        )
        self.flags = Counter("toktier_flag", "Unusual events of requests", ["flag"], registry=registry)
        self.in_flight = Gauge("toktier_in_flight", "Requests being served", registry=registry)
        self._connections = Gauge("toktier_connections", "Client connections", registry=registry)
        self._waiting = Gauge("toktier_waiting", "Requests that wait for a thread or their turn", registry=registry)
        self._body_bytes = Gauge("toktier_body_bytes", "Bytes of request bodies that are held", registry=registry)
        self.loop_lag = Histogram(
            "toktier_event_loop_lag_seconds", "How late the event loop runs its timers", buckets=_LAG, registry=registry
        )
        self._stages = {stage: self.stages.labels(stage) for stage in STAGES}
        self._bound: dict[tuple[object, ...], Any] = {}
        for flag in Flag:
            self.flags.labels(flag.value)
        for code in (*CODES, *IN_STREAM):
            self.refusals.labels(code)

    def begin(self, models: Iterable[str]) -> None:
        """Have the counters of these models, by their configured names, before their first request (invariant 2).

        Not `requests`, whose statuses are no fixed list: no alert asks for those.
        """
        results = ("equal", "different")
        for model in models:
            for counter in (self.mismatches, self.served, self.scanned, self.tokens, self.iterations):
                counter.labels(model)
            for counter, values in (
                (self.mismatch_found, Source),
                (self.bypasses, Bypass),
                (self.full_encodes, FullEncode),
                (self.full_renders, FullRender),
                (self.encoded, Way),
                (self.shadow_checks, results),
                (self.shadow_dropped, Drop),
                (self.parity_checks, results),
            ):
                for value in values:
                    counter.labels(model, value)

    def observe(self, record: RequestRecord) -> None:
        """Counts a finished request. Call once, after the record's status is set."""
        model = record.model or NO_MODEL
        path = record.path.value if record.path is not None else OTHER_PATH
        of = self._of
        of(self.requests, model, path, str(record.status) if record.status is not None else "none").inc()
        if record.bypass is not None:
            of(self.bypasses, model, record.bypass.value).inc()
        if record.full is not None:
            of(self.full_encodes, model, record.full.value).inc()
        if record.encoded is not None:
            of(self.encoded, model, record.encoded.value).inc()
        if record.full_render is not None:
            of(self.full_renders, model, record.full_render.value).inc()
        stages = self._stages
        for stage, microseconds in record.stages_us.items():
            stages[stage].observe(microseconds / 1e6)
        if "ttfb" in record.stages_us and record.upstream is not None:
            of(self.ttfb, record.upstream).observe(record.stages_us["ttfb"] / 1e6)
        of(self.served, model).inc(record.served_chars or 0)
        of(self.scanned, model).inc(record.scanned_chars or 0)
        of(self.tokens, model).inc(record.tokens or 0)
        of(self.iterations, model).inc(record.iterations or 0)
        if record.error is not None:
            self.refusal(record.error)
        if record.prompt_tokens_equal is False:
            self.mismatches.labels(model).inc()
        for flag in record.flags:
            self.flags.labels(flag.value).inc()

    def _of(self, metric: Any, *labels: str) -> Any:
        """`metric.labels`, without its lock and its checks where they were asked for before."""
        key = (metric, *labels)
        child = self._bound.get(key)
        if child is None:
            child = self._bound[key] = metric.labels(*labels)
        return child

    def refusal(self, code: str) -> None:
        """Counts an error that TokTier itself answered with, by its code."""
        self.refusals.labels(code).inc()

    def load(self, *, connections: Callable[[], int], waiting: Callable[[], int], held: Callable[[], int]) -> None:
        """What is asked when the metrics are read: how near the process is to its limits."""
        self._connections.set_function(connections)
        self._waiting.set_function(waiting)
        self._body_bytes.set_function(held)

    def watch(
        self,
        sessions: Callable[[], tuple[int, int]] | None = None,
        upstreams: Callable[[], Mapping[str, str]] | None = None,
        upstream_states: Iterable[str] = (),
        quarantined: Callable[[], int] | None = None,
        shadow_waiting: Callable[[], int] | None = None,
    ) -> None:
        """What is asked when the metrics are read: (count, bytes) of the sessions; each upstream's state; two numbers.

        ``upstream_states`` are all states that there are, so that a state that is left reads 0. Call at most once.
        """
        numbers = (
            ("toktier_quarantined", "Tokenizers and paths in quarantine; a damaged file is one more", quarantined),
            ("toktier_shadow_waiting", "Checks that wait for a process", shadow_waiting),
        )
        self.registry.register(_Live(sessions, upstreams, tuple(upstream_states), numbers))

    def exposition(self, accept: str | None = None) -> tuple[bytes, str]:
        """The text for ``GET /metrics`` and its content type, as the client's Accept header names it."""
        encode, content_type = choose_encoder(_OPENMETRICS if openmetrics(accept) else "")
        return encode(self.registry), content_type

    async def sample_loop_lag(self, interval_s: float = 0.1) -> None:
        """Runs until cancelled: measures how late the loop wakes it."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + interval_s
            await asyncio.sleep(interval_s)
            self.loop_lag.observe(max(0.0, loop.time() - due))


class _Live(Collector):
    """Values that live elsewhere, read at each scrape."""

    def __init__(
        self,
        sessions: Callable[[], tuple[int, int]] | None,
        upstreams: Callable[[], Mapping[str, str]] | None,
        states: tuple[str, ...],
        numbers: tuple[tuple[str, str, Callable[[], int] | None], ...],
    ) -> None:
        self._sessions, self._upstreams, self._states, self._numbers = sessions, upstreams, states, numbers

    def describe(self) -> Iterable[Metric]:
        return []  # or the registry would collect at registration, before anything is there

    def collect(self) -> Iterable[Metric]:
        dropped = CounterMetricFamily("toktier_log_lines_dropped", "Log lines lost to a full queue or disk")
        dropped.add_metric([], dropped_lines())
        yield dropped
        if self._sessions is not None:
            count, size = self._sessions()
            yield GaugeMetricFamily("toktier_sessions", "Sessions in memory", value=count)
            yield GaugeMetricFamily("toktier_session_bytes", "Memory that sessions hold", value=size)
        for name, help_text, ask in self._numbers:
            if ask is not None:
                yield GaugeMetricFamily(name, help_text, value=ask())
        if self._upstreams is not None:
            family = GaugeMetricFamily(
                "toktier_upstream_state", "1 for the state it is in", labels=["upstream", "state"]
            )
            for upstream, present in self._upstreams().items():
                for state in dict.fromkeys((*self._states, present)):
                    family.add_metric([upstream, state], float(state == present))
            yield family
