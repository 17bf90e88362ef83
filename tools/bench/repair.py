"""Account *library*: from a session's new text to the flat view of its IDs and the index of the first changed one.

The text is an agent's session as Qwen3's template renders it. Cases:

- *append N*: N fresh characters at the end;
- *middle edit*: 1,400 characters somewhere in the middle third become others;
- *truncate*: the last 1,400 characters go;
- *new user turn*: the thinking of the last turn goes, 5,000 characters before the end; an answer and a question come.

Engines, each in a process of its own and those of other projects in an environment of their own, on the same texts in
the same run, in turn: TokTier's rope; the packages that encode the whole text again (HF's tokenizers; fastokens without
and with its segment cache; gigatoken, warm), which get the new text ready made; and the sessions of the package toktier
0.3.0: `append_patch`, and its `encode` of the whole text where the change is no append.

The IDs of each engine are compared with those of the others, TokTier's with a full encode in every round.
TokTier and HF must agree; where another engine differs, its rows say so.
"""

from __future__ import annotations

import json
import lzma
import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from toktier.tokenizer import EMBEDDED
from tools.bench import texts
from tools.bench.encoder_process import Encoder
from tools.bench.encoders import ENGINES
from tools.bench.progress import progress_bar
from tools.bench.records import OURS, Record, record, unmeasured
from tools.bench.worker import Unmeasured

ACCOUNT = "library"
SIZES = (10_000, 100_000, 300_000, 1_000_000, 3_000_000, 4_400_000)
TURN = 1_400
APPENDS = (100, TURN, 10_000, 100_000)
CASES = (*(f"append {size:,}" for size in APPENDS), "middle edit", "truncate", "new user turn")
REFERENCE, INSTALLED = "hf-full", "toktier-0.3.0"
_CHANGES = 10
"""Changes that TokTier makes in a round, and others where it takes no time; to one copy of the session as long as its
size stays about what the row says."""
_COMPARED = 3
"""Rounds in which the IDs of all engines are compared."""
_THINK = "<think>\n{}\n</think>\n\n"
_AGO = 5_000


class Change(NamedTuple):
    """Characters ``[start, end)`` become ``new``. Where it is not ``timed`` it prepares the next one."""

    start: int
    end: int
    new: str
    timed: bool = True


@dataclass(frozen=True)
class Plan:
    """What is measured. ``rounds``: of each case; in each of them every engine gets its changes."""

    sizes: Sequence[int] = SIZES
    cases: Sequence[str] = CASES
    engines: Sequence[str] = tuple(ENGINES)
    rounds: int = 20
    tokenizer: Path = EMBEDDED
    environments: Path | None = None
    build: bool = True

    def changes_of(self, engine: str, case: str, size: int, number: int, block: int) -> int:
        """How many changes an engine makes in a round; ``block`` of them to one copy of the session.

        HF takes most of a second for a million characters, and so does toktier 0.3.0 to begin a session or to encode.
        """
        if engine == OURS:
            return _CHANGES
        main = case == f"append {TURN:,}"
        if engine == REFERENCE or (engine == INSTALLED and not case.startswith("append")):
            return int(number < max(3 if size <= 1_000_000 else 2 if main else 1, 200_000 // size))
        if engine == INSTALLED:
            return block if number < (5 if size <= 100_000 else 2 if main else 1) else 0
        return _CHANGES if size <= 100_000 else 2


def changes(case: str, text: str, seed: int) -> Iterator[Change]:
    """Changes of one case, one after the other, without an end; the first one is to ``text``."""
    chance = random.Random(f"{case} {len(text)} {seed}")
    fresh = _fresh(chance)
    size = len(text)
    if case.startswith("append "):
        count = int(case.split()[1].replace(",", ""))
        while True:
            yield Change(size, size, fresh(count))
            size += count
    elif case == "middle edit":
        span = min(TURN, size // 10)
        while True:
            start = chance.randrange(size // 3, 2 * size // 3 - span)
            yield Change(start, start + span, fresh(span))
    elif case == "truncate":
        while True:
            span = min(TURN, size // 10)
            yield Change(size - span, size, "")
            size -= span
    else:
        yield from _user_turns(size, fresh)


def _user_turns(size: int, fresh: Callable[[int], str]) -> Iterator[Change]:
    prompt = len(texts.PROMPT)
    ago = min(_AGO, size // 4)
    while True:
        think, work = _THINK.format(fresh(400)), fresh(ago - 400 - prompt) + texts.TURN_END
        begun = size
        yield Change(size, size, think + work + texts.PROMPT, timed=False)
        size += len(think) + len(work) + prompt
        question = texts.TURN_BEGIN.format(role="user") + fresh(500) + texts.TURN_END
        new = work + texts.PROMPT + fresh(600) + texts.TURN_END + question + texts.PROMPT
        yield Change(begun, size, new)
        size = begun + len(new)


def _fresh(chance: random.Random) -> Callable[[int], str]:
    """Text of a length, cut from much more of it."""
    pool = _pool()

    def cut(count: int) -> str:
        start = chance.randrange(len(pool) - count)
        return pool[start : start + count]

    return cut


_LEAST = {(INSTALLED, 1_000_000): 100.0, ("fastokens-full, segment cache", 1_000_000): 10.0}
"""How many times as long as TokTier another engine must take for an append; 1 where nothing is said."""
_POOL: list[str] = []


def _pool() -> str:
    if not _POOL:
        _POOL.append(texts.corpus(99, 1_000_000))
    return _POOL[0]


def run(plan: Plan, cache_dir: Path) -> list[Record]:
    """All rows. Shows a progress bar. Raises AssertionError where TokTier's IDs are not the reference's."""
    rows: list[Record] = []
    with progress_bar() as progress, ExitStack() as stack:
        task = progress.add_task("load the engines", total=len(plan.engines))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toktier-bench-")))
        file = plain(plan.tokenizer, folder)
        present: dict[str, Encoder] = {}
        notes: dict[str, str] = {}
        for name in plan.engines:
            try:
                encoder = Encoder(
                    name, file, plan.tokenizer, cache_dir, environments_at=plan.environments, build=plan.build
                )
            except Unmeasured as why:
                notes[name] = str(why)
            else:
                present[name] = stack.enter_context(encoder)
                notes[name] = encoder.note
            progress.advance(task)
        for size in plan.sizes:
            text = texts.chat(size, size)
            for encoder in present.values():
                encoder.base(text)
            task = progress.add_task(f"library, {size:,}", total=len(plan.cases) * plan.rounds)
            for case in plan.cases:
                one = _Case(plan, case, text, notes)
                for number in range(plan.rounds):
                    one.round(number, present)
                    progress.advance(task)
                rows += one.rows()
    return rows


def plain(tokenizer: Path, folder: Path) -> Path:
    """A tokenizer's ``tokenizer.json`` as it is, in ``folder`` if it is compressed."""
    if tokenizer.is_file():
        return tokenizer
    if (tokenizer / "tokenizer.json").exists():
        return tokenizer / "tokenizer.json"
    made = folder / "tokenizer.json"
    made.write_bytes(lzma.decompress((tokenizer / "tokenizer.json.xz").read_bytes()))
    json.loads(made.read_bytes())
    return made


class _Case:
    """The rounds of one case and size."""

    def __init__(self, plan: Plan, case: str, text: str, notes: dict[str, str]) -> None:
        self._plan, self._case, self._text = plan, case, text
        self._times: dict[str, list[int]] = {name: [] for name in plan.engines}
        self._scanned: dict[str, list[int]] = {name: [] for name in plan.engines}
        self._notes = {name: {notes[name]} - {""} for name in plan.engines}

    def round(self, number: int, encoders: dict[str, Encoder]) -> None:
        """Each engine on the same sessions."""
        found: dict[str, str] = {}
        for name, encoder in encoders.items():
            try:
                self._changed(name, encoder, number, found)
            except Unmeasured as why:
                if name == OURS:
                    raise AssertionError(f"{self._case} at {len(self._text):,} characters: {why}") from why
                self._notes[name].add(str(why))
        self._compare(found)

    def _changed(self, name: str, encoder: Encoder, number: int, found: dict[str, str]) -> None:
        """The changes of one engine in one round; ``found``: its IDs after the first of them."""
        size = len(self._text)
        drift = int(self._case.split()[1].replace(",", "")) if self._case.startswith("append") else TURN
        block = max(1, min(_CHANGES, size // (10 * drift)))
        count = self._plan.changes_of(name, self._case, size, number, block)
        done = 0
        while done < count:
            encoder.reset()
            steps = changes(self._case, self._text, 1_000 * number + done)
            left = min(block, count - done)
            if done == 0 and number < _COMPARED:
                self._made(name, encoder, steps, 1)
                found[name] = encoder.ids()
                done, left = 1, left - 1
            self._made(name, encoder, steps, left)
            done += left
        if name == OURS:
            encoder.ids()  # which compares them with a full encode

    def _made(self, name: str, encoder: Encoder, steps: Iterator[Change], count: int) -> None:
        """So many timed changes, without a pause, and what prepares them."""
        made: list[Change] = []
        while count:
            made.append(next(steps))
            count -= made[-1].timed
        if not made:
            return
        for change, (nanoseconds, scanned) in zip(made, encoder.change([one[:3] for one in made]), strict=True):
            if change.timed:
                self._times[name].append(nanoseconds)
                self._scanned[name] += [] if scanned is None else [scanned]

    def _compare(self, digests: dict[str, str]) -> None:
        right = digests.get(REFERENCE, digests.get(OURS))
        for name, digest in digests.items() if right is not None else ():
            if digest != right:
                assert name != OURS, f"{self._case} at {len(self._text):,} characters: not the reference's IDs"
                self._notes[name].add("other IDs than the reference")

    def rows(self) -> Iterator[Record]:
        """A row an engine, with a note where there is something to be said of it."""
        size = len(self._text)
        bytes_each = len(self._text.encode()) / size
        for name, times in self._times.items():
            note = "; ".join(sorted(self._notes[name]))
            if not times:
                yield unmeasured(ACCOUNT, self._case, name, size, note or "not asked")
                continue
            scanned = self._scanned[name]
            mean = round(bytes_each * sum(scanned) / len(scanned)) if scanned else 0
            yield record(
                ACCOUNT, self._case, name, size, times, served=round(bytes_each * size), scanned=mean, note=note
            )


def over_limit(rows: Sequence[Record]) -> list[str]:
    """What is not as it must be, in words; of medians, on an otherwise idle machine."""
    found = {(row.case, row.engine, row.size): row.p50_us for row in rows if row.n}
    main = f"append {TURN:,}"
    own = {size: value for (case, engine, size), value in found.items() if (case, engine) == (main, OURS)}
    out = [f"{main} at {size:,}: {value:.0f} µs" for size, value in own.items() if size >= 100_000 and value > 60]
    long = [value for size, value in own.items() if size >= 100_000]
    if long and max(long) > 1.2 * min(long):
        out.append(f"{main}: a factor of {max(long) / min(long):.2f} from 100,000 characters up")
    for (case, engine, size), value in found.items():
        ours = own.get(size)
        if case != main or engine == OURS or ours is None:
            continue
        least = _LEAST.get((engine, size), 1.0)
        if value < least * ours:
            out.append(f"{engine} at {size:,}: {value / ours:.2f} times as long, not {least:g}")
    for size, value in own.items():
        edit = found.get(("middle edit", OURS, size))
        if edit is not None and edit > 3 * value:
            out.append(f"middle edit at {size:,}: {edit / value:.2f} appends")
    return out
