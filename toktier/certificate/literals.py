"""Lemma 5: what added tokens (literals) ask of a seam (a, b).

HF extracts literals leftmost-longest: the raw ones from the raw text first, then, inside each segment left over and
after the normalizer, the normalised ones. A literal may strip white space beside it, and a ``single_word`` one counts
only between non-word characters. A seam leaves the extraction on both sides alone if
- (a, b) stands side by side in no literal (raw ones as written, normalised ones after the normalizer): then no
  occurrence holds both, and no longer one takes an occurrence on one side away;
- b is not white space right of white space or of the end of a literal that strips right, and mirrored to the left: then
  no stripping crosses the seam;
- a does not end, and b does not begin, a ``single_word`` literal: then what counts as its neighbour is on its own side
  (cautious: only a word character opposite would matter);
- neither a nor b is white space, if some literal strips and some literal contains white space: HF then yields
  occurrences that overlap.

Raw and normalised pairs are judged alike, since a seam that lemma 4 lets through has the same pair in both texts.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from toktier.certificate.classes import Flips, Probe, all_code_points, flips_of, matched

_WHITE_SPACE = "white space"


@dataclass(frozen=True)
class Literal:
    """An added token. ``normalized``: it is looked for in the normalised text, in its own normalised form."""

    content: str
    normalized: bool = False
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass
class LiteralRule:
    """Pairs and characters that lemma 5 keeps seams away from; code points as ints."""

    pairs: set[tuple[int, int]] = field(default_factory=set)
    never_left: set[int] = field(default_factory=set)
    never_right: set[int] = field(default_factory=set)
    before_space: set[int] = field(default_factory=set)
    """Characters a beside which a white-space b is no seam (ends of literals that strip right)."""
    after_space: set[int] = field(default_factory=set)
    strips_right: bool = False
    strips_left: bool = False
    space_never: bool = False

    @property
    def needs_space(self) -> bool:
        return self.strips_left or self.strips_right

    def special_points(self) -> set[int]:
        return self.never_left | self.never_right | self.before_space | self.after_space


def literal_rule(literals: Iterable[Literal], normalize: Callable[[str], str], space: Container[str]) -> LiteralRule:
    """The rule of a set of literals. ``normalize``: the tokenizer's normalizer; ``space``: what is white space."""
    rule = LiteralRule()
    any_space = False
    for lit in literals:
        text = normalize(lit.content) if lit.normalized else lit.content
        if not text:
            continue
        points = [ord(c) for c in text]
        rule.pairs.update(pairwise(points))
        any_space = any_space or any(c in space for c in text)
        if lit.rstrip:
            rule.strips_right = True
            rule.before_space.add(points[-1])
        if lit.lstrip:
            rule.strips_left = True
            rule.after_space.add(points[0])
        if lit.single_word:
            rule.never_left.add(points[-1])
            rule.never_right.add(points[0])
    rule.space_never = rule.needs_space and any_space
    return rule


def white_space(probe: Probe) -> Flips:
    """What literals strip: ``\\s`` of the Rust regex crate, covered by the engine's ``\\s`` and U+001C to U+001F.

    Larger than it need be, which can only cost cuts.
    """
    return probe.cached(_WHITE_SPACE, _ask_white_space)


def _ask_white_space() -> dict[str, Flips]:
    mask = matched(r"[\s\x{1c}-\x{1f}\x{85}\x{200b}\x{feff}]", all_code_points())
    return {_WHITE_SPACE: flips_of(np.asarray(mask))}
