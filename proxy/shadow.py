"""Checks beside the requests: which are made, and whose word counts. One object for the process.

Three judges: a shadow check (`toktier.shadow`: the reference, on the whole request, in another process), the engine's
``usage.prompt_tokens`` on every complete reply, and its ``/tokenize`` on a sample (`proxy.parity_sampling`). What
follows from a mismatch is in `proxy.mismatch`.

Invariants
1. A request waits for nothing here and never fails by it. The thread that prepared it queues its check; verdicts are
   acted on in the pool's threads, and what touches files on a thread of its own (`_desk`), never in the event loop.
2. Pool, quarantine and captures live as long as the process: a reload changes rates and what follows, nothing else.
3. What is drawn for a check ends in a ``shadow_check`` or a ``shadow_dropped`` line, at the end of the process too.
"""

from __future__ import annotations

import asyncio
import contextlib
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path as File
from threading import Lock
from typing import TYPE_CHECKING

import structlog

from proxy import config
from proxy.captures import FOLDER, Captures
from proxy.metrics import Metrics
from proxy.mismatch import Mismatches, contained, of_count, of_tokens, of_verdict
from proxy.parity_sampling import ParitySampling
from proxy.registry import Loaded, ModelRuntime
from proxy.sent import Content, Room, Sent
from proxy.workers import Workers
from toktier.ids import Ids, from_bytes
from toktier.quarantine import Quarantine, Source
from toktier.sessions import SessionStore
from toktier.shadow.job import Drop, Job, Sampled, Setup, Timing, Verdict, WorkerEvent, WorkerState
from toktier.shadow.pool import Pool
from toktier.shadow.sampling import Sampler, shape_of

if TYPE_CHECKING:
    from proxy.jsonspan import Parsed
    from toktier.tier import Prepared

_log = structlog.get_logger("toktier.shadow")

QUARANTINE_FILE = "quarantine.json"
REFRESH_S = 1.0
"""How often the quarantine's file is looked at: `toktier quarantine lift` is another process."""
ROOM_BYTES = 128 << 20
"""Memory for what is kept of requests until the engine has counted them (`proxy.sent`)."""
DESK_S = 15.0
"""How long the end of the process waits for files that are being written."""


def quarantine_file(settings: config.Settings) -> File:
    """Where a configuration's quarantine lies."""
    return settings.auth.state_dir / QUARANTINE_FILE


class Shadow:
    """Thread-safe but for `run`, `answered` and `close`, which belong to the event loop."""

    def __init__(self, settings: config.Settings, store: SessionStore, executor: Executor, metrics: Metrics) -> None:
        """``executor`` runs what the event loop must not. Reads the quarantine's file."""
        self.quarantine = Quarantine(quarantine_file(settings))
        self._metrics = metrics
        captures = Captures(settings.auth.state_dir / FOLDER)
        self._mismatches = Mismatches(settings.shadow, self.quarantine, store, captures, metrics)
        self._room = Room(ROOM_BYTES)
        self._parity = ParitySampling(executor, metrics, self._room, self._tokenized_otherwise)
        self._desk = Workers(1, "toktier-shadow-desk")
        self._lock = Lock()
        self._pool: Pool | None = None
        self._closed = False
        self._sent: dict[int, Sent] = {}
        """By the identity of a job that the pool has."""
        self._samplers: dict[str, tuple[tuple[float, int, bool], Sampler]] = {}
        self.configure(settings)

    def configure(self, settings: config.Settings) -> None:
        """Follow these settings from now on."""
        self._settings = self._mismatches.shadow = shadow = settings.shadow
        samplers = {}
        for name, model in settings.models.items():
            rate = shadow.rate if model.shadow_rate is None else model.shadow_rate
            key = rate, shadow.first, shadow.after_change
            known = self._samplers.get(name)
            if any(key):
                samplers[name] = known if known is not None and known[0] == key else (key, Sampler(*key))
        self._samplers = samplers

    async def run(self) -> None:
        """Follows the quarantine's file. Ends only by cancellation."""
        self._mismatches.tell_kept()
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(REFRESH_S)
            await loop.run_in_executor(self._desk, self._mismatches.refresh)

    async def close(self, timeout_s: float) -> None:
        """Within ``timeout_s`` seconds check what waits; the rest is dropped. Then end the processes."""
        await self._parity.close()
        with self._lock:
            pool, self._closed = self._pool, True

        def last() -> None:
            if pool is not None:
                pool.close(timeout_s)

        with contextlib.suppress(TimeoutError):  # a disk that hangs
            await self._desk.run(last, timeout_s + DESK_S)
        self._desk.shutdown()

    @property
    def waiting(self) -> int:
        """Checks that no process has begun."""
        return 0 if self._pool is None else self._pool.waiting

    # the requests

    def prepared(
        self, model: ModelRuntime, loaded: Loaded, parsed: Parsed, made: Prepared, request_id: str
    ) -> Sent | None:
        """IDs are ready to go upstream. Called by the thread that prepared them; queues a check where one is wanted.

        ``loaded``: what prepared them. Returns what `answered` is to be told with the engine's reply.
        """
        with contained("prepared", request_id):
            setup = loaded.setup
            rate = self._settings.parity_rate
            sent = Sent(
                request_id=request_id,
                model=model.name,
                upstream=model.upstream.name,
                path=made.path,
                full=made.full,
                session=made.session,
                chars=made.chars,
                tokens=len(made.ids),
                trust_digest=loaded.trust_digest or made.tokenizer_digest,
                tokenizer_digest=made.tokenizer_digest,
                template_digest=made.template_digest,
                versions=loaded.versions,
                certificate=loaded.certificate,
                setup=setup,
                content=self._room.keep(parsed.raw, made.texts, made.ids, made.text_bytes),
                question=self._parity.question(model, parsed, made.ids, request_id, rate, made.traits),
                by_gpu=made.by_gpu,
            )
            known = self._samplers.get(model.name)
            if known is not None and setup is not None:
                shape = shape_of(
                    parsed.outline, made.path, made.full, made.control_tokens, made.traits, by_gpu=made.by_gpu
                )
                sampled = known[1].wants(shape, made.path)
                if sampled is not None:
                    self._check(sent, sent.content or Content(parsed.raw, made.texts, made.ids), setup, sampled)
            return sent
        return None

    def answered(self, model: ModelRuntime, sent: Sent, prompt_tokens: int | None) -> None:
        """The engine answered the IDs with a complete 200; ``prompt_tokens`` is its ``usage``, None without one."""
        with contained("answered", sent.request_id):
            if prompt_tokens is not None and prompt_tokens != sent.tokens:
                self._desk.submit(self._counted_otherwise, sent, prompt_tokens)
            self._parity.offer(model, sent)

    def _check(self, sent: Sent, content: Content, setup: Setup, sampled: Sampled) -> None:
        pool = self._started()
        if pool is None:
            return
        job = Job(
            request_id=sent.request_id,
            model=sent.model,
            setup=setup,
            body=content.body,
            text=content.text,
            ids=content.ids_bytes(),
            path=sent.path,
            full=sent.full,
            session=sent.session,
            sampled=sampled,
            tokenizer_digest=sent.tokenizer_digest,
            template_digest=sent.template_digest,
            versions=sent.versions,
            prepared_at=sent.at,
        )
        # The job has the content already, and may wait longer than the room is meant for.
        self._sent[id(job)] = replace(sent, content=None, question=None)
        pool.submit(job)

    def _started(self) -> Pool | None:
        """The pool; None when it is closed already. Made with the first check."""
        if self._pool is None:
            with self._lock:
                if self._pool is None and not self._closed:
                    s = self._settings
                    self._pool = Pool(
                        s.workers,
                        s.queue_jobs,
                        s.queue_bytes,
                        s.timeout_s,
                        self._judged,
                        self._dropped,
                        self._worker,
                    )
        return self._pool

    # what comes of a check; in the pool's threads

    def _judged(self, job: Job, verdict: Verdict, timing: Timing) -> None:
        sent = self._sent.pop(id(job))
        with contained("verdict", job.request_id):
            if not verdict.equal:
                sent = replace(sent, content=Content(job.body, (job.text,), from_bytes(job.ids)))
                self._mismatches.found(Source.SHADOW, sent, of_verdict(verdict), timing.delay_us)
        result = "equal" if verdict.equal else "different"
        self._metrics.shadow_checks.labels(job.model, result).inc()
        self._metrics.shadow_delay.observe(timing.delay_us / 1e6)
        _log.info(
            "shadow_check",
            model=job.model,
            request_id=job.request_id,
            path=job.path.value,
            by_gpu=sent.by_gpu,
            sampled=job.sampled.value,
            result=result,
            chars=verdict.chars,
            tokens=verdict.tokens,
            delay_us=timing.delay_us,
            queue_us=timing.queue_us,
            check_us=timing.check_us,
        )

    def _dropped(self, job: Job, reason: Drop, detail: str) -> None:
        self._sent.pop(id(job), None)
        self._metrics.shadow_dropped.labels(job.model, reason.value).inc()
        _log.info(
            "shadow_dropped",
            model=job.model,
            request_id=job.request_id,
            sampled=job.sampled.value,
            reason=reason.value,
            detail=detail or None,
        )

    def _worker(self, event: WorkerEvent) -> None:
        lost = event.state in (WorkerState.DIED, WorkerState.KILLED)
        say = _log.warning if lost else _log.info
        say("shadow_worker", state=event.state.value, pid=event.pid, exit_code=event.exit_code)

    # the engine's word

    def _counted_otherwise(self, sent: Sent, prompt_tokens: int) -> None:
        with contained("usage", sent.request_id):
            self._mismatches.found(Source.USAGE, sent, of_count(sent, prompt_tokens), sent.age_us())
            if sent.setup is not None and sent.content is not None and sent.model in self._samplers:
                # Where the difference stands, if it is ours.
                self._check(sent, sent.content, sent.setup, Sampled.USAGE)

    def _tokenized_otherwise(self, sent: Sent, ours: Ids, theirs: Ids) -> None:
        self._mismatches.found(Source.TOKENIZE, sent, of_tokens(sent, ours, theirs), sent.age_us())
