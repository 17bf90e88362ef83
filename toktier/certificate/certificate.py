"""The certificate: at which pairs of characters may a text be cut, so that T is the concatenation of its parts' T.

Invariants:
- a cut (a, b) satisfies lemma 4 (normalizer), lemma 5 (literals), and lemmas 1 and 2 (splits) or 3 (merges);
  `docs/proof.md` has the proofs;
- it holds for every text around the pair, so an edit that keeps ``text[i-1]``, ``text[i]`` and, under a composing
  normalizer, ``text[i+1]`` keeps the cut;
- the end of the text is never a cut;
- every set of characters in it was probed out of the engine that it names; another version needs another certificate;
- it is checked against the engine whenever it is made or loaded.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from toktier.certificate import store
from toktier.certificate.classes import ENGINE, FANCY, Probe
from toktier.certificate.derive import Derived, derive
from toktier.certificate.follow import positions
from toktier.certificate.joins import unsplit_rule
from toktier.certificate.literals import Literal
from toktier.certificate.model import check_model
from toktier.certificate.normalizer import NO_NORMALIZER, normalizer_rule
from toktier.certificate.ops import Op, Prefix, Rewrite, Split
from toktier.certificate.regex import Dialect, parse
from toktier.certificate.selfcheck import Reference, self_check
from toktier.certificate.source import derivation
from toktier.certificate.stages import stages
from toktier.certificate.table import IF_APART, IF_NEXT, Table, TableCuts
from toktier.engines.reference import ReferenceEngine
from toktier.errors import CannotEncode, Refusal, refusing


@dataclass(frozen=True)
class Certificate(TableCuts):
    """Certified cuts of one tokenizer under one engine version. Immutable, thread-safe."""

    digest: str = ""
    engine: str = ""
    facts: Mapping[str, Any] | None = None
    from_cache: bool = field(default=False, compare=False)
    """Whether the table was kept from an earlier load, and only checked in this one."""

    def summary(self) -> dict[str, Any]:
        """What it is, for people and logs: JSON-able, no text."""
        matrix = self.table.matrix
        return {
            "digest": self.digest,
            "engine": self.engine,
            "classes": len(matrix),
            "cut_pairs": int((matrix != 0).sum()),
            "cut_pairs_if_next": int(((matrix & IF_NEXT) != 0).sum()),
            "cut_pairs_if_apart": int(((matrix & IF_APART) != 0).sum()),
            "needs_next": self.needs_next,
            "interior": self.interior,
            **(self.facts or {}),
        }


def certify(
    spec: Mapping[str, Any], reference: Tokenizer, *, cache_dir: Path | None = None, key: str | None = None
) -> Certificate:
    """Derive the certificate of a tokenizer file and check it against the engine.

    ``spec`` is the parsed tokenizer.json, vocabulary and merges included, ``reference`` the engine's object made from
    it (truncation and padding off), ``cache_dir`` a folder for probed sets and, under ``key`` (a digest of the file),
    for the table. Raises `Refusal` naming the construct that stops the proof.
    """
    check_model(spec, reference)
    literals = read_literals(spec, reference)
    engine = ReferenceEngine(reference)
    kept = store.load(cache_dir, key, ENGINE)
    from_cache = kept is not None
    if kept is None:
        kept = _derive(spec, reference, literals, Probe(cache_dir))
        store.store(cache_dir, key, ENGINE, *kept)
    described = {name: value for name, value in spec.items() if name not in ("model", "decoder", "post_processor")}
    return _checked(*kept, described, ENGINE, engine, literals, from_cache)


def certify_ranks(
    pattern: str,
    special_tokens: Sequence[str],
    reference: Reference,
    *,
    cache_dir: Path | None = None,
    key: str | None = None,
) -> Certificate:
    """As `certify`, for a tiktoken rank file: ``pattern`` is its regex, ``reference`` the engine made from both.

    tiktoken drops what its pattern does not match and has no normalizer; special tokens are raw literals. Raises
    `Refusal`.
    """
    literals = [Literal(text) for text in sorted(special_tokens)]
    kept = store.load(cache_dir, key, FANCY.name)
    from_cache = kept is not None
    if kept is None:
        probe = Probe(cache_dir, FANCY)
        with refusing(pattern):
            node = parse(pattern, "pat_str", Dialect.FANCY)
            ops: list[Op] = [Split("pat_str", pattern, node, positions(node, "pat_str"), "Removed", invert=True)]
        derived = derive(NO_NORMALIZER, ops, literals, str, probe)
        facts = _facts(derived, ops, literals, "tiktoken")
        kept = derived.table, facts | {"normalizer": "none", "normalizer_conditions": [], "merges": "not needed"}
        _require_cuts(derived, None, "pat_str")
        store.store(cache_dir, key, FANCY.name, *kept)
    described = {"pattern": pattern, "special_tokens": sorted(special_tokens)}
    return _checked(*kept, described, FANCY.name, reference, literals, from_cache)


def _require_cuts(derived: Derived, refused: Refusal | None, place: str) -> None:
    if not derived.table.matrix.any():
        raise refused or Refusal("no pair of characters that is a cut", place)


def _derive(
    spec: Mapping[str, Any], reference: Tokenizer, literals: Sequence[Literal], probe: Probe
) -> tuple[Table, dict[str, Any]]:
    normalizer = normalizer_rule(spec.get("normalizer"), probe)
    ops = stages(spec.get("pre_tokenizer"), probe)
    normalize = reference.normalizer.normalize_str if reference.normalizer else str
    refused: Refusal | None = None
    find = partial(derive, normalizer, ops, literals, normalize, probe)
    try:
        derived = find(lambda sides: unsplit_rule(spec["model"], sides))
    except Refusal as refusal:
        if not refusal.place.startswith("model"):
            raise
        refused, derived = refusal, find()
    facts = _facts(derived, ops, literals, spec["model"].get("type"))
    facts |= {"normalizer": normalizer.name, "normalizer_conditions": list(normalizer.conditions)}
    facts["merges"] = f"refused: {refused}" if refused else ("used" if derived.table.joins else "not needed")
    _require_cuts(derived, refused, "pre_tokenizer")
    return derived.table, facts


def _facts(derived: Derived, ops: Sequence[Op], literals: Sequence[Literal], model: str | None) -> dict[str, Any]:
    return {
        "stages": [_described(op) for op in ops],
        "atoms": len({a.text for op in ops if isinstance(op, Split) for a in op.positions.atoms}),
        "literals": len(literals),
        "literal_flags": {
            name: sum(getattr(lit, name) for lit in literals)
            for name in ("normalized", "lstrip", "rstrip", "single_word")
        },
        "model": model,
        "prefix": "segment" if derived.segment_prefix else "text" if derived.interior else "none",
    }


def _described(op: Op) -> dict[str, Any]:
    if isinstance(op, Split):
        return {
            "type": "split",
            "place": op.place,
            "pattern": op.pattern,
            "behaviour": op.behaviour,
            "invert": op.invert,
        }
    if isinstance(op, Rewrite):
        return {"type": "rewrite", "place": op.place, "name": op.name}
    assert isinstance(op, Prefix)
    return {"type": "prefix", "place": op.place, "scheme": op.scheme}


def _checked(
    table: Table,
    facts: Mapping[str, Any],
    described: Mapping[str, Any],
    engine: str,
    reference: Reference,
    literals: Sequence[Literal],
    from_cache: bool,
) -> Certificate:
    certificate = Certificate(
        table,
        interior=facts["prefix"] != "none",
        digest=_digest(described, engine, table),
        engine=engine,
        facts=facts,
        from_cache=from_cache,
    )
    try:
        self_check(certificate, reference, [lit.content for lit in literals], seed=certificate.digest)
    except BaseException as error:
        # A panic of native code (a pattern that backtracks beyond the engine's limit) is no Exception.
        if not isinstance(error, CannotEncode) and type(error).__name__ != "PanicException":
            raise
        raise Refusal("self-check", "a text on which the engine fails") from None
    return certificate


def _digest(described: Mapping[str, Any], engine: str, table: Table) -> str:
    text = json.dumps([described, engine, derivation()], sort_keys=True)
    h = hashlib.sha256(text.encode("utf-8", "surrogatepass"))
    joins = (table.joins.left, table.joins.right, table.joins.table) if table.joins else ()
    for part in (table.classes, table.matrix, table.boundary, *joins):
        h.update(part.tobytes())
    return h.hexdigest()


def read_literals(spec: Mapping[str, Any], reference: Tokenizer) -> list[Literal]:
    """The added tokens of the file but empty ones, which the engine leaves out. Raises `Refusal` where its object has
    others."""
    names = ("content", "normalized", "lstrip", "rstrip", "single_word")
    told = {tuple(t.get(n, False) for n in names) for t in spec.get("added_tokens") or [] if t.get("content")}
    held = {tuple(getattr(t, n) for n in names) for t in reference.get_added_tokens_decoder().values()}
    if told != held:
        raise Refusal("added tokens that differ between the file and the engine", "added_tokens")
    return [Literal(**dict(zip(names, t, strict=True))) for t in sorted(held)]
