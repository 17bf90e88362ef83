"""Lemmas 1 and 2 under attack: random patterns, one to three stages, every behaviour, all short texts, both engines.

A condition that is taken away must be noticed: else the attack proves nothing. docs/log.md has what a
longer run found.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.support.attack import TIMES, attack_ranks, attack_stages, random_ranks, random_stages, wild_stage
from tests.support.split_cases import ALL_SPLITS
from toktier.certificate import derive, follow
from toktier.certificate.classes import Mask
from toktier.certificate.follow import Positions, StageRule, _Coverage
from toktier.certificate.regex import POSSESSIVE, Atomic, Look, Node, Repeat

Patch = Callable[[pytest.MonkeyPatch], None]


def random_patterns(seed: str, count: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(count):
        yield wild_stage(rng, rng.choice((0, 1, 2, 3)))


def every_behaviour(patterns: Iterable[str]) -> Iterator[tuple[int, list[object]]]:
    for pattern in patterns:
        for behaviour, invert in ALL_SPLITS:
            found, broken = attack_stages([(pattern, behaviour, invert)])
            yield found, [(pattern, behaviour, invert, broken[0])] if broken else []


def rows_of_stages(seed: str, count: int) -> Iterator[tuple[int, list[object]]]:
    rng = random.Random(seed)
    for _ in range(count):
        chosen = random_stages(rng, rng.choice((2, 2, 3)), (0, 1, 2))
        found, broken = attack_stages(chosen)
        yield found, [(chosen, broken[0])] if broken else []


def ranks(seed: str, count: int) -> Iterator[tuple[int, list[object]]]:
    rng = random.Random(seed)
    for _ in range(count):
        pattern, special = random_ranks(rng)
        found, broken = attack_ranks(pattern, special)
        yield found, [(pattern, special, broken[0])] if broken else []


@pytest.mark.parametrize("seed", range(3))
def test_one_stage(seed: int) -> None:
    results = list(every_behaviour(random_patterns(f"one {seed}", 24 * TIMES)))
    assert not [b for _, broken in results for b in broken]
    assert sum(found for found, _ in results) > 80


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_stages(seed: int) -> None:
    results = list(rows_of_stages(f"rows {seed}", 70 * TIMES))
    assert not [b for _, broken in results for b in broken]
    assert sum(found for found, _ in results) > 50


@pytest.mark.parametrize("seed", range(2))
def test_rank_files(seed: int) -> None:
    results = list(ranks(f"ranks {seed}", 30 * TIMES))
    assert not [b for _, broken in results for b in broken]
    assert sum(found for found, _ in results) > 10_000


# --- what the attack notices ----------------------------------------------------------------------------------------


def with_positions(patch: pytest.MonkeyPatch, **given: object) -> None:
    told = derive.stage_rule
    patch.setattr(derive, "stage_rule", lambda node, p, *rest: told(node, replace(p, **given), *rest))  # type: ignore[arg-type]


def without_follow_pairs(patch: pytest.MonkeyPatch) -> None:
    """Condition (i) of lemma 1a."""
    with_positions(patch, follow=set())


def without_lookaheads(patch: pytest.MonkeyPatch) -> None:
    """Condition (ii) of lemma 1a."""
    with_positions(patch, evaluated_after=set())


def in_coverage(patch: pytest.MonkeyPatch, name: str, change: Callable[[_Coverage, Node], Mask | None]) -> None:
    """cov with another answer of one predicate where ``change`` has one."""
    told = getattr(_Coverage, name)

    def changed(self: _Coverage, node: Node) -> Mask:
        answer = change(self, node)
        result: Mask = told(self, node) if answer is None else answer
        return result

    patch.setattr(_Coverage, name, changed)


def everything(self: _Coverage) -> Mask:
    return ~self._none


def without_lower_bounds(patch: pytest.MonkeyPatch) -> None:
    in_coverage(patch, "takes", lambda s, n: s.takes(n.body) if isinstance(n, Repeat) and n.low > 1 else None)


def without_possessive_skips(patch: pytest.MonkeyPatch) -> None:
    in_coverage(patch, "skip", lambda s, n: everything(s) if isinstance(n, Repeat) and n.kind == POSSESSIVE else None)


def without_atomic_skips(patch: pytest.MonkeyPatch) -> None:
    in_coverage(patch, "skip", lambda s, n: s.skip(n.body) if isinstance(n, Atomic) else None)


def with_lookaheads_that_hold(patch: pytest.MonkeyPatch) -> None:
    """Those before the character."""
    in_coverage(patch, "skip", lambda s, n: everything(s) if isinstance(n, Look) else None)


def with_lookaheads_that_are_sure(patch: pytest.MonkeyPatch) -> None:
    """Those behind the character."""
    told = _Coverage.sure
    patch.setattr(_Coverage, "sure", lambda self, node: isinstance(node, Look) or told(self, node))


def with_stage(patch: pytest.MonkeyPatch, change: Callable[[StageRule], StageRule], **given: object) -> None:
    told = derive.stage_rule

    def changed(node: Node, p: Positions, left: Mask, right: Mask, behaviour: str, invert: bool) -> StageRule:
        asked = {"behaviour": behaviour, "invert": invert} | given
        return change(told(node, p, left, right, asked["behaviour"], asked["invert"]))  # type: ignore[arg-type]

    patch.setattr(derive, "stage_rule", changed)


def with_every_behaviour_as_isolated(patch: pytest.MonkeyPatch) -> None:
    with_stage(patch, lambda rule: rule, behaviour="Isolated", invert=False)


def without_invert(patch: pytest.MonkeyPatch) -> None:
    with_stage(patch, lambda rule: rule, invert=False)


def with_every_transparent_pair_strict(patch: pytest.MonkeyPatch) -> None:
    """No cov at all."""
    with_stage(patch, lambda rule: StageRule(rule.transparent, rule.transparent))


def with_every_stage_transparent(patch: pytest.MonkeyPatch) -> None:
    """Lemma 2's condition."""
    with_stage(patch, lambda rule: StageRule(np.ones_like(rule.transparent), rule.strict))


def without_nev(patch: pytest.MonkeyPatch) -> None:
    """Contiguous: that the other side is in no match."""
    covered = follow.covered

    def stage(node: Node, p: Positions, left: Mask, right: Mask, behaviour: str, invert: bool) -> StageRule:
        rule = follow.stage_rule(node, p, left, right, behaviour, invert)
        if behaviour != "Contiguous":
            return rule
        return StageRule(
            rule.transparent, rule.transparent & (covered(node, p, left)[:, None] | covered(node, p, right))
        )

    patch.setattr(derive, "stage_rule", stage)


GUARDS = {
    without_follow_pairs: "ab|a|b",
    without_lookaheads: "Ca(?=b)|C|a|b",
    without_lower_bounds: "a{2}",
    without_possessive_skips: "b*+b",
    without_atomic_skips: "(?>b?)b",
    with_lookaheads_that_hold: "(?!a)[ab]",
    with_lookaheads_that_are_sure: "b(?!a)",
    with_every_behaviour_as_isolated: "a",
    without_invert: "a",
    with_every_transparent_pair_strict: "a",
    without_nev: "a",
}
"""Each with a pattern that needs it."""


@pytest.mark.parametrize(("without", "pattern"), GUARDS.items())
def test_a_guard_that_is_taken_away_is_noticed(without: Patch, pattern: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(broken for _, broken in every_behaviour([pattern]))
    without(monkeypatch)
    assert any(broken for _, broken in every_behaviour([pattern]))


RANDOMLY = [
    without_follow_pairs,
    without_lookaheads,
    with_every_behaviour_as_isolated,
    with_every_transparent_pair_strict,
]


@pytest.mark.parametrize("without", RANDOMLY)
def test_random_patterns_notice_it_too(without: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)
    assert any(broken for _, broken in every_behaviour(random_patterns("guards", 150)))


def test_rows_of_stages_need_transparent_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with_every_stage_transparent(monkeypatch)
    assert any(broken for _, broken in rows_of_stages("guards", 150))


@pytest.mark.parametrize("without", [without_follow_pairs, without_lookaheads])
def test_a_guard_that_is_taken_away_is_noticed_by_rank_files(without: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch)
    assert any(broken for _, broken in ranks("guards 2", 150))
