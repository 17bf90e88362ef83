"""Lemma 5 under attack: random literal sets with every flag, under normalizers and prefixes, all short texts.

A condition that is taken away must be noticed. `tests.support.attack` says how a case is made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any

import pytest

from tests.support.attack import EVERY_CHARACTER, TIMES, attack_literals, random_literal_case
from tests.support.split_cases import split_spec
from toktier.certificate import derive
from toktier.certificate.images import NO_SEAM, Image, identity
from toktier.certificate.literals import Literal, LiteralRule, literal_rule
from toktier.certificate.normalizer import normalizer_rule
from toktier.certificate.singled import Pass
from toktier.errors import Refusal

Patch = Callable[[pytest.MonkeyPatch], None]
Spec = dict[str, Any]


def cases(seed: str, count: int) -> Iterator[tuple[int, list[object]]]:
    rng = random.Random(seed)
    for _ in range(count):
        case = random_literal_case(rng)
        try:
            cuts, broken = attack_literals(case)
        except Refusal:
            continue
        yield cuts, [(case, broken[:3])] if broken else []


@pytest.mark.parametrize("seed", range(4))
def test_random_literals(seed: int) -> None:
    results = list(cases(f"literals {seed}", 14 * TIMES))
    assert not [b for _, broken in results for b in broken]
    assert sum(cuts for cuts, _ in results) > 3_000


# --- what the attack notices ----------------------------------------------------------------------------------------


def with_rule(patch: pytest.MonkeyPatch, **given: object) -> None:
    """Rules that lack something."""

    def changed(literals: Iterable[Literal], form: Callable[[str], str]) -> LiteralRule:
        return replace(literal_rule(literals, form), **given)

    patch.setattr(derive, "literal_rule", changed)


def without_pairs(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, pairs=set())


def without_white_space_pairs(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, strips=False)


def without_white_space_behind(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, before_space=set())


def without_white_space_before(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, after_space=set())


def without_words_behind(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, never_left=set())


def without_words_before(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, never_right=set())


def without_ends_of_segments(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, ends=set())


def without_stripped_ends_of_segments(patch: pytest.MonkeyPatch) -> None:
    with_rule(patch, strips_right=False)


def without_normal_forms(patch: pytest.MonkeyPatch) -> None:
    """Normalised literals as they are in the file."""
    patch.setattr(derive, "literal_rule", lambda literals, form: literal_rule(literals, str))


def without_images(patch: pytest.MonkeyPatch) -> None:
    """Normalised literals judged at the raw pair."""

    def raw(image: Image) -> Image:
        result: Image = identity()
        result[image == NO_SEAM] = NO_SEAM
        return result

    patch.setattr(derive, "Pass", lambda rule, left, right, *spaces: Pass(rule, raw(left), raw(right), *spaces))


def without_next_characters(patch: pytest.MonkeyPatch) -> None:
    """Lemma 4: what a composing b needs."""
    patch.setattr(
        "tests.support.attack.normalizer_rule",
        lambda spec, probe: replace(rule := normalizer_rule(spec, probe), active=rule.active[:0]),
    )


def case(
    *literals: Literal, normalizer: Spec | None = None, pre_tokenizer: Spec = EVERY_CHARACTER, alphabet: str = "ab "
) -> dict[str, Any]:
    tokens = [{"id": k, "special": False, **asdict(literal)} for k, literal in enumerate(literals)]
    return {
        "alphabet": alphabet,
        "added_tokens": tokens,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
    }


PREPEND = {"type": "Prepend", "prepend": "▁"}
LOWERCASE = {"type": "Lowercase"}
NFC = {"type": "NFC"}
PREFIXED = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": False},
        EVERY_CHARACTER,
    ],
}

GUARDS = {
    without_pairs: case(Literal("ab")),
    without_white_space_pairs: case(Literal("a", rstrip=True)),
    without_white_space_behind: case(Literal("a", rstrip=True)),
    without_white_space_before: case(Literal("a", lstrip=True)),
    without_words_behind: case(Literal("a", single_word=True)),
    without_words_before: case(Literal("b", single_word=True)),
    without_ends_of_segments: case(Literal("bb"), normalizer=PREPEND),
    without_stripped_ends_of_segments: case(Literal("bb", rstrip=True), pre_tokenizer=PREFIXED),
    without_normal_forms: case(Literal("aB", normalized=True), normalizer=LOWERCASE, alphabet="aB "),
    without_images: case(Literal("ab", normalized=True), normalizer=LOWERCASE, alphabet="aB "),
    without_next_characters: case(normalizer=NFC, pre_tokenizer=split_spec("xé|x|e"), alphabet="xe\u0301"),
}
"""Each with a case that needs it."""


@pytest.mark.parametrize(("without", "needing"), GUARDS.items())
def test_a_guard_that_is_taken_away_is_noticed(
    without: Patch, needing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert attack_literals(needing)[1] == []
    without(monkeypatch)
    assert attack_literals(needing)[1] != []


def test_random_literals_notice_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    without_pairs(monkeypatch)
    assert any(broken for _, broken in cases("guards", 60))
