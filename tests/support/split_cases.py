"""Split stages over a tiny alphabet, for brute force: all strings, every seam."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from tokenizers import Regex, pre_tokenizers

from tests.support.regex_oracle import random_pattern
from tests.support.tokenizer_files import CACHE
from toktier.certificate.classes import Mask, Probe, flips_of, flips_of_points, matched, partition
from toktier.certificate.derive import split_rule
from toktier.certificate.ops import Op, Split
from toktier.certificate.stages import stages
from toktier.errors import Refusal

BEHAVIOURS = {
    "Isolated": "isolated",
    "Removed": "removed",
    "MergedWithPrevious": "merged_with_previous",
    "MergedWithNext": "merged_with_next",
    "Contiguous": "contiguous",
}
_PROBE = Probe(CACHE)
"""Shared, so that sets are asked for once."""
ALL_SPLITS = [(behaviour, invert) for behaviour in BEHAVIOURS for invert in (False, True)]


def strings(alphabet: str, longest: int) -> list[str]:
    return ["".join(t) for n in range(1, longest + 1) for t in itertools.product(alphabet, repeat=n)]


def split_spec(pattern: str, behaviour: str = "Isolated", invert: bool = False) -> dict[str, object]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behaviour, "invert": invert}


def engine_split(pattern: str, behaviour: str = "Isolated", invert: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), BEHAVIOURS[behaviour], invert)


def certified_pairs(ops: Sequence[Op], alphabet: str) -> set[tuple[str, str]]:
    """Pairs of the alphabet that lemmas 1 and 2 certify; atoms are asked of the engine over the alphabet only."""
    splits = [op for op in ops if isinstance(op, Split)]
    assert splits == list(ops)
    atoms = [a for s in splits for a in s.positions.atoms]
    masks: dict[str, Mask] = {a.text: matched(a.text, alphabet) for a in atoms}
    singles = [flips_of_points([ord(c)]) for c in alphabet]
    classes, holds = partition([*(flips_of(masks[a.text]) for a in atoms), *singles])
    rows, at = [], 0
    for split in splits:
        own = holds[at : at + len(split.positions.atoms)]
        rows.append((own, own))
        at += len(own)
    cut = split_rule(splits, rows, holds.shape[1]).cut
    return {(a, b) for a in alphabet for b in alphabet if cut[classes[ord(a)], classes[ord(b)]]}


def one_stage(pattern: str, behaviour: str = "Isolated", invert: bool = False) -> list[Op]:
    return stages(split_spec(pattern, behaviour, invert), _PROBE)


def random_stage(rng: random.Random, depth: int) -> str:
    """A pattern that the parser takes, the engine takes and that cannot match the empty string."""
    while True:
        pattern = random_pattern(rng, depth)
        try:
            one_stage(pattern)
            engine_split(pattern)
        except Refusal:
            continue
        except Exception as e:  # the engine's own refusal has no type of its own
            if "Oniguruma error" not in str(e):
                raise
            continue
        return pattern


def broken_seams(
    pairs: set[tuple[str, str]], texts: Sequence[str], pieces: Callable[[str], list[str]]
) -> Iterator[tuple[str, int]]:
    """Seams at the given pairs at which the pieces of the whole are not those of its sides."""
    whole = {text: pieces(text) for text in texts}
    for text in texts:
        for i in range(1, len(text)):
            if (text[i - 1], text[i]) in pairs and whole[text] != whole[text[:i]] + whole[text[i:]]:
                yield text, i


def pieces_of(pre_tokenizer: pre_tokenizers.PreTokenizer) -> Callable[[str], list[str]]:
    return lambda text: [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)]
