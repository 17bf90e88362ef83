"""A campaign on all cores: blocks go to processes, results are taken in the order of their numbers.

Invariants:
- what is counted is an unbroken row of blocks from number 0, as long as needed, so the outcome depends on the seed and
  the numbers asked for, and not on how many processes there were (a limit in seconds shortens the row);
- a bounded number of blocks is under way, and a result holds counts and a few short texts: memory does not grow;
- processes are spawned, never forked: an engine's thread pool does not survive a fork.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, Protocol

from toktier import files as sources
from toktier import panics
from toktier.campaign import worker
from toktier.campaign.edits import OPERATIONS
from toktier.campaign.plants import kinds
from toktier.campaign.report import CutTally, Report, RopeTally
from toktier.campaign.subject import subject_of
from toktier.campaign.worker import (
    CUT_CASES,
    ROPES,
    CutBlock,
    PlantBlock,
    PlantResult,
    RopeBlock,
    Setup,
    Worker,
)
from toktier.chunks import GpuPath
from toktier.errors import TokTierError
from toktier.files import TokenizerFiles
from toktier.tokenizer import FrozenTokenizer

PLANTS = 5
"""Faults of each kind."""
ENOUGH = 20
"""Failures after which a campaign ends."""
_AHEAD = 2
"""Blocks under way per process."""
_ENDS = (signal.SIGINT, signal.SIGTERM)

Progress = Callable[[Report, float], None]
"""Told the report so far and the share of the work that is done, 0 to 1."""


GpuOf = Callable[[FrozenTokenizer, TokenizerFiles], GpuPath]
"""Makes the GPU path of a tokenizer, ready to be used."""


class ProcessLost(TokTierError):
    """A worker process ended by itself (out of memory, most likely; fewer jobs need less)."""


@dataclass(frozen=True)
class Plan:
    """How much: cut checks, rope operations, seconds once the first block is done (None: no limit; however few they
    are, a block of each kind is done).

    ``plants``: faults of each kind, instead of all that.
    """

    cases: int = 1_000_000
    rope_ops: int = 100_000
    seconds: float | None = None
    seed: int = 0
    jobs: int = 0
    """Processes; 0: one for each core that this process may use; 1: none but this."""
    plants: int = 0
    plant_checks: int = 300_000
    plant_operations: int = 5_000

    @property
    def processes(self) -> int:
        """``jobs`` with 0 resolved."""
        if self.jobs:
            return self.jobs
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Row(Protocol):
    """A row of blocks of one kind."""

    goal: int

    def block(self, number: int) -> CutBlock | RopeBlock | PlantBlock: ...
    def take(self, result: Any) -> None: ...
    @property
    def done(self) -> int: ...


@dataclass
class _Checks:
    """Blocks of cut checks or of rope operations; ``guess``: how many one yields."""

    report: Report
    goal: int
    tally: CutTally | RopeTally
    kind: type[CutBlock | RopeBlock]
    guess: float

    def block(self, number: int) -> CutBlock | RopeBlock:
        return self.kind(number)

    def take(self, result: Any) -> None:
        self.tally.add(result.tally)
        self.report.failures += result.failures

    @property
    def done(self) -> int:
        return self.tally.done


@dataclass
class _Plants:
    report: Report
    blocks: list[PlantBlock]
    guess: float = 1.0

    @property
    def goal(self) -> int:
        return len(self.blocks)

    def block(self, number: int) -> PlantBlock:
        return self.blocks[number]

    def take(self, result: PlantResult) -> None:
        assert self.report.plants is not None
        self.report.plants.append(result.report)

    @property
    def done(self) -> int:
        return len(self.report.plants or ())


@dataclass
class _Feed:
    """The state of one row: which blocks are out, which came back before their turn."""

    row: Any
    next: int = 0
    taken: int = 0
    early: dict[int, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return bool(self.row.done >= self.row.goal)

    @property
    def share(self) -> float:
        return min(1.0, self.row.done / self.row.goal) if self.row.goal else 1.0

    @property
    def promised(self) -> float:
        """The share that will be done once all blocks that are out are back, as far as one can tell."""
        each = self.row.done / self.taken if self.taken and self.row.done else self.row.guess
        return float(self.next * each / self.row.goal)

    def came(self, number: int, result: Any) -> float:
        """CPU seconds of the results whose turn it is; those beyond the goal are left out."""
        self.early[number] = result
        cpu = 0.0
        while not self.complete and self.taken in self.early:
            due = self.early.pop(self.taken)
            self.row.take(due)
            self.taken += 1
            cpu += due.cpu
        return cpu


def run(
    source: str | Path,
    plan: Plan,
    *,
    revision: str | None = None,
    sidecar: Path | None = None,
    cache_dir: Path | None = None,
    real: Sequence[str] = (),
    progress: Progress | None = None,
    gpu: GpuOf | None = None,
) -> Report:
    """Loads the tokenizer, then does what the plan says. ``real``: texts beside those that are drawn;
    ``revision`` and ``sidecar`` as in `FrozenTokenizer.load`. ``gpu``: what ropes ask first; the plan then has one job,
    since a device belongs to one process.

    Raises `UnusableFile`, the `Refusal` of a tokenizer without a certificate, and `ProcessLost`. A `KeyboardInterrupt`
    (Ctrl-C, or what a handler of SIGTERM raises) ends it early once it has begun; the report says so.
    """
    started = time.monotonic()
    with panics.unreported():
        read = sources.read(source, revision=revision, sidecar=sidecar)
        tokenizer = FrozenTokenizer.from_files(read, cache_dir=cache_dir, certified_only=True)
    subject = subject_of(tokenizer, real, None if gpu is None else gpu(tokenizer, read))
    report = _report(tokenizer, plan, real)
    rows: list[Any] = []
    if plan.plants:
        report.plants = []
        blocks = [
            PlantBlock(kind, number, plan.plant_checks, plan.plant_operations, of)
            for kind in kinds()
            for of in [1 if kind == "interior" or kind.startswith("splice") else plan.plants]
            for number in range(of)
        ]
        rows.append(_Plants(report, blocks))
    else:
        report.cuts, report.ropes = CutTally(), RopeTally()
        rows += [
            _Checks(report, plan.cases, report.cuts, CutBlock, 20.0 * CUT_CASES),
            _Checks(report, plan.rope_ops, report.ropes, RopeBlock, 1.0 * ROPES * OPERATIONS),
        ]
    report.cpu_seconds = 0.0
    try:
        with tempfile.TemporaryDirectory(prefix="toktier-campaign-") as folder, ExitStack() as stack:
            if plan.processes == 1:
                submit = _here(Worker(subject, plan.seed))
            else:
                texts = Path(folder, "texts.json")
                texts.write_text(json.dumps(real), "ascii")
                setup = Setup(str(source), revision, sidecar, cache_dir, texts, plan.seed)
                submit = stack.enter_context(_pool(plan, setup))
            _drive([_Feed(row) for row in rows], submit, plan, report, progress)
    except KeyboardInterrupt:
        report.ended = "interrupted"
    except BrokenProcessPool as error:
        raise ProcessLost("a worker process ended by itself, for lack of memory perhaps: try fewer --jobs") from error
    report.seconds = time.monotonic() - started
    return report


def _drive(
    feeds: list[_Feed],
    submit: Callable[[Any], Future[Any]],
    plan: Plan,
    report: Report,
    progress: Progress | None,
) -> None:
    out: dict[Future[Any], tuple[_Feed, int]] = {}
    limit = 1 if plan.processes == 1 else _AHEAD * plan.processes
    deadline: float | None = None
    while True:
        over = deadline is not None and time.monotonic() >= deadline
        late = over and all(f.taken or f.complete for f in feeds)
        while not late and len(out) < limit:
            open_ = [f for f in feeds if not f.complete and (f.promised < 1.0 if not over else not f.next)]
            if not open_ and not out and not over:
                # what blocks yield was guessed too high: one more
                open_ = [f for f in feeds if not f.complete]
            if not open_:
                break
            feed = min(open_, key=lambda f: f.promised)
            out[submit(feed.row.block(feed.next))] = (feed, feed.next)
            feed.next += 1
        if not out or late:
            report.ended = "time" if late and not all(f.complete for f in feeds) else report.ended
            return
        timeout = None if deadline is None or over else max(0.0, deadline - time.monotonic())
        for future in wait(out, timeout, FIRST_COMPLETED).done:
            feed, number = out.pop(future)
            assert report.cpu_seconds is not None
            report.cpu_seconds += feed.came(number, future.result())
            if deadline is None and plan.seconds is not None:
                deadline = time.monotonic() + plan.seconds
        if progress is not None:
            progress(report, sum(f.share for f in feeds) / len(feeds))
        if len(report.failures) >= ENOUGH:
            report.ended = "failures"
            return
        if all(f.complete for f in feeds):
            return


def _here(worker: Worker) -> Callable[[Any], Future[Any]]:
    """This process takes blocks, at once."""

    def at_once(block: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(worker.run(block))
        return future

    return at_once


@contextmanager
def _pool(plan: Plan, setup: Setup) -> Iterator[Callable[[Any], Future[Any]]]:
    """Spawned processes take blocks; they are gone when the block ends."""
    resource_tracker.ensure_running()  # by itself it would undo the mask below, in the middle of a start
    pool = ProcessPoolExecutor(
        plan.processes, multiprocessing.get_context("spawn"), initializer=worker.start, initargs=(setup,)
    )

    def submit(block: Any) -> Future[Any]:
        with _undisturbed():  # this may start a process
            return pool.submit(worker.run_block, block)

    try:
        yield submit
    finally:
        # blocks that are under way take a second or two; a process is never killed in the middle of one
        with _undisturbed():
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C and SIGTERM wait until the block ends, and processes that start in it never see Ctrl-C: they inherit the
    mask. SIGTERM they do see, since the pool ends them by it where one of them is lost.

    The mask alone is not enough here: another thread may take the signal, and Python would still raise in this one.
    """
    came: list[int] = []
    here = threading.current_thread() is threading.main_thread()
    handlers = {n: signal.signal(n, lambda number, _: came.append(number)) for n in _ENDS} if here else {}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    for one in came:
        signal.raise_signal(one)


def _report(tokenizer: FrozenTokenizer, plan: Plan, real: Sequence[str]) -> Report:
    certificate = tokenizer.certificate
    assert certificate is not None
    digest = hashlib.sha256()
    for text in real:
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return Report(
        tokenizer={
            "source": tokenizer.source,
            "revision": tokenizer.revision,
            "digest": tokenizer.digest,
            "window": f"{tokenizer.window.name} {tokenizer.window.version}",
            "window_refusal": tokenizer.window_refusal,
        },
        certificate={
            "digest": certificate.digest,
            "classes": len(certificate.table.matrix),
            "cut_pairs": int((certificate.table.matrix != 0).sum()),
            "interior": certificate.interior,
            "needs_next": certificate.needs_next,
            "merges_asked": certificate.table.joins is not None,
        },
        versions={"toktier-proxy": version("toktier-proxy"), **dict(v.rsplit(" ", 1) for v in tokenizer.versions)},
        texts=digest.hexdigest()[:16],
        seed=plan.seed,
        jobs=plan.processes,
    )
