"""The part of a campaign that runs in each process: blocks of cases on one subject, and failures made small.

Invariant: what a block yields is a function of the seed, its number and the tokenizer.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import sys
import threading
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import structlog

from toktier import panics
from toktier.campaign.edits import Account, BadChange, Change, apply, close, floor_of, is_close, run_rope
from toktier.campaign.minimise import escaped, smallest
from toktier.campaign.plants import Fault, Harmless, plant
from toktier.campaign.report import KEPT, CutTally, Failure, PlantReport, RopeTally
from toktier.campaign.seams import Seams
from toktier.campaign.subject import Subject, subject_of
from toktier.chunks import ChunkEncoder
from toktier.tokenizer import FrozenTokenizer

CUT_CASES, ROPES = 160, 5
"""Cases in a block."""
WITHOUT_FAULT = "without the fault"
"""Where a failure was found that is there although nothing was planted."""
_SHOWN = 3
"""Failures of one block that are made small and told."""


@dataclass(frozen=True)
class Setup:
    """What a process needs to begin: the tokenizer's source, the seed, and the file with the real texts (a JSON list).

    It must be small: it is written to a process that starts, and one that dies before it has read all of more than a
    pipe holds would never be noticed.
    """

    source: str
    revision: str | None
    sidecar: Path | None
    cache_dir: Path | None
    texts: Path
    seed: int


@dataclass(frozen=True)
class CutBlock:
    number: int


@dataclass(frozen=True)
class RopeBlock:
    number: int


@dataclass(frozen=True)
class PlantBlock:
    """Fault number ``number`` of its kind, to be found within so many checks or operations."""

    kind: str
    number: int
    checks: int
    operations: int
    of: int = 1
    """Faults of this kind in all."""


@dataclass(frozen=True)
class CutResult:
    tally: CutTally
    failures: list[Failure]
    cpu: float


@dataclass(frozen=True)
class RopeResult:
    tally: RopeTally
    failures: list[Failure]
    cpu: float


@dataclass(frozen=True)
class PlantResult:
    report: PlantReport
    cpu: float


class Worker:
    """Runs blocks."""

    def __init__(self, subject: Subject, seed: int) -> None:
        self.subject = subject
        self._seed = seed

    @cached_property
    def _seams(self) -> Seams:
        return Seams(self.subject)

    def run(self, block: CutBlock | RopeBlock | PlantBlock) -> CutResult | RopeResult | PlantResult:
        """A block of any kind."""
        if isinstance(block, CutBlock):
            return self.cuts(block)
        return self.ropes(block) if isinstance(block, RopeBlock) else self.plant(block)

    def cuts(self, block: CutBlock) -> CutResult:
        """`CUT_CASES` texts, the families in turn."""
        started = time.process_time()
        tally = CutTally()
        failures: list[Failure] = []
        for case in range(block.number * CUT_CASES, (block.number + 1) * CUT_CASES):
            text, family = self._cut_case(case)
            checks, bad = self._seams.check(text)
            tally.cases[family] += 1
            tally.checks[family] += checks
            tally.chars += len(text)
            if bad is not None:
                tally.failures[family] += 1
                if len(failures) < _SHOWN:
                    failures.append(self._small_cut("cuts", case, family, text))
        return CutResult(tally, failures, time.process_time() - started)

    def ropes(self, block: RopeBlock) -> RopeResult:
        """`ROPES` ropes."""
        started = time.process_time()
        tally = RopeTally()
        failures: list[Failure] = []
        for case in range(block.number * ROPES, (block.number + 1) * ROPES):
            account = tally.close if is_close(case) else tally.account
            bad = run_rope(self.subject, case, self._rng("ropes", case), account)
            tally.ropes += 1
            if bad is not None and len(failures) < _SHOWN:
                failures.append(self._small_change(case, bad))
        return RopeResult(tally, failures, time.process_time() - started)

    def plant(self, block: PlantBlock) -> PlantResult:
        """Plants a fault and looks for it as a campaign does."""
        started = time.process_time()
        rng = self._rng(f"plant {block.kind}", block.number)
        fault = plant(self.subject, block.kind, rng, block.number, block.of)
        if isinstance(fault, Harmless):
            report = PlantReport(block.kind, "", fault.candidates, "", None)
        else:
            report = Worker(fault.subject, self._seed)._find(fault, block, self)
        return PlantResult(report, time.process_time() - started)

    def _find(self, fault: Fault, block: PlantBlock, sound: Worker) -> PlantReport:
        report = PlantReport(fault.kind, fault.what, fault.harmless, _quoted(fault.witness), caught=False)
        needed = number = 0
        in_ropes = fault.kind.startswith("splice")
        while needed < (block.operations if in_ropes else block.checks):
            failure, done = self._plant_rope(number, sound) if in_ropes else self._plant_cut(number, sound)
            needed += done
            number += 1
            if failure is not None:
                return replace(
                    report,
                    caught=failure.where != WITHOUT_FAULT,
                    by=f"{failure.where}: {failure.family}, {failure.fault}",
                    needed=needed,
                    smallest=failure.text,
                    smallest_chars=failure.chars,
                )
        return replace(report, needed=needed)

    def _plant_cut(self, case: int, sound: Worker) -> tuple[Failure | None, int]:
        text, family = self._cut_case(case)
        checks, bad = self._seams.check(text)
        if bad is None:
            return None, checks
        where = WITHOUT_FAULT if sound._seams.check(text)[1] else "cuts"
        return self._small_cut(where, case, family, text), checks

    def _plant_rope(self, case: int, sound: Worker) -> tuple[Failure | None, int]:
        if floor_of(case):
            return None, 0  # a fault of the splice does not need the long texts
        account = Account()
        bad = run_rope(self.subject, case, self._rng("ropes", case), account)
        if bad is None:
            return None, account.operations
        failure = self._small_change(case, bad)
        if run_rope(sound.subject, case, self._rng("ropes", case), Account()):
            failure = replace(failure, where=WITHOUT_FAULT)
        return failure, account.operations

    def _cut_case(self, case: int) -> tuple[str, str]:
        families = self.subject.texts.families
        family = [*families][case % len(families)]
        return families[family](self._rng("cuts", case)), family

    def _rng(self, what: str, case: int) -> random.Random:
        return random.Random(f"{self._seed} {what} {case}")

    # failures made small

    def _small_cut(self, where: str, case: int, family: str, text: str) -> Failure:
        bad = self._seams.check(text)[1]
        assert bad is not None

        def fails(shorter: str) -> bool:
            found = self._seams.check(shorter)[1]
            return found is not None and found.level == bad.level

        small = smallest(text, fails, around=bad.cut)
        again = self._seams.check(small)[1]
        return Failure(where, case, family, bad.level, _quoted(small), len(small), again.cut if again else None)

    def _small_change(self, case: int, bad: BadChange) -> Failure:
        """As a cut, if one in the text is wrong; otherwise the change, on a rope of its own if that still shows it: the
        most closely cut one that does."""
        after = bad.change.of(bad.before)
        if bad.fault == "ids" and self._seams.check(after)[1] is not None:
            return self._small_cut("ropes", case, bad.change.family, after)
        before, change = bad.before, bad.change
        own = close(self.subject.encoder) if is_close(case) else self.subject.encoder
        closest = close(self.subject.encoder, 2)
        encoder = closest if self._fails(before, change, bad.fault, closest) else own
        head, tail, removed = before[: change.start], before[change.end :], before[change.start : change.end]

        def made(head: str, removed: str, tail: str, new: str) -> tuple[str, Change]:
            return head + removed + tail, replace(change, start=len(head), end=len(head) + len(removed), new=new)

        def fails(head: str, removed: str, tail: str, new: str) -> bool:
            return self._fails(*made(head, removed, tail, new), bad.fault, encoder)

        if fails(head, removed, tail, change.new):
            budget = max(10, 200_000 // (len(before) + 1))
            new = smallest(change.new, lambda t: fails(head, removed, tail, t), budget=budget) if change.new else ""
            tail = smallest(tail, lambda t: fails(head, removed, t, new), budget=budget) if tail else ""
            head = smallest(head, lambda t: fails(t, removed, tail, new), budget=budget) if head else ""
            removed = smallest(removed, lambda t: fails(head, t, tail, new), budget=budget) if removed else ""
            before, change = made(head, removed, tail, new)
        told = {
            "step": bad.step,
            "start": change.start,
            "end": change.end,
            "new": _quoted(change.new),
            "new_chars": len(change.new),
            "whole": change.whole,
        }
        return Failure("ropes", case, change.family, bad.fault, _quoted(before), len(before), change=told)

    def _fails(self, before: str, change: Change, fault: str, encoder: ChunkEncoder) -> bool:
        encode = self.subject.reference.encode
        rope = self.subject.rope(encoder)
        rope.set(before)
        after = change.of(before)
        return apply(rope, change, after, encode(before), encode(after)) == fault


def _quoted(text: str) -> str:
    return escaped(text if len(text) <= KEPT else text[: KEPT // 2] + "\u2026" + text[-KEPT // 2 :])


# the process

_worker: Worker | None = None


def start(setup: Setup) -> None:
    """In a new process: load the tokenizer; one thread, for the other cores have processes of their own."""
    global _worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # read by the engines at their first batch
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ["RAYON_NUM_THREADS"] = "1"
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    with panics.unreported():
        tokenizer = FrozenTokenizer.load(
            setup.source, revision=setup.revision, sidecar=setup.sidecar, cache_dir=setup.cache_dir
        )
    real = json.loads(setup.texts.read_text("ascii"))
    _worker = Worker(subject_of(tokenizer, real), setup.seed)


def _end_with_parent() -> None:
    """Without whoever started it a process would wait for blocks for ever: it holds both ends of the pipe itself."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def run_block(block: CutBlock | RopeBlock | PlantBlock) -> CutResult | RopeResult | PlantResult:
    """In a process that has started."""
    assert _worker is not None
    return _worker.run(block)
