"""Every kind of fault changes the IDs, in its own way; and an injector does the same to the same requests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from tests.support.fake_tier import FakeTier
from tests.support.templates import CHATML
from toktier.ids import Ids
from toktier.reasons import FullEncode
from toktier.template import ChatTemplate
from toktier.tier import Prepared
from tools.faults.kinds import Faults, Kind, Vocabulary
from tools.faults.plan import Plan, read
from tools.faults.reading import read_injections
from tools.faults.tier import Injector, changed_template

VOCAB = {text: number for number, text in enumerate(["a", "b", "c", "ab", "bc", "abc", "ca", "x"])}
FAULTS = Faults(Vocabulary(VOCAB))
KEEP_LENGTH = {Kind.SUBSTITUTION, Kind.SWAP, Kind.RESPLIT, Kind.STALE_CHUNK}


def ids(*values: int) -> Ids:
    made = np.array(values, np.uint32)
    made.flags.writeable = False
    return made


def text(tokens: Ids) -> str:
    spelled = {number: token for token, number in VOCAB.items()}
    return "".join(spelled[int(token)] for token in tokens)


RIGHT = ids(*[VOCAB[t] for t in ("ab", "c", "x", "a", "bc", "ca", "b", "x", "x", "abc")])
CONTEXT: dict[str, Any] = {"earlier": RIGHT[:7], "other": ids(1, 2, 3)}


@pytest.mark.parametrize("kind", list(Kind))
def test_every_kind_changes_the_ids_and_leaves_the_right_ones_alone(kind: Kind) -> None:
    before = RIGHT.copy()
    for seed in range(200):
        made = FAULTS.make(kind, RIGHT, Random(seed), **CONTEXT)
        assert made is not None
        assert not np.array_equal(made, RIGHT)
        assert (len(made) == len(RIGHT)) == (kind in KEEP_LENGTH)
        assert made.dtype == np.uint32
        assert made.flags.c_contiguous
    assert np.array_equal(RIGHT, before)


def test_what_each_kind_does() -> None:
    def make(kind: Kind, seed: int) -> Ids:
        made = FAULTS.make(kind, RIGHT, Random(seed), **CONTEXT)
        assert made is not None
        return made

    for seed in range(50):
        assert sum(make(Kind.SUBSTITUTION, seed) != RIGHT) == 1
        assert sorted(make(Kind.SWAP, seed)) == sorted(RIGHT)
        assert sum(make(Kind.SWAP, seed) != RIGHT) == 2
        assert len(make(Kind.DELETION, seed)) == len(RIGHT) - 1
        assert text(make(Kind.RESPLIT, seed)) == text(RIGHT)
        stale = make(Kind.STALE_CHUNK, seed)
        assert np.array_equal(stale[:7], RIGHT[:7]), "a plain append is wrong only after what it shares"
        assert np.array_equal(make(Kind.WRONG_SESSION, seed), CONTEXT["other"])
    twice = make(Kind.DUPLICATION, 3)
    at = next(k for k in range(len(RIGHT)) if twice[k] == twice[k + 1] and twice[k + 1] != RIGHT[k + 1 : k + 2])
    assert np.array_equal(np.delete(twice, at), RIGHT)


def test_a_stale_stretch_of_an_edited_session_stands_where_it_stood() -> None:
    earlier = ids(*RIGHT[:3], 5, 5, 5, *RIGHT[6:])
    for seed in range(50):
        made = FAULTS.make(Kind.STALE_CHUNK, RIGHT, Random(seed), earlier=earlier)
        assert made is not None
        wrong = np.flatnonzero(made != RIGHT)
        assert set(wrong) <= {3, 4, 5}
        assert np.array_equal(made[wrong], earlier[wrong])


def test_a_kind_that_can_change_nothing_says_so() -> None:
    same = ids(VOCAB["x"], VOCAB["x"])
    rng = Random(0)
    assert FAULTS.make(Kind.SWAP, same, rng) is None
    assert FAULTS.make(Kind.RESPLIT, same, rng) is None
    assert FAULTS.make(Kind.DELETION, ids(3), rng) is None
    assert FAULTS.make(Kind.STALE_CHUNK, same, rng) is None
    assert FAULTS.make(Kind.STALE_CHUNK, same, rng, earlier=same) is None
    for kind in (Kind.WRONG_SESSION, Kind.WRONG_TEMPLATE):
        assert FAULTS.make(kind, same, rng) is None
        assert FAULTS.make(kind, same, rng, other=same) is None
    assert all(FAULTS.make(kind, ids(), rng, other=ids()) is None for kind in Kind)


def test_added_tokens_are_never_resplit() -> None:
    special = ids(VOCAB["x"], 999, VOCAB["x"])
    assert FAULTS.make(Kind.RESPLIT, special, Random(1)) is None


def test_a_changed_template_renders_other_text_and_one_without_the_place_is_refused() -> None:
    changed = changed_template(ChatTemplate({"default": CHATML}))
    assert changed.digest != ChatTemplate({"default": CHATML}).digest
    assert "<|im_end|>\\n" not in changed.source(tools=False)
    with pytest.raises(ValueError, match="no message"):
        changed_template(ChatTemplate({"default": "{{ messages }}"}))


class _Tier:
    """What an injector needs of a tier."""

    name = "m"
    faults = FAULTS

    def otherwise(self, _body: object) -> tuple[dict[str, Any], Ids]:
        return {"texts": ("another text",), "template_digest": "another"}, ids(7, 7)


def prepared(tokens: Ids, full: FullEncode | None = None) -> Prepared:
    made = FakeTier().prepare("t", {"messages": []})
    return dataclasses.replace(made, ids=tokens, full=full, template_digest="own")


def right(k: int) -> Ids:
    """What request ``k`` should send: sessions grow, and are unlike each other."""
    return RIGHT[: 4 + k % 7]


def inject(
    folder: Path, rate: float, count: int = 200, full: FullEncode | None = None, **options: Any
) -> list[Prepared]:
    injector = Injector(Plan(folder / "faults", rate, 5, **options))
    tier: Any = _Tier()
    return [injector.apply(tier, prepared(right(k), full), dict, f"r-{k}", f"s-{k % 5}") for k in range(count)]


def test_what_is_written_down_is_what_was_sent(tmp_path: Path) -> None:
    sent = inject(tmp_path, 0.4)
    noted = {one.request_id: one for one in read_injections(tmp_path / "faults")}
    wrong = {f"r-{k}" for k, one in enumerate(sent) if not np.array_equal(one.ids, right(k))}
    assert wrong == set(noted)
    assert 50 < len(wrong) < 110
    assert {one.kind for one in noted.values()} == set(Kind)
    for k, one in enumerate(sent):
        note = noted.get(f"r-{k}")
        assert not one.ids.flags.writeable
        if note is not None:
            assert (note.tokens, note.sent, note.path, note.model) == (len(right(k)), len(one.ids), "init", "m")
            assert (one.template_digest == "another") == (note.kind is Kind.WRONG_TEMPLATE)


def test_the_same_requests_get_faults_whatever_came_before(tmp_path: Path) -> None:
    def hit(rate: float, seed: int) -> set[str]:
        file = tmp_path / f"{rate}-{seed}"
        injector, tier = Injector(Plan(file, rate, seed)), _Tier()
        numbers = list(range(200))
        Random(seed + rate).shuffle(numbers)
        for k in numbers:
            injector.apply(tier, prepared(RIGHT), dict, f"r-{k}", f"s-{k % 7}")  # type: ignore[arg-type]
        return {one.request_id for one in read_injections(file)}

    assert hit(0.1, 5) < hit(0.4, 5)
    assert hit(0.4, 6) != hit(0.4, 5)


def test_ids_that_the_reference_made_are_spared_unless_asked_for(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    spared = inject(tmp_path, 1.0, 20, FullEncode.QUARANTINED)
    assert all(np.array_equal(one.ids, right(k)) for k, one in enumerate(spared))
    assert not read_injections(tmp_path / "faults")
    assert all(len(one.ids) for one in inject(tmp_path / "b", 1.0, 20, FullEncode.QUARANTINED, spare_reference=False))
    assert len(read_injections(tmp_path / "b" / "faults")) == 20


def test_only_the_wanted_kinds_are_used(tmp_path: Path) -> None:
    inject(tmp_path, 1.0, 30, kinds=(Kind.SWAP, Kind.RESPLIT))
    assert {one.kind for one in read_injections(tmp_path / "faults")} == {Kind.SWAP, Kind.RESPLIT}


def test_no_fault_comes_before_the_warm_up_is_over(tmp_path: Path) -> None:
    inject(tmp_path, 1.0, 30, warm_up=12)
    assert [one.request_id for one in read_injections(tmp_path / "faults")] == [f"r-{k}" for k in range(12, 30)]


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    todo = Plan(tmp_path / "faults", 0.25, 7, (Kind.SWAP, Kind.DELETION), False, 3, "kept")
    todo.write(tmp_path / "plan.json")
    assert read(tmp_path / "plan.json") == todo
