"""Thresholds by a clock that runs as fast as a made-up engine is slow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.small_bpe import CountingEngine, SpaceRule, small_encoder
from toktier import measured
from toktier.chunks import TARGET, ChunkEncoder
from toktier.ids import Ids
from toktier.measured import measure
from toktier.shortcuts import DEFAULTS, Shortcuts


@dataclass
class Clock:
    """In microseconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now / 1e6


class Rule(SpaceRule):
    """Finding cuts costs ``look`` each time."""

    def __init__(self, clock: Clock, look: float) -> None:
        self.clock, self.look = clock, look

    def is_cut(self, text: str, i: int) -> bool:
        self.clock.now += self.look
        return super().is_cut(text, i)


class Engine(CountingEngine):
    """A call costs ``call`` and a character ``char``; a batch ``wake`` and its characters on ``cores``."""

    def __init__(self, clock: Clock, call: float, char: float, wake: float, cores: int) -> None:
        small = small_encoder().window
        assert isinstance(small, CountingEngine)
        super().__init__(small.tokenizer)
        self.clock, self.call, self.char, self.wake, self.cores = clock, call, char, wake, cores

    def encode(self, text: str) -> Ids:
        self.clock.now += self.call + self.char * len(text)
        return np.zeros(1, np.uint32)

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        self.clock.now += self.wake + self.char * sum(map(len, texts)) / self.cores
        return np.zeros(len(texts), np.uint32), np.ones(len(texts), np.int64)


def encoder(look: float = 20.0, char: float = 0.007, wake: float = 60.0, cores: int = 2) -> tuple[ChunkEncoder, Clock]:
    clock = Clock()
    engine = Engine(clock, 5.0, char, wake, cores)
    return ChunkEncoder(Rule(clock, look), engine, engine), clock


def test_thresholds_follow_what_the_engine_costs() -> None:
    found = measure(*encoder())
    # In turn k chunks cost 5 k and 7 us a thousand characters, as a batch 60 and half of the latter.
    assert found.all_cores_from == 6 * TARGET
    assert found.measured
    # A repair costs 20 more for a cut, a whole encode 7 more for every thousand characters that could have stayed.
    assert found.whole_below == 2048
    quicker = measure(*encoder(char=0.001))
    assert quicker.whole_below > found.whole_below
    assert measure(*encoder(char=0.3)).whole_below < found.whole_below
    assert measure(*encoder(wake=5.0)).all_cores_from == 2 * TARGET
    assert found == measure(*encoder())


def test_a_batch_that_never_pays_leaves_the_default() -> None:
    found = measure(*encoder(wake=10_000.0, char=5.0, cores=1))
    assert (found.all_cores_from, found.measured) == (DEFAULTS.all_cores_from, True)


def test_without_a_rule_there_is_nothing_to_choose() -> None:
    made, clock = encoder()
    assert measure(ChunkEncoder(None, made.window, made.reference), clock) is DEFAULTS
    assert clock.now == 0


@pytest.mark.parametrize("case", ["stands", "repair", "batch"])
def test_what_makes_no_sense_gives_the_defaults(case: str) -> None:
    made, clock = encoder(look=1e5 if case == "repair" else 20.0, wake=1e7 if case == "batch" else 60.0)
    assert measure(made, (lambda: 1.0) if case == "stands" else clock) is DEFAULTS


def test_it_ends_in_time_whatever_the_engine() -> None:
    made, clock = encoder(look=0.0, char=50.0)
    measure(made, clock)
    # The first size of either question may be over the budget, nothing after it.
    assert clock() < 6 * measured.BUDGET_S + 30 * 50e-6 * 4 * TARGET


def test_a_real_engine_gives_thresholds_or_the_defaults() -> None:
    found = measure(small_encoder())
    assert found == DEFAULTS or found.measured
    assert isinstance(found, Shortcuts)
