"""Probed sets: exact, cached under what they depend on, and partitioned."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tokenizers import Regex, normalizers, pre_tokenizers

from toktier.certificate import classes as module
from toktier.certificate.classes import (
    CODE_POINTS,
    FANCY,
    ONIGURUMA,
    Oniguruma,
    Probe,
    all_code_points,
    contains,
    flips_of,
    flips_of_points,
    matched,
    members,
    partition,
)
from toktier.certificate.regex import Atom
from toktier.errors import Refusal


def atom(text: str) -> Atom:
    return Atom(text, "test")


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe()


@pytest.mark.parametrize("text", [r"\p{L}", r"\s", "(?i:s)", r"[^\s\p{L}\p{N}]"])
def test_equals_what_split_matches(text: str, probe: Probe) -> None:
    """Two ways of asking the engine agree: Replace over everything, and the runs of Split."""
    flips = probe.atoms([atom(text)])[0]
    every = all_code_points()[:0x20000]
    found = np.zeros(CODE_POINTS, np.bool_)
    split = pre_tokenizers.Split(Regex(f"(?:{text})+"), "removed", invert=True)
    for piece, _ in split.pre_tokenize_str(every):
        found[[ord(c) for c in piece]] = True
    assert np.array_equal(np.flatnonzero(found), members(flips)[: found.sum()])
    assert not contains(flips, np.arange(0xD800, 0xE000)).any()


@pytest.mark.parametrize(
    "text", [r"\p{L}", r"\s", "(?i:s)", r"[^\s\p{L}\p{N}]", r"\S", ".", "(?m:.)", r"[\r\n]", "\\x{0}"]
)
def test_equals_what_replace_takes_out_one_by_one(text: str) -> None:
    """The normalizer, one match at a time; `matched` takes out runs, through the decoder.

    Over all code points of the planes that have characters, and one in 101 of the others, which are alike.
    """
    points = "".join(c for c in all_code_points() if ord(c) < 0x34000 or ord(c) >> 12 == 0xE0 or ord(c) % 101 == 0)
    rest = normalizers.Replace(Regex(text), "").normalize_str(points)
    mask = np.zeros(CODE_POINTS, np.bool_)
    mask[[ord(c) for c in set(points) - set(rest)]] = True
    assert np.array_equal(matched(text, points), mask)


def test_case_is_the_engines(probe: Probe) -> None:
    small, kelvin = probe.atoms([atom("(?i:s)"), atom("(?i:k)")])
    assert "".join(map(chr, members(small))) == "Ss\u017f"
    assert "".join(map(chr, members(kelvin))) == "Kk\u212a"


@pytest.mark.parametrize(
    "text", [r"\p{L}", r"[^\s\p{L}\p{N}]", r"\S", ".", "(?s:.)", r"[\p{Lu}\p{M}&&[^\p{Han}]]", r"\h"]
)
def test_fancy_atoms_hold_the_same_alone_and_in_a_pattern_that_backtracks(text: str) -> None:
    """fancy-regex hands regular patterns to another engine and runs the others itself; ``(?!(?!))`` always holds.

    What it runs itself keeps a stack: a run or a gap of a million characters is too long for it.
    """
    every = all_code_points()
    for start in range(0, len(every), 200_000):
        some = every[start : start + 200_000]
        assert np.array_equal(FANCY.matched(text, some), FANCY.matched(f"{text}(?!(?!))", some))


def test_engines_have_caches_of_their_own(tmp_path: Path) -> None:
    told = Probe(tmp_path, ONIGURUMA).atoms([atom(".")])[0]
    fancy = Probe(tmp_path, FANCY)
    assert np.array_equal(fancy.atoms([atom(".")])[0], told)
    assert fancy.asked == 1
    assert 10 not in members(told)


@pytest.mark.parametrize(("text", "taken"), [("[ab]", True), ("[ab", False), (r"\X", False), (r"[\d-z]", False)])
def test_fancy_accepts(text: str, taken: bool) -> None:
    assert FANCY.accepts(text) is taken


def test_flips_round_trip() -> None:
    for points in ([], [0], [CODE_POINTS - 1], [0, 1, 2, 5, CODE_POINTS - 1], [7, 9]):
        flips = flips_of_points(points)
        assert members(flips).tolist() == points
        mask = np.zeros(CODE_POINTS, np.bool_)
        mask[points] = True
        assert np.array_equal(flips, flips_of(mask))


def test_partition_is_the_coarsest() -> None:
    classes, holds = partition([flips_of_points(range(10, 20)), flips_of_points(range(15, 30)), flips_of_points([15])])
    assert holds.shape == (3, 5)
    for k, inside in enumerate((range(10, 20), range(15, 30), [15])):
        assert np.flatnonzero(holds[k][classes]).tolist() == list(inside)
    assert classes[10] == classes[14] != classes[15] != classes[16] == classes[19]


def test_partition_by_many_sets() -> None:
    """More sets than one pass takes, some of which flip at every code point."""
    rng = np.random.default_rng(0)
    masks = [rng.random(CODE_POINTS) < 0.5 for _ in range(3)]
    masks += [np.arange(CODE_POINTS) == c for c in rng.integers(0, 300, 90)]
    masks = [mask & (np.arange(CODE_POINTS) < 2000) for mask in masks]
    classes, holds = partition([flips_of(mask) for mask in masks])
    rows, expected = np.unique(np.array(masks)[:, :3000], axis=1, return_inverse=True)
    assert np.array_equal(classes[:3000], expected)
    assert np.array_equal(holds, rows)
    assert (classes[3000:] == classes[2999]).all()
    assert partition([])[0].max() == 0


def test_disk_cache(tmp_path: Path) -> None:
    first = Probe(tmp_path)
    told = first.atoms([atom("[ab]")])[0]
    assert first.asked == 1
    again = Probe(tmp_path)
    assert np.array_equal(again.atoms([atom("[ab]")])[0], told)
    assert again.asked == 0
    other_engine = Probe(tmp_path, engine=Oniguruma("tokenizers 0.0.0"))
    other_engine.atoms([atom("[ab]")])
    assert other_engine.asked == 1
    for file in (tmp_path / "classes").iterdir():
        raw = bytearray(file.read_bytes())
        raw[-1] ^= 1
        file.write_bytes(raw)
    damaged = Probe(tmp_path)
    assert np.array_equal(damaged.atoms([atom("[ab]")])[0], told)
    assert damaged.asked == 1


def test_a_changed_source_asks_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Probe(tmp_path).atoms([atom("[ab]")])
    monkeypatch.setattr(module, "derivation", lambda: "changed source")
    changed = Probe(tmp_path)
    changed.atoms([atom("[ab]")])
    assert changed.asked == 1


def test_unwritable_cache_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "classes").write_text("a file where the folder should be")
    assert members(Probe(tmp_path).atoms([atom("[ab]")])[0]).tolist() == [97, 98]


def test_an_atom_that_the_engine_rejects(probe: Probe) -> None:
    with pytest.raises(Refusal, match="rejects"):
        probe.atoms([atom(r"\p{IsHan}")])
