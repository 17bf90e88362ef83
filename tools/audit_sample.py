"""A made-up log, seeded, with everything in it that `toktier audit` tells about: for docs/audit.md and for tests.

Its lines have the form of real ones; its numbers are drawn, not measured.
"""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import orjson
from rich.console import Console

from proxy.audit import SCHEMA, Flag, RequestRecord
from proxy.audit_report import report, show
from proxy.audit_report.collect import Collected
from proxy.audit_report.values import iso
from toktier.reasons import Bypass, Cause, FullEncode, Path

START_US = 1_796_041_800_000_000
MODELS = ("Qwen/Qwen3-8B", "small")
DIGESTS = {"Qwen/Qwen3-8B": "b1946ac92492d2347c6235b4d2611184" * 2, "small": "591785b794601e212b260e25925636fd" * 2}
_PATHS = ((Path.APPEND, 70), (Path.EDIT, 10), (Path.INIT, 8), (Path.COMPACTION, 2), (Path.RETRY, 2), (Path.BYPASS, 8))
_STAGES = {
    "read": 130, "parse": 160, "normalise": 60, "render": 900, "match": 40, "splice": 350, "serialise": 90,
    "connect": 110, "ttfb": 95_000, "total": 900_000,
}  # fmt: skip


def line(event: str, moment: int, level: str = "info", **fields: Any) -> dict[str, Any]:
    """One event as the log has it, at a moment in microseconds since 1970."""
    ts = f"{iso(moment)[:-1]}.{moment % 1_000_000:06d}Z"
    return {"ts": ts, "level": level, "schema": SCHEMA, "event": event, **fields}


def request(rng: random.Random, moment: int, models: tuple[str, ...] = MODELS, **changes: Any) -> dict[str, Any]:
    """A request's line with every field of the real record; ``changes`` go over what is drawn."""
    path = rng.choices([path for path, _ in _PATHS], [weight for _, weight in _PATHS])[0]
    model = models[rng.randrange(4) % len(models)]
    record = RequestRecord(f"{rng.getrandbits(128):032x}", "/v1/chat/completions", model=model, upstream="gpu")
    record.tenant, record.session = f"{rng.getrandbits(64):016x}", f"{rng.getrandbits(64):016x}"
    record.stream, record.attempts, record.messages = True, 1, rng.randint(2, 80)
    chars = rng.randint(500, 5000) * rng.choice((1, 3, 10, 30))
    if path is Path.BYPASS:
        record.bypassed(rng.choice((Bypass.MULTIMODAL, Bypass.TEMPLATE_ERROR, Bypass.CLIENT_NVEXT)))
    else:
        record.path, record.chars, record.served_chars, record.tokens = path, chars, chars, chars // 4
        record.cause = Cause.TEMPLATE_HISTORY_REWRITE if path is Path.EDIT else Cause.NONE
        record.full = FullEncode.NO_SESSION if path is Path.INIT else None
        record.scanned_chars = chars if record.full else min(chars, rng.randint(40, 4000))
        record.tokenizer_digest = DIGESTS[model]
        record.usage(record.tokens)
    if rng.random() < 0.01:
        record.flags.add(Flag.CLIENT_GONE)
    record.stages_us = {stage: _time(rng, typical) for stage, typical in _STAGES.items()}
    record.status = record.upstream_status = 200 if rng.random() < 0.995 else 503
    return line("request", moment, **{**record.fields(), **changes})


def _time(rng: random.Random, typical: int) -> int:
    return typical * rng.randint(30, 170) * rng.choice((50, 80, 100, 100, 130, 250, 600)) // 10_000


def lines(requests: int = 4000, seed: int = 4, models: tuple[str, ...] = MODELS) -> Iterator[dict[str, Any]]:
    """A day's afternoon: traffic, shadow checks, one mismatch, its quarantine and the lift, and a few lost lines."""
    rng = random.Random(seed)
    step = 7_200_000_000 // requests
    yield line(
        "listening", START_US, urls=["http://127.0.0.1:8080"], port=8080, pid=1, version="0", models=list(MODELS)
    )
    for number in range(requests):
        moment = START_US + number * step + rng.randrange(step)
        served = request(rng, moment, models)
        yield served
        if served["tokens"] is not None and rng.random() < 0.03:
            yield _checked(rng, served, moment)
        if served["tokens"] is not None and rng.random() < 0.005:
            yield _compared(rng, served, moment)
        if number == requests // 2:
            yield from _mismatch(moment, served["request_id"])
    yield line("log_dropped", START_US + 7_200_000_000, "warning", lines=3)


def _checked(rng: random.Random, served: dict[str, Any], moment: int) -> dict[str, Any]:
    delay = _time(rng, 100_000)
    about: dict[str, Any] = {"model": served["model"], "request_id": served["request_id"]}
    if rng.random() < 0.04:
        return line("shadow_dropped", moment + delay, **about, reason=rng.choice(("queue_full", "worker_died")))
    sampled = rng.choice(("rate", "rate", "first"))
    about |= {"path": served["path"], "sampled": sampled, "chars": served["chars"], "tokens": served["tokens"]}
    times: dict[str, Any] = {"delay_us": delay, "queue_us": delay // 3, "check_us": delay // 2}
    return line("shadow_check", moment + delay, **about, result="equal", **times)


def _compared(rng: random.Random, served: dict[str, Any], moment: int) -> dict[str, Any]:
    delay = _time(rng, 40_000)
    about: dict[str, Any] = {"model": served["model"], "request_id": served["request_id"]}
    if rng.random() < 0.2:
        return line("parity_skipped", moment + delay, **about, reason="busy")
    about |= {"path": served["path"], "chars": served["chars"], "tokens": served["tokens"]}
    return line("parity_check", moment + delay, **about, result="equal", delay_us=delay)


def _mismatch(moment: int, request_id: str) -> Iterator[dict[str, Any]]:
    model = MODELS[0]
    place = {"tokenizer_digest": DIGESTS[model], "path": Path.APPEND.value}
    about = {"model": model, "request_id": request_id}
    times: dict[str, Any] = {"delay_us": 214_000, "queue_us": 60_000, "check_us": 120_000}
    checked: dict[str, Any] = {"path": Path.APPEND.value, "sampled": "rate", "chars": 48_213, "tokens": 12_053}
    yield line("shadow_check", moment + 214_000, **about, **checked, result="different", **times)
    found: dict[str, Any] = {
        "source": "shadow",
        "upstream": "gpu",
        "kind": "ids",
        "tokens": 12_053,
        "reference_tokens": 12_054,
    }
    found |= {"first_id": 11_870, "first_char": 47_511, "piece": 9_804, "piece_start": 47_509, "piece_chars": 5}
    found |= {"versions": {"tokenizers": "0.23.3"}, "delay_us": 214_000, "capture": None}
    found |= {"suspects": [Path.APPEND.value]}
    yield line("mismatch", moment + 214_100, "error", **about, **place, **found)
    level = {"quarantine_level": "reference", "source": "shadow"}
    yield line("quarantined", moment + 214_200, "error", **place, **level, model=model, request_id=request_id)
    lifted = {**place, "quarantine_level": "reference", "by": "command"}
    yield line("quarantine_lifted", moment + 1_300_000_000, "warning", **lifted)


def collected(**options: Any) -> Collected:
    """The sample, read. ``options`` as for `lines`."""
    found = Collected()
    for one in lines(**options):
        found.take(orjson.dumps(one))
    return found


def text() -> str:
    """What `toktier audit` prints of the sample with one model."""
    console = Console(file=io.StringIO(), width=110, highlight=False, color_system=None)
    show.show(report.build(collected(models=MODELS[:1])), console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(row.rstrip() for row in console.file.getvalue().splitlines())
