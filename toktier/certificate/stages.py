"""The pre-tokenizer of a tokenizer file as a sequence of split stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toktier.certificate.follow import BEHAVIOURS, Positions, positions
from toktier.certificate.regex import Node, parse, parse_string
from toktier.errors import Refusal

BYTE_LEVEL_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern inside HF's ByteLevel (`tokenizers`, pre_tokenizers/byte_level.rs)."""


@dataclass(frozen=True)
class Stage:
    """One Split: its pattern as a tree, and what becomes of matches and gaps."""

    place: str
    pattern: str
    node: Node
    positions: Positions
    behaviour: str
    invert: bool


def stages(spec: Mapping[str, Any] | None) -> list[Stage]:
    """The split stages of a ``pre_tokenizer`` block, in order. Raises `Refusal` naming what has no rule here.

    ByteLevel rewrites its pieces byte by byte, so a stage after it sees other characters: it must come last.
    """
    if spec is None:
        raise Refusal("no pre-tokenizer", "pre_tokenizer")
    found: list[Stage] = []
    leaves = list(_leaves(spec, "pre_tokenizer"))
    for k, (place, leaf) in enumerate(leaves):
        kind = leaf.get("type")
        if kind == "Split":
            found.append(_split(leaf, place))
        elif kind == "ByteLevel":
            if k + 1 < len(leaves):
                raise Refusal("pre-tokenizer after ByteLevel", leaves[k + 1][0])
            if leaf.get("add_prefix_space", True):
                raise Refusal("ByteLevel with add_prefix_space", place)
            if leaf.get("use_regex", True):
                found.append(_stage(parse(BYTE_LEVEL_PATTERN, place), BYTE_LEVEL_PATTERN, "Isolated", False, place))
        else:
            raise Refusal(f"pre-tokenizer {kind}", place)
    if not found:
        raise Refusal("pre-tokenizer that does not split", "pre_tokenizer")
    return found


def _leaves(spec: Mapping[str, Any], place: str) -> list[tuple[str, Mapping[str, Any]]]:
    if spec.get("type") != "Sequence":
        return [(place, spec)]
    parts = spec.get("pretokenizers") or []
    return [leaf for k, part in enumerate(parts) for leaf in _leaves(part, f"{place}[{k}]")]


def _split(leaf: Mapping[str, Any], place: str) -> Stage:
    behaviour = leaf.get("behavior")
    if behaviour not in BEHAVIOURS:
        raise Refusal(f"split behaviour {behaviour}", place)
    pattern = leaf.get("pattern")
    if not isinstance(pattern, Mapping) or len(pattern) != 1 or not {"Regex", "String"} & pattern.keys():
        raise Refusal("split pattern of an unknown form", place)
    text = next(iter(pattern.values()))
    node = parse(text, place) if "Regex" in pattern else parse_string(text, place)
    return _stage(node, text, behaviour, bool(leaf.get("invert", False)), place)


def _stage(node: Node, pattern: str, behaviour: str, invert: bool, place: str) -> Stage:
    return Stage(place, pattern, node, positions(node, place), behaviour, invert)
