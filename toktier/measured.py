"""Finds the thresholds of `toktier.shortcuts` for a tokenizer on this machine: some milliseconds of work.

Both sides of each question are timed on the same made-up text, and the quickest of three rounds counts, since whatever
else the machine does only makes a round slower. Sizes double until the answer turns. What makes no sense gives the
defaults: a clock that does not move, or a shortest text whose repair takes many times as long as its whole encode or
the other way round.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from toktier.chunks import TARGET, ChunkEncoder
from toktier.rope import Rope
from toktier.shortcuts import DEFAULTS, Shortcuts

BUDGET_S = 0.02
"""For each question. What is not known by then counts as not worth it."""
_SIZES = (512, 1024, 2048, 4096, 8192, 16_384)
_STEP = 256
"""Characters of an append."""
_BATCHES = (2, 3, 4, 6, 8, 12, 16)
_ROUNDS = 3
_SENSELESS = 8.0

Clock = Callable[[], float]


def measure(encoder: ChunkEncoder, clock: Clock = time.perf_counter) -> Shortcuts:
    """The thresholds for ``encoder``, made with `DEFAULTS`; these where there is nothing to choose (no
    certificate: every text is one chunk) or the times make no sense. ``clock``: seconds."""
    if encoder.rule is None:
        return DEFAULTS
    text = _text(_BATCHES[-1] * TARGET)
    whole_below = _whole_below(encoder, text, clock)
    all_cores_from = _all_cores_from(encoder, text, clock)
    if whole_below is None or all_cores_from is None:
        return DEFAULTS
    return Shortcuts(whole_below, all_cores_from, measured=True)


def _text(size: int) -> str:
    """Like what agents send: words, names, numbers and punctuation."""
    chance = random.Random(5)
    ends = (" ", " ", " ", ", ", "_", "\n    ", "(4) ", '": "', ".\n")
    words = ["".join(chance.choices("etaoinshrdlucmfwypvbgk", k=chance.randint(1, 9))) for _ in range(300)]
    parts = [word + end for word in words for end in ends]
    return "".join(chance.choices(parts, k=size // 3))[:size]


def _whole_below(encoder: ChunkEncoder, text: str, clock: Clock) -> int | None:
    """Up to which of the sizes an append to a text of that size is quicker by a whole encode."""
    ends = clock() + BUDGET_S
    found = 0
    for size in _SIZES:
        repaired = _append_s(encoder, text, size, clock, _followed)
        whole = _append_s(encoder, text, size, clock, _anew)
        if not _sensible(repaired, whole) and size == _SIZES[0]:
            return None
        if whole > repaired:
            break
        found = size
        if clock() > ends:
            break
    return found


def _append_s(
    encoder: ChunkEncoder, text: str, size: int, clock: Clock, put: Callable[[Rope, int, str], object]
) -> float:
    """Of an append to ``size`` characters; ``put``: makes a rope's text its first characters and more."""
    rope = Rope(encoder)
    put(rope, 0, text[:size])

    def append(number: int) -> None:
        start = size + number * _STEP
        put(rope, start, text[start : start + _STEP])

    return _quickest(append, clock)


def _followed(rope: Rope, common: int, tail: str) -> None:
    rope.follow(common, [tail])


def _anew(rope: Rope, common: int, tail: str) -> None:
    rope.anew(rope.text()[:common] + tail)


def _all_cores_from(encoder: ChunkEncoder, text: str, clock: Clock) -> int | None:
    """From how many characters on chunks are quicker as a batch than one after the other, also some more of them."""
    ends = clock() + BUDGET_S
    engine = encoder.window
    found: int | None = None
    for count in _BATCHES:
        pieces = [text[start : start + TARGET] for start in range(0, count * TARGET, TARGET)]
        in_turn = _quickest(lambda _: [engine.encode(piece) for piece in pieces], clock)  # noqa: B023
        together = _quickest(lambda _: engine.encode_batch(pieces), clock)  # noqa: B023
        if not _sensible(in_turn, together) and count == _BATCHES[0]:
            return None
        if together >= in_turn:
            found = None
        elif found is not None:
            return found
        else:
            found = count * TARGET
        if clock() > ends:
            break
    return DEFAULTS.all_cores_from


def _quickest(work: Callable[[int], object], clock: Clock) -> float:
    times = []
    for number in range(_ROUNDS):
        started = clock()
        work(number)
        times.append(clock() - started)
    return min(times)


def _sensible(a: float, b: float) -> bool:
    return 0 < a < _SENSELESS * b and b < _SENSELESS * a
