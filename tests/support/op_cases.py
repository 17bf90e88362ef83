"""Lemma 2 for rows of operations, as plainly as can be, and its statement on the engine: the pieces of both sides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer, pre_tokenizers

from toktier.certificate.classes import Mask, matched
from toktier.certificate.follow import stage_rule
from toktier.certificate.images import Image, identity
from toktier.certificate.ops import Op, Prefix, Split
from toktier.certificate.predicates import held
from toktier.certificate.regex import Atom

Pairs = set[tuple[str, str]]


def engine_of(spec: Mapping[str, Any]) -> pre_tokenizers.PreTokenizer:
    """The engine's pre-tokenizer of a ``pre_tokenizer`` block, which it reads itself."""
    model = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    return Tokenizer.from_str(json.dumps({"added_tokens": [], "pre_tokenizer": spec, "model": model})).pre_tokenizer


def certified_pairs(ops: Sequence[Op], alphabet: str) -> Pairs:
    """Pairs at which some split is strict and all before it are transparent. A prefix before every piece after a split
    closes all pairs that are still open: such a piece may begin at the seam or not."""
    left = right = identity()
    cut, open_ = np.zeros((len(alphabet),) * 2, np.bool_), np.ones((len(alphabet),) * 2, np.bool_)
    split_seen = False
    for op in ops:
        if isinstance(op, Split):
            holds = (_holds(op.positions.atoms, alphabet, image) for image in (left, right))
            rule = stage_rule(op.node, op.positions, *holds, op.behaviour, op.invert)
            cut |= open_ & rule.strict
            open_ &= rule.transparent
            split_seen = True
        elif isinstance(op, Prefix):
            open_ &= op.scheme == "first" or not split_seen
        else:
            left, right = op.sides.left[left], op.sides.right[right]
    return {(a, b) for i, a in enumerate(alphabet) for k, b in enumerate(alphabet) if cut[i, k]}


def _holds(atoms: Sequence[Atom], alphabet: str, image: Image) -> Mask:
    """Which atom holds the images of which characters, shape ``(atoms, alphabet)``."""
    seen = "".join(chr(image[ord(c)]) for c in alphabet)
    return np.array([[c in _members(a, "".join(sorted(set(seen)))) for c in seen] for a in atoms], np.bool_)


@cache
def _members(atom: Atom, chars: str) -> str:
    if atom.literal is not None:
        return atom.literal
    if atom.predicate is not None:
        return held(atom.predicate, chars)[atom.predicate]
    return "".join(c for c in chars if matched(atom.text, c)[ord(c)])


def broken_seams(
    engine: pre_tokenizers.PreTokenizer, pairs: Iterable[tuple[str, str]], sides: Sequence[tuple[str, str]]
) -> list[tuple[str, str]]:
    """(u a, b v) whose pieces are not those of u a and then those that b v has inside a text; for all ``sides`` (u, v).

    The latter are what a b v has after the pieces of a: those of b v alone, but for a prefix.
    """

    def pieces(text: str) -> list[str]:
        return [piece for piece, _ in engine.pre_tokenize_str(text)]

    broken = []
    for a, b in sorted(pairs):
        first = pieces(a)
        for u, v in sides:
            inside = pieces(a + b + v)
            if inside[: len(first)] != first or pieces(u + a + b + v) != pieces(u + a) + inside[len(first) :]:
                broken.append((u + a, b + v))
    return broken
