"""Shadow jobs for tests: a tier over real files, its requests as jobs, and what a pool says of them."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path as File
from typing import Any

import numpy as np

from tests.conftest import data_path
from tests.support.models import CACHE
from toktier.postprocessor import SpecialTokens
from toktier.profiles.base import ProfileSettings
from toktier.profiles.sglang import SglangProfile
from toktier.profiles.vllm import VllmProfile
from toktier.reasons import FullEncode, Path
from toktier.sessions import SessionStore
from toktier.shadow.job import (
    Drop,
    Job,
    Kind,
    Piece,
    Sampled,
    Setup,
    Timing,
    Verdict,
    WorkerEvent,
    WorkerState,
    setup_of,
)
from toktier.template import ChatTemplate
from toktier.tier import ModelTier
from toktier.tokenizer import FrozenTokenizer

SETTINGS = ProfileSettings(engine_version="0.32.0")
PLAIN = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)

SETUP = Setup("s", None, None, None, "vllm", ProfileSettings({"a": [1, 1.0, None]}), "t", "c")
JOB = Job(
    request_id="r",
    model="m",
    setup=SETUP,
    body=b'{"messages": []}',
    text="a\u00e9\U0001f600\ud800",
    ids=b"\1\0\0\0",
    path=Path.APPEND,
    full=FullEncode.NO_CUT,
    session="s",
    sampled=Sampled.FIRST,
    tokenizer_digest="t",
    template_digest="c",
    versions={"e": "1"},
    prepared_at=1.5,
)
VERDICT = Verdict(Kind.IDS, 1, 2, 3, 4, "a", "b", "c", "d", 5, 6, Piece(7, 8, 9), {"load": 1})


@dataclass(frozen=True)
class Subject:
    """A tier and what a worker needs to check it."""

    tier: ModelTier
    setup: Setup

    def job(self, body: dict[str, Any], *, tenant: str = "t", **changes: Any) -> Job:
        """``body`` as the tier answers it; ``changes`` to the job."""
        prepared = self.tier.prepare(tenant, body)
        job = Job(
            request_id="r",
            model="m",
            setup=self.setup,
            body=json.dumps(body).encode(),
            text=prepared.text,
            ids=prepared.ids.astype("<u4").tobytes(),
            path=prepared.path,
            full=prepared.full,
            session=prepared.session,
            sampled=Sampled.RATE,
            tokenizer_digest=prepared.tokenizer_digest,
            template_digest=prepared.template_digest,
            versions={},
            prepared_at=time.monotonic(),
        )
        return replace(job, **changes)


def subject(
    tokenizer: FrozenTokenizer,
    *,
    template: File | None = None,
    profile: str = "vllm",
    sidecar: File | None = None,
    special: bool = False,
    settings: ProfileSettings = SETTINGS,
) -> Subject:
    """``template``: an operator's own; ``special``: special tokens may be asked for."""
    loaded = ChatTemplate.load(tokenizer, override=template)
    assert loaded is not None
    rules = SglangProfile() if profile == "sglang" else VllmProfile()
    around: SpecialTokens | None = tokenizer.special if special else None
    tier = ModelTier("m", tokenizer, loaded, rules, settings, SessionStore(10**9), special=around)
    told = None if template is None else str(template)
    return Subject(tier, setup_of(tier, chat_template=told, sidecar=None if sidecar is None else str(sidecar)))


def small(folder: File, template: str = PLAIN) -> Subject:
    """Over a copy of a small synthetic tokenizer, which workers load in no time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_bytes(data_path("cases", "tok_qwenlike.json").read_bytes())
    (folder / "own.jinja").write_text(template)
    tokenizer = replace(_small(), source=str(folder), folder=folder)  # the same bytes, so the same tokenizer
    return subject(tokenizer, template=folder / "own.jinja")


@cache
def _small() -> FrozenTokenizer:
    return FrozenTokenizer.load(data_path("cases", "tok_qwenlike.json"), cache_dir=CACHE, window=False)


def ids_of(job: Job) -> list[int]:
    return np.frombuffer(job.ids, "<u4").tolist()


def with_ids(job: Job, ids: list[int]) -> Job:
    return replace(job, ids=np.array(ids, "<u4").tobytes())


def say(*texts: str) -> dict[str, Any]:
    """A body with user and assistant in turn."""
    roles = ("user", "assistant")
    return {"model": "m", "messages": [{"role": roles[k % 2], "content": text} for k, text in enumerate(texts)]}


class Ends:
    """The callbacks of a pool, and what they were told."""

    def __init__(self) -> None:
        self.results: list[tuple[Job, Verdict, Timing]] = []
        self.drops: list[tuple[Job, Drop, str]] = []
        self.workers: list[WorkerEvent] = []
        self._changed = threading.Condition()

    def on_result(self, job: Job, verdict: Verdict, timing: Timing) -> None:
        with self._changed:
            self.results.append((job, verdict, timing))
            self._changed.notify_all()

    def on_drop(self, job: Job, reason: Drop, detail: str) -> None:
        with self._changed:
            self.drops.append((job, reason, detail))
            self._changed.notify_all()

    def on_worker(self, event: WorkerEvent) -> None:
        with self._changed:
            self.workers.append(event)
            self._changed.notify_all()

    @property
    def all(self) -> list[str]:
        """The request ids of all jobs that have ended."""
        return [job.request_id for job, *_ in [*self.results, *self.drops]]

    @property
    def states(self) -> list[WorkerState]:
        return [event.state for event in self.workers]

    @property
    def reasons(self) -> list[Drop]:
        return [reason for _, reason, _ in self.drops]

    @property
    def pid(self) -> int:
        """Of the worker that started last."""
        return next(event.pid for event in reversed(self.workers) if event.state is WorkerState.STARTED)

    def wait(self, count: int, timeout_s: float = 240.0) -> None:
        """Until so many jobs have ended."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.all) >= count, timeout_s), (count, self.all)

    def wait_for(self, state: WorkerState, timeout_s: float = 240.0) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: state in self.states, timeout_s), (state, self.states)
