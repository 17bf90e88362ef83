"""Case folds that match one code point by several, or several by one."""

from __future__ import annotations

import pytest

from toktier.certificate.classes import Probe
from toktier.certificate.fold import check_folds, multi_fold_pairs
from toktier.certificate.follow import positions
from toktier.certificate.regex import parse
from toktier.errors import Refusal


@pytest.fixture(scope="module")
def probe() -> Probe:
    return Probe()


def check(pattern: str, probe: Probe) -> None:
    check_folds(positions(parse(pattern), "p"), probe)


def test_pairs_of_the_engine(probe: Probe) -> None:
    pairs = multi_fold_pairs(probe)
    found = {chr(a) + chr(b) for a, b in zip(*pairs.nonzero(), strict=True)}
    assert {p for p in found if p.islower()} == {"ff", "fi", "fl", "ss", "st"}
    assert {p.lower() for p in found} == {"ff", "fi", "fl", "ss", "st"}


@pytest.mark.parametrize(
    "pattern", ["(?i:ss)x|x", "(?i:fi)x|x", "(?i:s(?:s))", "(?i:[st])+", "(?i)s{2}|x", "(?i:f)(?i:[a-z])", "(?i:s+)"]
)
def test_runs_are_refused(pattern: str, probe: Probe) -> None:
    with pytest.raises(Refusal, match="multi-character case fold"):
        check(pattern, probe)


@pytest.mark.parametrize("pattern", ["(?i:ß)|s", "(?i:[ß])|s", r"(?i:\p{L})", "(?i:ﬁ)x|x", "(?i:[^a])", "(?i:é)"])
def test_letters_beyond_ascii_are_refused(pattern: str, probe: Probe) -> None:
    with pytest.raises(Refusal, match="beyond ASCII"):
        check(pattern, probe)


@pytest.mark.parametrize(
    "pattern", ["(?i:'s|'t|'re|'ve|'m|'ll|'d)", "['’](?i:[sdmt]|ll|ve|re)", "(?i:['’]s)", "ss|ß", r"(?i:\s+|'d)"]
)
def test_shipped_patterns_are_safe(pattern: str, probe: Probe) -> None:
    check(pattern, probe)
