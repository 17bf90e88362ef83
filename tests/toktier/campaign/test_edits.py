from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tests.support.campaigns import qwen
from toktier.campaign.edits import (
    FAMILIES,
    HUGE,
    LARGE,
    OPERATIONS,
    Account,
    Change,
    apply,
    close,
    draw,
    floor_of,
    is_close,
    run_rope,
)
from toktier.campaign.splices import FAULTS
from toktier.chunks import SMALL
from toktier.rope import Rope


def test_one_rope_in_a_hundred_is_huge_and_nine_more_are_large() -> None:
    for first in (0, 100, 12_300):
        floors = Counter(floor_of(first + k) for k in range(100))
        assert floors == {0: 90, LARGE + 1: 9, HUGE + 1: 1}


def test_ropes_pass_and_are_accounted_for() -> None:
    account = Account()
    for case in range(21, 31, 2):
        assert run_rope(qwen(), case, random.Random(f"case {case}"), account) is None
    assert account.operations == 5 * OPERATIONS
    assert account.large == OPERATIONS
    assert account.huge == 0
    assert account.repaired + account.full.total() == account.operations
    assert account.repaired > 10
    assert account.full["no_session"] >= 5
    assert account.families.total() == account.operations
    assert not account.failures


def test_closely_cut_ropes_repair_short_texts() -> None:
    account = Account()
    for case in range(2, 62, 2):
        assert is_close(case)
        assert run_rope(qwen(), case, random.Random(f"case {case}"), account) is None
    assert account.repaired > 0.5 * account.operations
    text = qwen().texts.long(random.Random(7), 3000)
    pieces = close(qwen().encoder).pieces(text, at_end=True)
    assert "".join(pieces) == text
    assert len(pieces) > 20
    assert all(len(piece) >= SMALL for piece in pieces[:-1])


def test_a_large_text_stays_large_whatever_is_drawn() -> None:
    rope, rng = Rope(qwen().encoder), random.Random(5)
    text = qwen().texts.long(rng, 1500)
    rope.set(text)
    for _ in range(300):
        change = draw(qwen().texts, qwen(), rope, text, 1400, rng)
        assert len(change.of(text)) >= 1400


def test_every_family_is_drawn() -> None:
    rope, rng = Rope(qwen().encoder), random.Random(6)
    text = qwen().texts.long(rng, 3000)
    rope.set(text)
    families = {draw(qwen().texts, qwen(), rope, text, 0, rng).family for _ in range(300)}
    assert families == set(FAMILIES) - {"begin"}


@pytest.mark.parametrize(
    ("change", "fault"),
    [(Change("edit", 2, 3, "X", whole=False), "text"), (Change("edit", 2, 3, "X", whole=True), "ids")],
)
def test_what_does_not_hold_is_named(change: Change, fault: str) -> None:
    encode = qwen().reference.encode
    before, after = "hello there, hello", change.of("hello there, hello")

    class Deaf(Rope):
        """It says that it changed, and did not."""

        __slots__ = ()

        def replace(self, start: int, end: int, new: str):  # type: ignore[no-untyped-def]
            return self.set(before + "")

        def set(self, text: str):  # type: ignore[no-untyped-def]
            return super().set(before)

    rope = Deaf(qwen().encoder)
    rope.set(before)
    told = encode(before) if fault == "text" else encode(after)
    assert apply(rope, change, after, encode(before), told) == fault


def test_a_wrong_first_change_and_an_error_are_faults() -> None:
    encode = qwen().reference.encode
    before, change = "hello there, hello", Change("append", 18, 18, " you", whole=False)
    after = change.of(before)

    class Modest(Rope):
        __slots__ = ()

        def append(self, tail: str):  # type: ignore[no-untyped-def]
            return super().append(tail)._replace(first_changed=0)

    class Broken(Rope):
        __slots__ = ()

        def append(self, tail: str):  # type: ignore[no-untyped-def]
            raise IndexError

    for kind, fault in ((Modest, "first_changed"), (Broken, "error")):
        rope = kind(qwen().encoder)
        rope.set(before)
        assert apply(rope, change, after, encode(before), encode(after)) == fault


def test_a_bad_change_tells_the_text_before_it() -> None:
    subject = replace(qwen(), rope=FAULTS["an ID changed at the seam"])
    found = (run_rope(subject, 1, random.Random(f"bad {k}"), Account()) for k in range(20))
    bad = next(bad for bad in found if bad is not None)
    assert bad.fault == "ids"
    rope = subject.rope(subject.encoder)
    rope.set(bad.before)
    after = bad.change.of(bad.before)
    encode = subject.reference.encode
    assert np.array_equal(rope.ids, encode(bad.before))
    assert apply(rope, bad.change, after, encode(bad.before), encode(after)) == "ids"
