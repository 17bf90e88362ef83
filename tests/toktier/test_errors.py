"""What a refusal shows of the pattern that it is about."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.tokenizer_files import CACHE
from toktier.certificate.certificate import certify_ranks
from toktier.certificate.classes import Probe
from toktier.certificate.derive import derive
from toktier.certificate.normalizer import NO_NORMALIZER, normalizer_rule
from toktier.certificate.stages import stages
from toktier.errors import Refusal, refusing


def refusal(pattern: str, place: str) -> Refusal:
    with pytest.raises(Refusal) as caught, refusing(pattern):
        raise Refusal("x", place)
    return caught.value


def test_the_excerpt_is_around_the_place() -> None:
    assert refusal("abc", "pat_str, character 1").excerpt() == ("abc", 1)
    long = "".join(map(chr, range(0x100, 0x100 + 200)))
    text, at = refusal(long, "p, character 100").excerpt(5)
    assert text == f"\u2026{long[95:105]}\u2026"
    assert at is not None
    assert text[at] == long[100]
    assert refusal(long, "p, character 2").excerpt(5) == (long[:7] + "\u2026", 2)
    assert refusal(long, "p, character 199").excerpt(5) == ("\u2026" + long[194:], 6)
    assert refusal("abc", "p, character 3").excerpt() == ("abc", 3), "what is missing at the end"


def test_without_a_place_in_it_a_pattern_is_shown_from_its_start() -> None:
    assert refusal("abcdef", "pre_tokenizer").excerpt(3) == ("abc\u2026", None)
    assert Refusal("x", "model").excerpt() == ("", None)


def test_the_innermost_pattern_is_the_one() -> None:
    with pytest.raises(Refusal) as caught, refusing("outer"), refusing("inner"):
        raise Refusal("x", "p, character 0")
    assert caught.value.pattern == "inner"


def derived(pre_tokenizer: dict[str, Any]) -> None:
    probe = Probe(CACHE)
    derive(NO_NORMALIZER, stages(pre_tokenizer, probe), [], str, probe)


def split(pattern: dict[str, str]) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("pattern", "construct", "rest"),
    [
        (r"\d+(?<=a)b", "look-behind", "(?<=a)b"),
        (r"a|\bx", "word boundary", r"\bx"),
        (r"x(ab", "group without an end", "(ab"),
        (r"x(?=ab)", "lookahead that is not one character", "(?=ab)"),
        (r"a*", "empty string", None),
        (r"(?i:(?:s|t)s)", "across a group", "s)"),
        (r"a\p{Nope}", "the engine rejects", r"\p{Nope}"),
    ],
)
def test_every_stage_of_reading_says_which_pattern(pattern: str, construct: str, rest: str | None) -> None:
    blocks = [split({"Regex": "b+"}), split({"Regex": pattern})]
    with pytest.raises(Refusal, match=construct) as caught:
        derived({"type": "Sequence", "pretokenizers": blocks})
    assert caught.value.pattern == pattern
    text, at = caught.value.excerpt()
    assert text == pattern
    assert "[1]" in caught.value.place
    if rest is not None:
        assert at is not None
        assert text[at:] == rest


def test_a_normalizer_and_a_rank_file_say_it_too() -> None:
    with pytest.raises(Refusal, match="look-behind") as caught:
        normalizer_rule({"type": "Replace", "pattern": {"Regex": "x(?<!a)"}, "content": ""}, Probe())
    assert caught.value.excerpt() == ("x(?<!a)", 1)
    with pytest.raises(Refusal, match="look-behind") as caught:
        certify_ranks("x(?<!a)", [], None)  # type: ignore[arg-type]
    assert caught.value.excerpt() == ("x(?<!a)", 1)
