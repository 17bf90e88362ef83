"""The certificate: at which pairs of characters may a text be cut, so that T is the concatenation of its parts' T.

Invariants:
- a cut (a, b) satisfies lemma 4 (normalizer), lemma 5 (literals), lemma 1 at one stage and transparency at all stages
  before it (lemma 2); `docs/proof.md` has the proofs;
- it holds for every text around the pair, so an edit that keeps ``text[i-1]``, ``text[i]`` and, under a composing
  normalizer, ``text[i+1]`` keeps the cut;
- the end of the text is never a cut;
- every set of characters in it was probed out of the engine that it names; another version needs another certificate.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from toktier.certificate.classes import (
    CODE_POINTS,
    ENGINE,
    SURROGATES,
    Flips,
    Mask,
    Probe,
    members,
    partition,
)
from toktier.certificate.fold import check_folds
from toktier.certificate.follow import stage_rule
from toktier.certificate.literals import Literal, LiteralRule, literal_rule, white_space
from toktier.certificate.normalizer import NormalizerRule, normalizer_rule
from toktier.certificate.selfcheck import self_check
from toktier.certificate.stages import Stage, stages
from toktier.errors import Refusal

DERIVATION_VERSION = 1
_NO, _YES, _IF_NEXT = 0, 1, 2
_MODELS = ("BPE", "WordPiece", "WordLevel", "Unigram")


@dataclass(frozen=True)
class Table:
    """The derived rule.

    ``classes``: the class of each code point, shape ``(0x110000,)``, uint8 or uint16. ``matrix``: over the classes of a
    and b, shape ``(n, n)``: 0 no cut, 1 cut, 2 cut if the class of the next character is in ``boundary``, of shape
    ``(n,)``.
    """

    classes: npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
    matrix: npt.NDArray[np.uint8]
    boundary: Mask


class Certificate:
    """Certified cuts of one tokenizer under one engine version. Immutable, thread-safe."""

    def __init__(self, table: Table, *, digest: str, engine: str, facts: Mapping[str, Any]) -> None:
        self.digest = digest
        self.engine = engine
        self.table = table
        self.needs_next = bool((table.matrix == _IF_NEXT).any())
        self._facts = dict(facts)
        self._n = len(table.matrix)
        wide = table.classes.dtype != np.uint8
        self._classes: Sequence[int] = array("H", table.classes.tobytes()) if wide else table.classes.tobytes()
        self._matrix = table.matrix.tobytes()
        self._boundary = table.boundary.tobytes()
        self._flat = table.matrix.reshape(-1)
        self._met = np.where(table.boundary, _YES | _IF_NEXT, _YES).astype(np.uint8)
        """Which kinds of pairs the class of the next character lets pass, as bits."""

    def is_cut(self, text: str, i: int) -> bool:
        """Whether T(text) = T(text[:i]) + T(text[i:]) is certified, ``0 < i < len(text)``."""
        classes = self._classes
        kind = self._matrix[classes[ord(text[i - 1])] * self._n + classes[ord(text[i])]]
        if kind != _IF_NEXT:
            return kind == _YES
        return i + 1 < len(text) and self._boundary[classes[ord(text[i + 1])]] == 1

    def cuts(self, text: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.int64]:
        """All cuts i with ``max(start, 1) <= i <= min(stop, len(text) - 1)``, sorted, shape ``(n,)``."""
        low = max(start, 1)
        high = len(text) - 1 if stop is None else min(stop, len(text) - 1)
        if high < low:
            return np.empty(0, np.int64)
        window = text[low - 1 : high + 2]
        k = self.table.classes.take(np.frombuffer(window.encode("utf-32-le", "surrogatepass"), "<u4"))
        m = high - low + 1
        at = k[:m].astype(np.uint32)
        at *= self._n
        at += k[1 : m + 1]
        kinds = self._flat.take(at)
        if self.needs_next:
            after = self._met.take(k[2:])
            kinds[: len(after)] &= after
            kinds[len(after) :] &= _YES
        return np.flatnonzero(kinds != _NO) + low

    def summary(self) -> dict[str, Any]:
        """What it is, for people and logs: JSON-able, no text."""
        return {
            "digest": self.digest,
            "engine": self.engine,
            "classes": self._n,
            "cut_pairs": int((self.table.matrix != _NO).sum()),
            "cut_pairs_if_next": int((self.table.matrix == _IF_NEXT).sum()),
            "needs_next": self.needs_next,
            **self._facts,
        }


def certify(spec: Mapping[str, Any], reference: Tokenizer, *, cache_dir: Path | None = None) -> Certificate:
    """Derive the certificate of a tokenizer file and check it against the engine.

    ``spec`` is the parsed tokenizer.json, ``reference`` the engine's object made from it (truncation and padding off),
    ``cache_dir`` a folder for probed sets. Raises `Refusal` naming the construct that stops the proof.
    """
    _check_model(spec, reference)
    literals = read_literals(spec, reference)
    probe = Probe(cache_dir)
    normalizer = normalizer_rule(spec.get("normalizer"), probe)
    split = stages(spec.get("pre_tokenizer"))
    table = derive(normalizer, split, literals, reference, probe)
    facts = {
        "normalizer": normalizer.name,
        "stages": [{"pattern": s.pattern, "behaviour": s.behaviour, "invert": s.invert} for s in split],
        "atoms": len({a.text for s in split for a in s.positions.atoms}),
        "literals": len(literals),
        "model": spec["model"].get("type"),
    }
    certificate = Certificate(table, digest=_digest(spec, literals, table), engine=ENGINE, facts=facts)
    try:
        self_check(certificate, reference, [lit.content for lit in literals])
    except BaseException as error:
        # A panic of native code (a pattern that backtracks beyond the engine's limit) is no Exception.
        if type(error).__name__ != "PanicException":
            raise
        raise Refusal("self-check", "a text on which the engine panics") from None
    return certificate


def _digest(spec: Mapping[str, Any], literals: Sequence[Literal], table: Table) -> str:
    described = {
        "normalizer": spec.get("normalizer"),
        "pre_tokenizer": spec.get("pre_tokenizer"),
        "literals": [repr(lit) for lit in literals],
        "engine": ENGINE,
        "derivation": DERIVATION_VERSION,
    }
    h = hashlib.sha256(json.dumps(described, sort_keys=True).encode("utf-8", "surrogatepass"))
    for part in (table.classes, table.matrix, table.boundary):
        h.update(part.tobytes())
    return h.hexdigest()


def _check_model(spec: Mapping[str, Any], reference: Tokenizer) -> None:
    """Lemma 2 gives pieces; the model maps each piece to IDs on its own, if it is a function of the piece."""
    model = spec.get("model") or {}
    kind = model.get("type", "BPE" if "merges" in model else None)
    if kind not in _MODELS:
        raise Refusal(f"model {kind}", "model")
    if model.get("dropout"):
        raise Refusal("BPE dropout", "model.dropout")
    if model.get("alpha") or model.get("nbest_size"):
        raise Refusal("Unigram sampling", "model")
    if reference.truncation is not None:
        raise Refusal("truncation", "truncation")
    if reference.padding is not None:
        raise Refusal("padding", "padding")


def read_literals(spec: Mapping[str, Any], reference: Tokenizer) -> list[Literal]:
    """The added tokens of the file. Raises `Refusal` where the engine's object has others."""
    names = ("content", "normalized", "lstrip", "rstrip", "single_word")
    told = {tuple(t.get(n, False) for n in names) for t in spec.get("added_tokens") or []}
    held = {tuple(getattr(t, n) for n in names) for t in reference.get_added_tokens_decoder().values()}
    if told != held:
        raise Refusal("added tokens that differ between the file and the engine", "added_tokens")
    return [Literal(**dict(zip(names, t, strict=True))) for t in sorted(held)]


def derive(
    normalizer: NormalizerRule, split: Sequence[Stage], literals: Sequence[Literal], reference: Tokenizer, probe: Probe
) -> Table:
    """Lemmas 1, 2, 4 and 5 over the classes that their sets induce."""
    for stage in split:
        check_folds(stage.positions, probe)
    atoms = [a for s in split for a in s.positions.atoms]
    sets = probe.atoms(atoms)
    surrogates = np.array([SURROGATES.start, SURROGATES.stop], np.uint32)
    space = white_space(probe)
    literal = literal_rule(
        literals,
        reference.normalizer.normalize_str if reference.normalizer else lambda text: text,
        frozenset(map(chr, members(space))),
    )
    extra = [normalizer.sides, normalizer.active, normalizer.boundary, surrogates]
    if literal.needs_space:
        extra.append(space)
    classes, holds = partition([*sets, *extra])
    sides, active, boundary, lone = holds[len(sets) : len(sets) + 4]
    cut = lemma_2(split, holds[: len(sets)])
    sides = sides & ~lone
    cut &= sides[:, None] & sides[None, :]
    if literal.needs_space:
        _keep_from_space(cut, literal, holds[-1])
    matrix = np.where(cut, np.where(active[None, :], _IF_NEXT, _YES), _NO).astype(np.uint8)
    return _without_literals(classes, matrix, boundary, literal, space)


def lemma_2(split: Sequence[Stage], holds: Mask) -> Mask:
    """Pairs of classes at which some stage is strict and all stages before it are transparent.

    A transparent stage, whatever its behaviour, can at most join the two pieces at the seam, so the strict stage sees a
    piece that ends in a, or one that begins with b, or one with the seam inside. ``holds``: the rows of all stages'
    atoms, one stage after the other.
    """
    n = holds.shape[1]
    cut = np.zeros((n, n), np.bool_)
    open_ = np.ones((n, n), np.bool_)
    at = 0
    for stage in split:
        count = len(stage.positions.atoms)
        rows = holds[at : at + count]
        rule = stage_rule(stage.node, stage.positions, rows, rows, stage.behaviour, stage.invert)
        cut |= open_ & rule.strict
        open_ &= rule.transparent
        at += count
    return cut


def _keep_from_space(cut: Mask, literal: LiteralRule, space: Mask) -> None:
    if literal.space_never:
        cut &= ~space[:, None] & ~space[None, :]
    else:
        cut &= ~(space[:, None] & space[None, :])


def _without_literals(
    classes: npt.NDArray[np.uint16], matrix: npt.NDArray[np.uint8], boundary: Mask, literal: LiteralRule, space: Flips
) -> Table:
    """Lemma 5's pairs taken out. Characters that it singles out get classes of their own, equal classes are merged."""
    pairs = [(a, b) for a, b in literal.pairs if matrix[classes[a], classes[b]]]
    points = sorted({p for pair in pairs for p in pair} | literal.special_points())
    n = len(matrix)
    own = {p: n + k for k, p in enumerate(points)}
    origin = np.concatenate([np.arange(n), classes[points].astype(np.int64)]) if points else np.arange(n)
    wide = matrix[np.ix_(origin, origin)]
    table = classes.astype(np.int64)
    table[points] = np.arange(n, n + len(points))
    for a, b in pairs:
        wide[own[a], own[b]] = _NO
    wide[[own[p] for p in literal.never_left], :] = _NO
    wide[:, [own[p] for p in literal.never_right]] = _NO
    if literal.needs_space:
        is_space = np.zeros(len(wide), np.bool_)
        is_space[table[members(space)]] = True
        for p in literal.before_space:
            wide[own[p], is_space] = _NO
        for p in literal.after_space:
            wide[is_space, own[p]] = _NO
    edge = boundary[origin]
    rows = np.concatenate([wide, wide.T, edge[:, None].astype(np.uint8)], axis=1)
    _, first, merged = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    final = merged.reshape(-1)[table]
    dtype = np.uint8 if len(first) <= 256 else np.uint16
    assert final.shape == (CODE_POINTS,)
    return Table(
        np.ascontiguousarray(final.astype(dtype)), np.ascontiguousarray(wide[np.ix_(first, first)]), edge[first].copy()
    )
