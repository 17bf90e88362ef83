"""Whether a window engine may stand in for the reference on one tokenizer: the self-test at load.

Method. Both engines encode the same texts (`toktier.engines.admission_texts`), all seeded, so a verdict is a function
of the tokenizer and the engine versions.

- Code points first. IDs alone do not show where a text was split: a vocabulary without the right entry hides it. So
  where the model is byte-level, the split is made visible: both engines are loaded once more with the tokenizer's own
  normalizer and splits and with a small vocabulary in which every byte merges with the context signs (`split_probe`).
  Code points in whose texts alone the engines differ are *unsafe*: the engine wrapper routes every text that holds one
  to the reference. More than `MAX_UNSAFE` of them, or one in ASCII: refused.
- On all other texts without an unsafe character the engines must agree, in splits and in IDs: in a batch, in a batch in
  reverse, and alone (a result that depends on what was encoded before is how older versions fail). One difference:
  refused.

This is a test, not a proof. It costs about two seconds of one core, nearly all of it in the reference; verdicts are
kept on disk under the tokenizer's digest, which holds the engine versions, and `REVISION`.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from tokenizers.pre_tokenizers import ByteLevel

from toktier import kept
from toktier.engines.admission_texts import code_point_blocks, texts
from toktier.errors import is_failure
from toktier.ids import Ids

REVISION = 2
"""Raise it when the texts or the rules change: it voids the verdicts on disk."""
MAX_UNSAFE = 16
"""Each unsafe character costs a scan of every text."""


class Encoder(Protocol):
    """What is compared. See `toktier.engines.base.Engine`; a candidate may raise anything."""

    def encode(self, text: str) -> Ids: ...

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]: ...


@dataclass(frozen=True)
class Pair:
    """A candidate and the reference that it is compared with, on the same ``tokenizer.json``."""

    candidate: Encoder
    reference: Encoder

    def different(self, batch: Sequence[str]) -> list[int]:
        """The indices of the texts whose IDs differ."""
        flat, told = self.candidate.encode_batch(batch), self.reference.encode_batch(batch)
        if np.array_equal(flat[1], told[1]) and np.array_equal(flat[0], told[0]):
            return []
        got, expected = _rows(*flat), _rows(*told)
        return [i for i, (a, b) in enumerate(zip(got, expected, strict=True)) if not np.array_equal(a, b)]


@dataclass(frozen=True)
class Verdict:
    """``refusal`` is None where the engine is admitted, with ``unsafe`` characters to be kept from it."""

    refusal: str | None
    unsafe: frozenset[str] = frozenset()


def admit(ids: Pair, literals: Sequence[str], splits: Pair | None) -> Verdict:
    """The verdict on ``ids.candidate``. ``literals``: the added tokens; ``splits``: both engines on `split_probe`."""
    try:
        return _admit(ids, literals, splits)
    except BaseException as error:
        if not is_failure(error):
            raise
        return Verdict(f"the self-test ended with {type(error).__name__}")


def _admit(ids: Pair, literals: Sequence[str], splits: Pair | None) -> Verdict:
    pair = splits or ids
    unsafe: set[str] = set()
    blocks = list(code_point_blocks())
    for index in pair.different([block.text() for block in blocks]):
        points = blocks[index].candidates
        guilty = [points[i] for i in pair.different([blocks[index].single(point) for point in points])]
        if not guilty:
            return Verdict(f"differs on a text of U+{points[0]:04X} to U+{points[-1]:04X}, but on none of them alone")
        if guilty[0] < 0x80:
            return Verdict(f"differs on U+{guilty[0]:04X}, which nearly every text holds")
        unsafe.update(map(chr, guilty))
        if len(unsafe) > MAX_UNSAFE:
            return Verdict(f"differs on more than {MAX_UNSAFE} characters, the first U+{ord(min(unsafe)):04X}")
    safe = [text for text in texts(literals) if unsafe.isdisjoint(text)]
    if splits and (different := splits.different(safe)):
        return Verdict(f"splits self-test text {different[0]} differently")
    expected = _rows(*ids.reference.encode_batch(safe))
    first = _rows(*ids.candidate.encode_batch(safe))
    again = _rows(*ids.candidate.encode_batch(safe[::-1]))[::-1]
    for i, text in enumerate(safe):
        if not np.array_equal(first[i], expected[i]):
            return Verdict(f"differs on self-test text {i}")
        if not np.array_equal(again[i], expected[i]) or not np.array_equal(ids.candidate.encode(text), expected[i]):
            return Verdict(f"differs on self-test text {i} when it is encoded again: the result depends on history")
    return Verdict(None, frozenset(unsafe))


def _rows(ids: Ids, counts: npt.NDArray[np.int64]) -> list[Ids]:
    return np.split(ids, np.cumsum(counts)[:-1])


def split_probe(spec: Mapping[str, Any]) -> str | None:
    """The ``tokenizer.json`` that shows splits in its IDs, made of ``spec``; None where the model is not byte-level.

    Normalizer and pre-tokenizer are those of ``spec``. The vocabulary is the 256 bytes and their pairs with the signs
    of the self-test's contexts; every pair is a merge, those with a byte of a non-ASCII character first. Two bytes of
    one piece merge, those of two pieces do not.
    """
    pre_tokenizer, model = spec.get("pre_tokenizer"), spec.get("model")
    if not pre_tokenizer or not model or model.get("type", "BPE") != "BPE":
        return None
    stages = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    if not any(stage.get("type") == "ByteLevel" for stage in stages):
        return None
    symbols = sorted(ByteLevel.alphabet())
    to_symbols = ByteLevel(add_prefix_space=False, use_regex=False)
    ascii_symbols = [to_symbols.pre_tokenize_str(chr(point))[0][0] for point in range(0x80)]
    context = [ascii_symbols[ord(sign)] for sign in "x'1 \nys"]
    others = sorted(set(symbols) - set(ascii_symbols))
    merges: dict[str, tuple[str, str]] = {}
    for left, right in ((context, others), (others, context), (context, ascii_symbols), (ascii_symbols, context)):
        for pair in itertools.product(left, right):
            merges.setdefault("".join(pair), pair)
    vocab = {symbol: index for index, symbol in enumerate([*symbols, *merges])}
    probe = {**spec, "added_tokens": [], "post_processor": None, "decoder": None, "truncation": None, "padding": None}
    probe["model"] = {**model, "unk_token": None, "vocab": vocab, "merges": [list(pair) for pair in merges.values()]}
    return json.dumps(probe)


def load_verdict(cache_dir: Path | None, digest: str) -> Verdict | None:
    """The verdict kept for the tokenizer ``digest``, if there is a readable one."""
    value = kept.load(cache_dir, f"window-{digest}")
    try:
        if value["revision"] != REVISION or value["digest"] != digest:
            return None
        return Verdict(value["refusal"], frozenset(chr(point) for point in value["unsafe"]))
    except (ValueError, KeyError, TypeError, OverflowError):
        return None


def store_verdict(cache_dir: Path | None, digest: str, verdict: Verdict) -> None:
    """Keeps the verdict; a folder that cannot be written costs the next load a self-test, nothing else."""
    value = {
        "revision": REVISION,
        "digest": digest,
        "refusal": verdict.refusal,
        "unsafe": sorted(map(ord, verdict.unsafe)),
    }
    kept.store(cache_dir, f"window-{digest}", value)
