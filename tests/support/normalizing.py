"""Lemma 4's promise, checked on the engine: N(u a b v) = N(u a) N°(b v), and the characters beside the seam."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from toktier.certificate.charsmap import build_charsmap
from toktier.certificate.classes import Flips
from toktier.certificate.images import NO_SEAM, mask_of
from toktier.certificate.normalizer import NormalizerRule

Spec = Mapping[str, Any]

HOSTILE = (
    "aAbeEiIsSxzZ019 !|.,`'\"=<>\n\r\t\x00\x7f\u00a0\u3000\u2581\ufffd\u200b\u200d"
    "\u0130\u0131\u00df\u00e9\u00c9\u03a3\u03c3\u03c2"
    "\u0301\u0323\u0327\u0334\u0338\u0345\u0344\u0958\u0915\u093c\u09df\u2122\u212b\ufb01\uff21\u1100\u1161\u11a8\uac00"
    "\uac01\ud55c"
    "\u4e2d\u6587\u20000\u0600\u0d4e\U000110bd\U0001f468\U0001f3fd\U0001f1e9\u0e33\u0903\ufb1d\u2126\u1e9e\u01c5"
)


def engine(spec: Spec | None) -> Callable[[str], str]:
    """The engine's normalizer of a block of a tokenizer file."""
    return _engine(json.dumps(spec))


@cache
def _engine(block: str) -> Callable[[str], str]:
    model = {"type": "BPE", "vocab": {}, "merges": []}
    held = Tokenizer.from_str(json.dumps({"normalizer": json.loads(block), "model": model})).normalizer
    return held.normalize_str if held is not None else lambda text: text


def interior(spec: Spec) -> Spec | None:
    """N°: the block without what treats the start of a segment in a way of its own."""
    if spec["type"] == "Prepend":
        return None
    if spec["type"] == "Strip":
        return {**spec, "strip_left": False}
    if spec["type"] == "Sequence":
        parts = [interior(part) for part in spec["normalizers"]]
        return {**spec, "normalizers": [part for part in parts if part is not None]}
    return spec


class Seams:
    """A rule as a question about a seam in a text."""

    def __init__(self, rule: NormalizerRule) -> None:
        self.rule = rule
        self.left, self.right = rule.sides.left, rule.sides.right
        self.active, self.boundary = mask_of(rule.active), mask_of(rule.boundary)
        self.apart = [(mask_of(x), mask_of(y)) for x, y in rule.apart]

    def good(self, text: str, i: int) -> bool:
        a, b = ord(text[i - 1]), ord(text[i])
        if self.left[a] == NO_SEAM or self.right[b] == NO_SEAM or any(x[a] and y[b] for x, y in self.apart):
            return False
        return not self.active[b] or (i + 1 < len(text) and bool(self.boundary[ord(text[i + 1])]))


def broken(rule: NormalizerRule, spec: Spec, texts: Iterable[str]) -> tuple[int, list[tuple[str, int]]]:
    """(seams that the rule allows in ``texts``, those of them at which the engine breaks the promise)."""
    whole, inside, seams = engine(spec), engine(interior(spec)), Seams(rule)
    count, bad = 0, []
    for text in texts:
        for i in range(1, len(text)):
            if not seams.good(text, i):
                continue
            count += 1
            left, right = whole(text[:i]), inside(text[i:])
            a, b = chr(seams.left[ord(text[i - 1])]), chr(seams.right[ord(text[i])])
            if whole(text) != left + right or left[-1:] != a or right[:1] not in ("", b):
                bad.append((text, i))
    return count, bad


def replace(kind: str, pattern: str, content: str) -> Spec:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def prepend(text: str) -> Spec:
    return {"type": "Prepend", "prepend": text}


def strip(left: bool, right: bool) -> Spec:
    return {"type": "Strip", "strip_left": left, "strip_right": right}


def bert(**options: bool | None) -> Spec:
    told = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
    return {"type": "BertNormalizer", **told, **options}


def precompiled(keys: Mapping[str, str]) -> Spec:
    raw = build_charsmap({key.encode(): text for key, text in keys.items()})
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}


def sequence(*parts: Spec) -> Spec:
    return {"type": "Sequence", "normalizers": list(parts)}


def random_texts(seed: str, count: int, chars: Sequence[str] = HOSTILE, longest: int = 8) -> list[str]:
    """Texts of ``chars``, each over a few of them, so that the same ones meet again."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        few = rng.sample(chars, min(len(chars), rng.randint(2, 6)))
        texts.append("".join(rng.choice(few) for _ in range(rng.randint(2, longest))))
    return texts


def has(flips: Flips, char: str) -> bool:
    return bool(np.searchsorted(flips, ord(char), side="right") & 1)
