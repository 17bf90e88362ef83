"""Every guard is needed: with one taken away, some case renders wrongly (or is folded though it must not be)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.support import folding_cases, folding_odd_cases, folding_state_cases
from tests.support.folding import run
from tests.support.folding_case import Case
from toktier.folding import (
    Fallback,
    allowed,
    change,
    fold,
    functions,
    guards,
    indexes,
    loop_object,
    plan,
    records,
    rewrite,
    scans,
    state,
    stretches,
    strict,
    tracker,
)

CASES = {case.name: case for case in [*folding_cases.CASES, *folding_odd_cases.CASES, *folding_state_cases.CASES]}
Patch = Callable[[pytest.MonkeyPatch], None]


def _wrong(case: Case) -> bool:
    return bool(run(case.source, case.requests).mismatches)


def _loose(patch: pytest.MonkeyPatch) -> None:
    for module in (strict, records, state):
        patch.setattr(module, "same", lambda a, b, pure=frozenset(): a == b)


def _reads_nothing(slot: int | None = None) -> Patch:
    def taken_away(patch: pytest.MonkeyPatch) -> None:
        read = tracker.Tracker.read

        def ours(self: Any, at: int, low: int, high: int) -> None:
            if slot is not None and (at == 0) is not (slot == 0):
                read(self, at, low, high)

        patch.setattr(tracker.Tracker, "read", ours)

    return taken_away


def _no_far(patch: pytest.MonkeyPatch) -> None:
    for module in (tracker, functions, loop_object):
        patch.setattr(module, "FAR", -1)


def _nobody_asked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records.Record, "_askers", lambda *_: None)


def _admit_all(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tracker.Tracker, "admit", lambda self, number, value: self.values.__setitem__(number, value))


def _admit_lists(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fold.Runner, "_admit_list", lambda *_: None)


def _always_settled(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fold, "equal_states", lambda *_: True)


def _no_rewrite_of_writes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records.Record, "last_writer", lambda *_: None)


def _writers_stay(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(records.Record, "did_not_write", lambda *_: None)


def _writes_are_reads(patch: pytest.MonkeyPatch) -> None:
    """The value tells whether it was written."""

    def wrote(self: Any, attribute: int, place: int, value: Any) -> None:
        if value is not None:
            original(self, attribute, place, value)

    original = records.Record.wrote
    patch.setattr(records.Record, "wrote", wrote)


def _one_name(patch: pytest.MonkeyPatch) -> None:
    _admit_all(patch)  # which would notice, too
    patch.setattr(
        allowed, "_check_namespaces", lambda tree: frozenset(x.name for x in tree.find_all(allowed.nodes.NSRef))
    )


def _macros_anyhow(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(allowed, "_check_macros", lambda _: None)
    _admit_all(patch)  # which would notice, too


def _no_outer(patch: pytest.MonkeyPatch) -> None:
    original = rewrite.Rewriter._site

    def site(self: Any, read: Any, node: Any, offset: int = 0) -> int:
        return 0 if read is rewrite.Read.OUTER else original(self, read, node, offset)

    patch.setattr(rewrite.Rewriter, "_site", site)


def _no_macros(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan._Folder, "_with_macros", lambda self, part: part)


def _nothing_is_carried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan._Folder, "_reached", lambda *_: (set(), set()))


def _breaks_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(change.Change, "stop", lambda *_: None)


def _any_guard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards, "_is_guard", lambda *_: True)
    patch.setattr(guards, "_copy", lambda test: test)


def _threshold_off_by_one(patch: pytest.MonkeyPatch) -> None:
    original = records.Record._askers

    def askers(self: Any, places: set[int], bit: int, low: int, high: int) -> None:
        original(self, places, bit, low, high - 1)

    patch.setattr(records.Record, "_askers", askers)


def _all_are_lists(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(guards._Lists, "hold", lambda *_: True)


def _lists_any_how(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(fold, "_sequence", lambda plan, source: (list(source), plan.backwards))


def _sites_at_the_level_of_the_template(patch: pytest.MonkeyPatch) -> None:
    original = plan._Folder._emitted

    def emitted(self: Any, *given: Any) -> list[Any]:
        take, body, sites = original(self, *given)
        return [take, body, *sites.body]

    patch.setattr(plan._Folder, "_emitted", emitted)


def _sites_around_the_body(patch: pytest.MonkeyPatch) -> None:
    original = plan._Folder._emitted

    def emitted(self: Any, *given: Any) -> list[Any]:
        take, body, sites = original(self, *given)
        body.body += sites.body
        return [take, body]

    patch.setattr(plan._Folder, "_emitted", emitted)


def _lists_have_one_name(patch: pytest.MonkeyPatch) -> None:
    original = tracker.Tracker.list_slot

    def list_slot(self: Any, number: int, value: Any) -> int:
        slot = original(self, number, value)
        self.twins.clear()
        return slot

    patch.setattr(tracker.Tracker, "list_slot", list_slot)


def _nothing_writes_in_look_ups(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scans, "_may_write", lambda _: False)


def _stretches_read_no_name(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stretches, "_loaded", lambda _: frozenset())


def _nobody_looks_up(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(indexes.Lookups, "touched", lambda *_: set())


def _indexes_stay(patch: pytest.MonkeyPatch) -> None:
    original = indexes.Index.update

    def update(self: Any, items: list[Any], region: Any, collect: Any) -> set[str]:
        return set() if self.items else original(self, items, region, collect)

    patch.setattr(indexes.Index, "update", update)


def _counters_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scans, "is_blank", lambda node: isinstance(node, scans.nodes.Assign))


def _any_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(scans, "_stays", lambda *_: True)


def _undefined_is_an_object(patch: pytest.MonkeyPatch) -> None:
    def sites_of(self: Any, value: Any) -> list[int]:
        return [one for one, slot in self.plan.slots.items() if self.slots[slot] is value]

    patch.setattr(tracker.Tracker, "sites_of", sites_of)


def _all_wanted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(state._Render, "wants", lambda *_: True)


def _first_difference_of_equals(patch: pytest.MonkeyPatch) -> None:
    def compare(self: Any, old: list[Any], new: list[Any]) -> tuple[int, int]:
        same = [x == y for x, y in zip(old, new, strict=False)]
        first = same.index(False) if False in same else len(same)
        return (first, tracker.FAR + 1) if len(old) != len(new) or first < len(new) else (0, 0)

    patch.setattr(records.Lists, "_compare", compare)
    patch.setattr(state, "reuse", lambda old, new, known=0: (new, [*range(len(new))]))


def _stretches_stay(patch: pytest.MonkeyPatch) -> None:
    original = records.Record.printed
    patch.setattr(records.Record, "printed", lambda self, _, marks: original(self, (), marks))


def _stretches_of_any_item(patch: pytest.MonkeyPatch) -> None:
    """The item's place tells."""
    start = tracker.Tracker.start

    def ours(self: Any, place: int) -> None:
        start(self, place)
        if self.kept is not None:
            self.items = self.kept.items[: len(self.items)] + self.items[len(self.kept.items) :]

    patch.setattr(tracker.Tracker, "start", ours)


def _everything_is_steady(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stretches._Finder, "_steady_at", lambda self, _: self._names)


def _iterators_are_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(stretches._Finder, "_holds_values", stretches._Finder._is_pure)


MUTATIONS: dict[str, tuple[Patch, str]] = {
    "== for sameness": (_loose, "types and signs show in JSON"),
    "== for arguments": (_loose, "values of arguments too"),
    "== for messages": (_first_difference_of_equals, "types and signs show in JSON"),
    "positions are not noted": (_reads_nothing(1), "index0 - 1 of the first is the last"),
    "neighbours are not noted": (_reads_nothing(0), "last"),
    "nothing lies beyond the end": (_no_far, "length"),
    "values are not noted": (_nobody_asked, "a macro's free name"),
    "a threshold's end is left out": (_threshold_off_by_one, "a threshold moves"),
    "a cycler is admitted": (_admit_all, "a cycler's current"),
    "a cycler in a list is admitted": (_admit_lists, "a cycler in a list"),
    "states are not compared": (_always_settled, "carried and edited"),
    "the last writer does not count": (_no_rewrite_of_writes, "the last of several writers"),
    "a former writer counts": (_writers_stay, "a writer that stops writing"),
    "none is not a write": (_writes_are_reads, "none written over none"),
    "an alias is read": (_one_name, "an alias that is read"),
    "an alias is written": (_one_name, "an alias that is written"),
    "a macro is a value": (_macros_anyhow, "a macro with another name"),
    "outer values do not count": (_no_outer, "a name with an outer value"),
    "carried attributes are values": (_nothing_is_carried, "carried, in an expression"),
    "what a break leaves behind": (_breaks_are_forgotten, "a break"),
    "everything is a guard": (_any_guard, "all that match, not the first ones"),
    "everything can be read again": (_all_are_lists, "read to its end in an iteration"),
    "half a generator": (_lists_any_how, "over part of a generator"),
    "nobody looks up": (_nobody_looks_up, "calls that change their ID"),
    "an index stays": (_indexes_stay, "calls that change their ID"),
    "everything is a look-up": (_counters_too, "a counter beside it"),
    "stretches stay": (_stretches_stay, "a stretch that an item has not"),
    "stretches are any item's": (_stretches_of_any_item, "a stretch of another item"),
    "every name is steady": (_everything_is_steady, "a stretch with a name of the moment"),
    "iterators are steady": (_iterators_are_values, "a stretch that uses something up"),
    "look-ups at the level of the template": (_sites_at_the_level_of_the_template, "assigned below"),
    "look-ups around the body": (_sites_around_the_body, "a name that is only assigned to at its own level"),
    "lists have one name": (_lists_have_one_name, "a list with two names"),
    "a key may write": (_any_key, "a look-up whose key writes"),
    "a key may be another with an item": (_any_key, "a look-up whose key an item changes"),
    "a key may use something up": (_any_key, "a look-up whose key uses something up"),
    "undefined is an object": (_undefined_is_an_object, "a list that was undefined"),
    "look-ups write nothing": (_nothing_writes_in_look_ups, "a look-up whose key moves on"),
    "stretches read no name": (_stretches_read_no_name, "a name that is read in a stretch, then assigned to"),
}
"""Which guard is taken away, and the case that notices."""


@pytest.mark.parametrize("name", MUTATIONS)
def test_each_guard_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken_away, case = MUTATIONS[name]
    assert not _wrong(CASES[case])
    taken_away(monkeypatch)
    assert _wrong(CASES[case])


def test_sites_that_nothing_asked_for_are_not_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["unread branches raise nothing"]
    _all_wanted(monkeypatch)
    assert set(run(case.source, case.requests).fallbacks) != {None}


@pytest.mark.parametrize("most", [0, 12_000, 1 << 40])
def test_a_large_state_is_kept_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a growing value the last one is kept; what one iteration hands on to the next costs nothing more."""
    monkeypatch.setattr(fold, "MAX_LARGE", most)
    for name in ("a large state", "a system prompt in a namespace"):
        case = CASES[name]
        seen = run(case.source, case.requests)
        assert not seen.mismatches
        assert set(seen.fallbacks) == {None}


@pytest.mark.parametrize(("state", "large"), [(0, 0), (0, 3), (1, 2), (0, 1 << 40)])
def test_states_that_are_not_kept_are_made_again(state: int, large: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_STATE", state)
    monkeypatch.setattr(fold, "MAX_LARGE", large)
    for case in CASES.values():
        assert not _wrong(case), case.name


def test_a_site_that_the_loop_does_not_know_of_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["a macro's free name"]
    _no_macros(monkeypatch)
    assert Fallback.ERROR in run(case.source, case.requests).fallbacks
