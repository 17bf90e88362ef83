"""Account *library*: a full encode of a text that nothing is known of; served and scanned characters are the same.

- *fresh*: a new session of a million characters beside ``Tokenizer.encode`` (HF), one thread whatever the number of
  cores, and fastokens with one thread. Every round has another text; all engines get it, in turn.
- *worst*: eight texts that are hard for some engine, beside the reference (``encode_batch_fast`` of one text). There is
  a limit on how much slower the session may be: `LIMIT`.

Results are compared with each other before they count.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tools.bench.progress import progress_bar
from tools.bench.records import OURS, in_words
from tools.bench.texts import WORST
from tools.bench.worker import Unmeasured, Worker

ACCOUNT = "library"
LIMIT = 1.1
CORES = (1, 2)
ONE_THREAD = "fastokens-1-thread"
_ROUNDS = 9
"""Odd; single runs of one engine on one text were seen to differ by a factor of two, medians of one process by 13 %."""


@dataclass(frozen=True)
class Full:
    """The median of ``n`` runs in microseconds; 0 where there is none, for the reason in ``note``."""

    account: str
    tokenizer: str
    text: str
    cores: int
    engine: str
    size: int
    n: int
    p50_us: float
    note: str = ""


def run(
    tokenizers: Sequence[Path],
    cache_dir: Path,
    *,
    fresh: int = 1_000_000,
    rounds: int = 5,
    worst: int = 4_000_000,
    timeout_s: float = 300.0,
) -> list[Full]:
    """All rows; ``fresh`` and ``worst`` are sizes in characters, 0 leaves the part out. Shows a progress bar.

    Raises AssertionError if two engines differ.
    """
    rows: list[Full] = []
    with progress_bar() as progress:
        task = progress.add_task("full encodes", total=len(tokenizers) * ((rounds if fresh else 0) + len(WORST)))
        for path in tokenizers:
            progress.update(task, description=f"full encodes: {path.name}")
            with ExitStack() as stack:
                workers = {k: stack.enter_context(Worker(path, k, cache_dir, timeout_s)) for k in CORES}
                if fresh:
                    times = _Times(path.name, "fresh", fresh)
                    for seed in range(rounds):
                        times.add(_fresh(workers, fresh, seed))
                        progress.advance(task)
                    rows += times.rows()
                for text in WORST if worst else ():
                    rows += _worst_rows(workers, path.name, text, worst)
                    progress.advance(task)
    return rows


Measured = tuple[int, str, int, str, str]
"""Cores, engine, nanoseconds, digest of the IDs, and why there is none."""


def _fresh(workers: dict[int, Worker], size: int, seed: int) -> Iterator[Measured]:
    for cores, worker in workers.items():
        yield _one(worker, cores, OURS, "toktier-proxy", "fresh", size, seed)
        yield _one(worker, cores, "hf-encode", "hf-encode", "fresh", size, seed)
        yield _one(workers[1], cores, ONE_THREAD, "fastokens-full", "fresh", size, seed)


def _worst_rows(workers: dict[int, Worker], tokenizer: str, text: str, size: int) -> list[Full]:
    """Once, as most are far from the limit and some take a minute.

    Where it is not kept: medians of up to `_ROUNDS`, each in new processes, whose heaps lie otherwise, and which have
    encoded the text before: the first to do so also pays for the memory. The two take turns in beginning.
    """
    times = _Times(tokenizer, text, size)
    order = [(OURS, "toktier-proxy"), ("hf-full", "hf-full")]
    times.add(_worst(workers, text, size, order))
    for _ in range(_ROUNDS - 1):
        if not over_limit(times.rows()):
            break
        order.reverse()
        for worker in workers.values():
            worker.restart()
        list(_worst(workers, text, size, order))
        times.add(_worst(workers, text, size, order))
    return times.rows()


def _worst(workers: dict[int, Worker], text: str, size: int, order: list[tuple[str, str]]) -> Iterator[Measured]:
    for cores, worker in workers.items():
        for name, engine in order:
            yield _one(worker, cores, name, engine, text, size, 0)


def _one(worker: Worker, cores: int, name: str, engine: str, text: str, size: int, seed: int) -> Measured:
    try:
        return cores, name, *worker.measure(engine, text, size, seed), ""
    except Unmeasured as why:
        return cores, name, 0, "", str(why)


class _Times:
    """Single runs of one text, collected into rows."""

    def __init__(self, tokenizer: str, text: str, size: int) -> None:
        self._place = tokenizer, text
        self._size = size
        self._found: dict[tuple[int, str], list[int]] = {}
        self._notes: dict[tuple[int, str], str] = {}

    def add(self, measured: Iterator[Measured]) -> None:
        """The runs of one round: all on the same text."""
        digests = set()
        for cores, engine, nanoseconds, ids, note in measured:
            own = self._found.setdefault((cores, engine), [])
            if note:
                self._notes[cores, engine] = note
            else:
                own.append(nanoseconds)
                digests.add(ids)
        assert len(digests) <= 1, f"engines differ on {self._place}"

    def rows(self) -> list[Full]:
        tokenizer, text = self._place
        return [
            Full(
                ACCOUNT, tokenizer, text, cores, engine, self._size, len(times),
                round(statistics.median(times) / 1000, 1) if times else 0.0, self._notes.get((cores, engine), ""),
            )
            for (cores, engine), times in self._found.items()
        ]  # fmt: skip


def over_limit(rows: Sequence[Full]) -> list[str]:
    """The worst cases in which the session took more than `LIMIT` times as long as the reference, in words."""
    found = {(row.tokenizer, row.text, row.cores, row.engine): row for row in rows}
    return [
        f"{row.tokenizer}, {row.text}, {row.cores} cores: {row.p50_us / reference.p50_us:.2f}x"
        for row in rows
        if row.engine == OURS
        and row.text != "fresh"
        and (reference := found.get((row.tokenizer, row.text, row.cores, "hf-full")))
        and reference.p50_us
        and (not row.p50_us or row.p50_us > LIMIT * reference.p50_us)
    ]


def table(rows: Sequence[Full]) -> str:
    """Markdown: the fresh texts with ratios to ours, and the worst cases as ours divided by the reference."""
    out: list[str] = []
    found = {(row.tokenizer, row.text, row.cores, row.engine): row for row in rows}
    for cores in sorted({row.cores for row in rows}):
        fresh = [row for row in rows if row.cores == cores and row.text == "fresh"]
        if fresh:
            engines = list(dict.fromkeys(row.engine for row in fresh))
            out += [f"**{ACCOUNT}, {fresh[0].size:,} fresh characters, {_cores(cores)}**", ""]
            out += ["| tokenizer | " + " | ".join(engines) + " |", "|---|" + "---:|" * len(engines)]
            for name in dict.fromkeys(row.tokenizer for row in fresh):
                ours = found[name, "fresh", cores, OURS]
                cells = [_cell(found.get((name, "fresh", cores, engine)), ours) for engine in engines]
                out.append(f"| {name} | " + " | ".join(cells) + " |")
            out.append("")
        hard = [row for row in rows if row.cores == cores and row.text != "fresh" and row.engine == OURS]
        if hard:
            texts = list(dict.fromkeys(row.text for row in hard))
            out += [
                f"**{ACCOUNT}, {hard[0].size:,} characters, {_cores(cores)}: time of a new session / the reference**",
                "",
            ]
            out += ["| tokenizer | " + " | ".join(texts) + " |", "|---|" + "---:|" * len(texts)]
            for name in dict.fromkeys(row.tokenizer for row in hard):
                pairs = [[found.get((name, text, cores, engine)) for engine in (OURS, "hf-full")] for text in texts]
                out.append(f"| {name} | " + " | ".join(_ratio(*pair) for pair in pairs) + " |")
            out.append("")
    return "\n".join(out)


def _cores(cores: int) -> str:
    return "1 core" if cores == 1 else f"{cores} cores"


def _cell(row: Full | None, ours: Full) -> str:
    if row is None or not row.p50_us:
        return "-"
    if row.engine == OURS or not ours.p50_us:
        return in_words(row.p50_us)
    return f"{in_words(row.p50_us)} ({row.p50_us / ours.p50_us:.3g}x)"


def _ratio(ours: Full | None, reference: Full | None) -> str:
    if ours is None or reference is None:
        return "-"
    if not ours.p50_us or not reference.p50_us:
        return ours.note or f"reference: {reference.note}"
    return f"{ours.p50_us / reference.p50_us:.2f}"
