"""Lemma 5: what added tokens (literals) ask of a seam (a, b).

HF extracts literals leftmost-longest: the raw ones from the raw text first, then, inside each segment left over and
after the normalizer, the normalised ones. A literal may strip white space beside it, and a ``single_word`` one counts
only between non-word characters. A seam leaves the extraction on both sides alone if
- (a, b) stands side by side in no literal: then no occurrence holds both, and no longer one takes an occurrence on one
  side away;
- b is not white space right of white space or of the end of a literal that strips right, and mirrored to the left: then
  no stripping crosses the seam;
- a does not end, and b does not begin, a ``single_word`` literal: then what counts as its neighbour is on its own side
  (cautious: only a word character opposite would matter);
- a does not end a literal, nor is it white space that one may have stripped, where the start of each segment is treated
  in a way of its own (Prepend, Strip, ``add_prefix_space``): b would begin a segment in one text and not in another.

Each pass looks at its own text: the raw literals at the raw pair (a, b), the normalised ones, in their normalised form,
at the images of a and b under the normalizer. A literal of which the normalizer leaves nothing is refused: the engine
finds it between any two characters, but not where another one ends, and beside a literal with its first characters in
the text it searches without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from toktier.certificate.classes import Flips, Probe, all_code_points, flips_of, matched
from toktier.errors import Refusal

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
    """What one pass forbids, in the characters of the text that it looks at; code points as ints."""

    pairs: set[tuple[int, int]] = field(default_factory=set)
    ends: set[int] = field(default_factory=set)
    never_left: set[int] = field(default_factory=set)
    never_right: set[int] = field(default_factory=set)
    before_space: set[int] = field(default_factory=set)
    """Characters a beside which a white-space b is no seam (ends of literals that strip right)."""
    after_space: set[int] = field(default_factory=set)
    strips: bool = False
    strips_right: bool = False


def literal_rule(literals: Iterable[Literal], form: Callable[[str], str]) -> LiteralRule:
    """The rule of the literals of one pass. ``form``: what is looked for.

    Raises `Refusal` for one of which ``form`` leaves nothing. An empty one is none to the engine.
    """
    rule = LiteralRule()
    for lit in literals:
        text = form(lit.content)
        if not lit.content:
            continue
        if not text:
            raise Refusal("added token of which the normalizer leaves nothing", "added_tokens")
        points = [ord(c) for c in text]
        rule.pairs.update(pairwise(points))
        rule.ends.add(points[-1])
        rule.strips |= lit.lstrip or lit.rstrip
        if lit.rstrip:
            rule.strips_right = True
            rule.before_space.add(points[-1])
        if lit.lstrip:
            rule.after_space.add(points[0])
        if lit.single_word:
            rule.never_left.add(points[-1])
            rule.never_right.add(points[0])
    return rule


def white_space(probe: Probe) -> Flips:
    """What literals strip: ``\\s`` of the Rust regex crate, covered by the engine's ``\\s`` and U+001C to U+001F.

    Larger than it need be, which can only cost cuts.
    """
    return probe.cached(_WHITE_SPACE, _ask_white_space)


def _ask_white_space() -> dict[str, Flips]:
    mask = matched(r"[\s\x{1c}-\x{1f}\x{85}\x{200b}\x{feff}]", all_code_points())
    return {_WHITE_SPACE: flips_of(np.asarray(mask))}
