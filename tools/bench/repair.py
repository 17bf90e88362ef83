"""Account *library*: from the new text to the flat view of the IDs and the index of the first changed one.

A session of a given size gets an append of 1,400 fresh characters. Beside the rope, the same new text is encoded in
full by the reference and by fastokens, in the same run. Every result is compared with the others' before it counts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from toktier.rope import Rope
from toktier.tokenizer import FrozenTokenizer, embedded
from tools.bench.records import OURS, Record, record
from tools.bench.texts import corpus

ACCOUNT = "library"
SIZES = (100_000, 1_000_000, 4_000_000)
TAIL = 1_400
_APPENDS = 400
_BLOCK = 20  # appends to one copy of the session, so that its size stays what the row says


def run(sizes: Sequence[int] = SIZES, seed: int = 1) -> list[Record]:
    """All rows. Shows a progress bar on the terminal. Raises AssertionError if two engines differ."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    rows: list[Record] = []
    with Progress(*columns) as progress:
        loading = progress.add_task("load the tokenizer", total=1)
        tokenizer = embedded()
        progress.advance(loading)
        for size in sizes:
            task = progress.add_task(f"append at {size:,} characters", total=None)
            steps = list(_plan(size))
            progress.update(task, total=len(steps))
            text = corpus(seed, size)
            tails = [corpus(seed + 1 + k, TAIL) for k in range(_BLOCK + 1)]
            timings: dict[str, list[int]] = {}
            for engine in steps:
                timings.setdefault(engine, []).extend(_MEASURE[engine](tokenizer, text, tails))
                progress.advance(task)
            rows += [record(ACCOUNT, "append", engine, size, times) for engine, times in timings.items()]
    return rows


def _plan(size: int) -> Iterator[str]:
    """Engines in turn, so that a disturbance of the machine meets all of them."""
    slow = max(3, min(20, 4_000_000 // size))
    blocks = _APPENDS // _BLOCK
    for step in range(blocks):
        yield OURS
        if step * slow // blocks != (step + 1) * slow // blocks:
            yield "hf-full"
            yield "fastokens-full"
            yield "fastokens-full"


def _rope(tokenizer: FrozenTokenizer, text: str, tails: Sequence[str]) -> list[int]:
    rope = Rope(tokenizer.encoder)
    rope.set(text)
    rope.append(tails[0])  # a session in use has spare room; the first append after a load makes it
    times: list[int] = []
    for tail in tails[1:]:
        start = time.perf_counter_ns()
        first = rope.append(tail).first_changed
        view = rope.ids
        times.append(time.perf_counter_ns() - start)
        assert first <= len(view)
    expected = tokenizer.window.encode(text + "".join(tails))
    assert np.array_equal(rope.ids, expected), "the rope and a full encode differ"
    return times


def _reference(tokenizer: FrozenTokenizer, text: str, tails: Sequence[str]) -> list[int]:
    new = text + tails[0]
    start = time.perf_counter_ns()
    ids = tokenizer.reference.encode(new)
    took = time.perf_counter_ns() - start
    assert np.array_equal(ids, tokenizer.window.encode(new)), "the window engine and the reference differ"
    return [took]


def _window(tokenizer: FrozenTokenizer, text: str, tails: Sequence[str]) -> list[int]:
    new = text + tails[0]
    start = time.perf_counter_ns()
    ids = tokenizer.window.encode(new)
    took = time.perf_counter_ns() - start
    assert len(ids)
    return [took]


_MEASURE = {OURS: _rope, "hf-full": _reference, "fastokens-full": _window}
