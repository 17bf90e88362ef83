"""The shipped Prometheus and Grafana files, and the page on metrics, name only metrics and labels that there are."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from proxy.audit import RequestRecord
from proxy.config import Gpu
from proxy.error_codes import CODES, IN_STREAM
from proxy.gpu import GpuCollector, Gpus
from proxy.metrics import Metrics
from tests.support.byte_device import ByteDevice
from tests.support.proxy import running, settings_for
from toktier.reasons import Bypass, FullEncode, FullRender
from toktier.shortcuts import Way

CONF = Path(__file__).resolve().parents[2] / "conf"


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((CONF / "toktier-alerts.yml").read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    yield from (rule["expr"] for rule in rules())
    for panel in json.loads((CONF / "grafana-toktier.json").read_text("utf-8"))["panels"]:
        yield from (target["expr"] for target in panel["targets"])


@pytest.fixture(scope="module")
def known() -> dict[str, set[str]]:
    """Every series' name and its labels."""
    metrics = Metrics()
    gpus = Gpus(Gpu(), lambda _: ByteDevice())
    metrics.registry.register(GpuCollector(gpus))
    metrics.watch(lambda: (0, 0), lambda: {"u": "ok"}, ("ok",), lambda: 0, lambda: 0)
    for counter, label in (
        (metrics.shadow_checks, "equal"),
        (metrics.shadow_dropped, "timeout"),
        (metrics.parity_checks, "equal"),
        (metrics.parity_skips, "busy"),
        (metrics.mismatch_found, "usage"),
    ):
        counter.labels("m", label)
    record = RequestRecord("i", "r", bypass=Bypass.ECHO, full=FullEncode.NO_CUT, prompt_tokens_equal=False, status=200)
    record.upstream, record.stages_us, record.error = "u", {"ttfb": 1}, "invalid_json"
    record.full_render, record.encoded = FullRender.UNFOLDABLE, Way.WHOLE
    metrics.observe(record)
    series: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(metrics.exposition()[0].decode()):
        for sample in family.samples:
            series.setdefault(sample.name, set()).update(sample.labels)
    gpus.close()
    return series


def test_expressions_use_series_and_labels_that_exist(known: dict[str, set[str]]) -> None:
    checked = 0
    for expression in expressions():
        names = re.findall(r"\b(?:toktier|process)_\w+", expression)
        assert names, expression
        labels = set().union(*(known[name] for name in names))
        used = set(re.findall(r"[{,]\s*(\w+)\s*=~?", expression))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            used |= {label.strip() for label in group.split(",")}
        assert used <= labels, expression
        checked += 1
    assert checked >= 15


def selected(expression: str) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Every series' name in an expression, with each set of label values that its matchers name."""
    for name, matchers in re.findall(r"\b(toktier_\w+)(?:\{([^}]*)\})?", expression):
        found = re.findall(r'(\w+)=~?"([^"]*)"', matchers)
        values = [[(label, value) for value in values.split("|")] for label, values in found]
        yield name, [dict(pairs) for pairs in product(*values)]


async def test_a_fresh_proxy_has_every_series_that_an_alert_waits_for(tmp_path: Path) -> None:
    """With 0: Prometheus sees no increase of a counter that is born with 1."""
    settings = settings_for("http://127.0.0.1:9", tmp_path, models={"n": {"upstream": "e"}, "m": {"upstream": "e"}})
    async with running(settings, wait=None) as proxy, aiohttp.ClientSession() as client:
        async with client.get(proxy.url + "/metrics") as reply:
            families = text_string_to_metric_families(await reply.text())
        samples = [sample for family in families for sample in family.samples]
    assert len(rules()) >= 9
    for rule in rules():
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        for name, wanted in selected(rule["expr"]):
            for labels in wanted:
                found = [one for one in samples if one.name == name and labels.items() <= one.labels.items()]
                assert found, (rule["alert"], name, labels)
                assert shown <= set(found[0].labels), rule["alert"]
                if "model" in found[0].labels:
                    assert {one.labels["model"] for one in found} == {"m", "n"}, rule["alert"]
                if name.endswith("_total"):
                    assert {one.value for one in found} == {0.0}, rule["alert"]
    judges = [(one.labels["model"], one.labels["source"]) for one in samples if one.name == "toktier_mismatch_total"]
    assert sorted(judges) == sorted(product(("m", "n"), ("shadow", "usage", "tokenize")))
    refusals = {one.labels["code"] for one in samples if one.name == "toktier_refusal_total"}
    assert refusals == {*CODES, *IN_STREAM}


def test_the_page_lists_every_metric_and_label(known: dict[str, set[str]]) -> None:
    page = (CONF.parent / "docs" / "metrics.md").read_text("utf-8")
    listed = {
        name: set(re.findall(r"`(\w+)`", labels))
        for name, labels in re.findall(r"^\| `(\w+)` \| (.*?) ?\|", page, re.M)
    }
    present: dict[str, set[str]] = {}
    for name, labels in known.items():
        if name.startswith("toktier_"):
            base = re.sub(r"_(bucket|count|sum)$", "", name) if f"{name.rpartition('_')[0]}_bucket" in known else name
            present.setdefault(base, set()).update(labels - {"le"})
    assert listed == present


def test_prometheus_loads_the_shipped_rules() -> None:
    config = yaml.safe_load((CONF / "prometheus.yml").read_text("utf-8"))
    assert [CONF / name for name in config["rule_files"]] == [CONF / "toktier-alerts.yml"]
    assert config["scrape_configs"][0]["metrics_path"] == "/metrics"


def test_panels_have_distinct_places_and_ids() -> None:
    panels = json.loads((CONF / "grafana-toktier.json").read_text("utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
