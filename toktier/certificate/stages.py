"""The pre-tokenizer of a tokenizer file as a row of operations on pieces, in the order in which HF performs them.

- Split, CharDelimiterSplit: one split. Digits, Punctuation, WhitespaceSplit: a split by one character of a predicate
  (`predicates`). BertPreTokenizer: white space removed, then punctuation isolated. Whitespace: ``\\w+|[^\\w\\s]+``.
- ByteLevel: a space before each piece that has none (``add_prefix_space``), a split by its own pattern
  (``use_regex``), then each character becomes the characters of its UTF-8 bytes.
- Metaspace: spaces become the replacement; the replacement before each piece (``always``), or before the piece at
  offset 0 of the text (``first``), unless it begins with it; a split before each replacement (``split``).

A rewrite is a homomorphism: what becomes of ``u a b v`` is what becomes of ``u a`` followed by what becomes of ``b v``.
So a later split sees a seam again, between the last character of a's image and the first of b's, and lemma 1 speaks of
every text around that pair. That such a split may also cut inside the image of a character changes nothing: those
boundaries lie on one side of the seam, and that side alone has them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from tokenizers import pre_tokenizers

from toktier.certificate import predicates
from toktier.certificate.classes import CODE_POINTS, SURROGATES, Probe
from toktier.certificate.fold import widened
from toktier.certificate.follow import BEHAVIOURS, positions
from toktier.certificate.images import NO_SEAM, Image, Sides, identity
from toktier.certificate.ops import Op, Prefix, Rewrite, Split
from toktier.certificate.regex import GREEDY, Alt, Atom, Node, Repeat, parse, parse_string
from toktier.errors import Refusal, refusing

BYTE_LEVEL_PATTERN = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pattern inside HF's ByteLevel (`tokenizers`, pre_tokenizers/byte_level.rs)."""

MOST_OPERATIONS = 64
"""Published files have up to ten."""
PREPEND_SCHEMES = ("always", "first", "never")


def stages(spec: Mapping[str, Any] | None, probe: Probe) -> list[Op]:
    """The operations of a ``pre_tokenizer`` block, in order; none where there is no pre-tokenizer.

    Raises `Refusal` naming a pre-tokenizer, a field or a construct of a pattern that has no rule here.
    """
    found: list[Op] = []
    for op in () if spec is None else _operations(spec, "pre_tokenizer", probe):
        if len(found) == MOST_OPERATIONS:
            raise Refusal(f"more than {MOST_OPERATIONS} operations", op.place)
        found.append(op)
    return found


def _operations(spec: Mapping[str, Any], place: str, probe: Probe) -> Iterator[Op]:
    kind = spec.get("type")
    if kind == "Sequence":
        for k, part in enumerate(spec.get("pretokenizers") or ()):
            yield from _operations(part, f"{place}[{k}]", probe)
    elif kind == "Split":
        yield _split(spec, place, probe)
    elif kind == "CharDelimiterSplit":
        yield _string_split(spec["delimiter"], place, "Removed", False)
    elif kind == "ByteLevel":
        yield from _byte_level(spec, place)
    elif kind == "Metaspace":
        yield from _metaspace(spec, place)
    elif kind == "Digits":
        yield _predicate_split(predicates.NUMERIC, place, "Isolated" if spec["individual_digits"] else "Contiguous")
    elif kind == "Punctuation":
        yield _predicate_split(predicates.PUNCTUATION, place, _behaviour(spec.get("behavior", "Isolated"), place))
    elif kind == "WhitespaceSplit":
        yield _predicate_split(predicates.WHITE_SPACE, place, "Removed")
    elif kind == "BertPreTokenizer":
        yield _predicate_split(predicates.BERT_WHITE_SPACE, place, "Removed")
        yield _predicate_split(predicates.BERT_PUNCTUATION, place, "Isolated")
    elif kind == "Whitespace":
        runs = (Repeat(_predicate(name, place), 1, None, GREEDY) for name in (predicates.WORD, predicates.OTHER))
        yield _op(Alt(tuple(runs)), r"\w+|[^\w\s]+", "Removed", True, place)
    else:
        raise Refusal(f"pre-tokenizer {kind}", place)


def _split(spec: Mapping[str, Any], place: str, probe: Probe) -> Split:
    behaviour = _behaviour(spec.get("behavior"), place)
    invert = bool(spec.get("invert", False))
    pattern = spec.get("pattern")
    if not isinstance(pattern, Mapping) or len(pattern) != 1 or not {"Regex", "String"} & pattern.keys():
        raise Refusal("split pattern of an unknown form", place)
    text = next(iter(pattern.values()))
    if "String" in pattern:
        return _string_split(text, place, behaviour, invert)
    with refusing(text):
        return _op(widened(parse(text, place), probe, place), text, behaviour, invert, place)


def _byte_level(spec: Mapping[str, Any], place: str) -> Iterator[Op]:
    if spec.get("add_prefix_space", True):
        yield Prefix(place, "always")
    if spec.get("use_regex", True):
        yield _op(parse(BYTE_LEVEL_PATTERN, place), BYTE_LEVEL_PATTERN, "Isolated", False, place)
    yield Rewrite(place, "bytes", byte_level_sides(place))


def _metaspace(spec: Mapping[str, Any], place: str) -> Iterator[Op]:
    """Older files say ``add_prefix_space`` as well, or instead. The engine takes a missing ``prepend_scheme`` as
    ``always``, refuses ``add_prefix_space`` false beside any scheme but ``never``, and does not look at ``str_rep``."""
    replacement = spec["replacement"]
    scheme = spec.get("prepend_scheme", "always")
    if scheme not in PREPEND_SCHEMES:
        raise Refusal(f"prepend_scheme {scheme}", place)
    if spec.get("add_prefix_space") is False and scheme != "never":
        raise Refusal("add_prefix_space that contradicts prepend_scheme", place)
    if replacement != " ":
        image = identity()
        image[ord(" ")] = ord(replacement)
        yield Rewrite(place, f"' ' to {replacement!r}", Sides(image, image))
    if scheme != "never":
        yield Prefix(place, scheme)
    if spec.get("split") is not False:
        yield _string_split(replacement, place, "MergedWithNext", False)


def byte_level_sides(place: str = "pre_tokenizer") -> Sides:
    """What stands at a seam once ByteLevel has put a character for each UTF-8 byte: of a its last, of b its first.

    The characters of the bytes are asked of the engine, on text that holds every byte that UTF-8 has.
    """
    sample = "".join(map(chr, (*range(0x801), *range(0x1000, CODE_POINTS, 0x1000))))
    engine = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    shown = "".join(piece for piece, _ in engine.pre_tokenize_str(sample))
    raw = sample.encode()
    if len(shown) != len(raw):
        raise Refusal("ByteLevel that is not one character a byte", place)
    table = np.full(256, NO_SEAM, np.int32)
    table[list(raw)] = list(map(ord, shown))
    c = np.arange(CODE_POINTS)
    last = np.where(c < 0x80, c, 0x80 | c & 0x3F)
    first = np.select([c < 0x80, c < 0x800, c < 0x10000], [c, 0xC0 | c >> 6, 0xE0 | c >> 12], 0xF0 | c >> 18)
    return Sides(*(_without_surrogates(table[byte]) for byte in (last, first)))


def _without_surrogates(image: Image) -> Image:
    image[SURROGATES.start : SURROGATES.stop] = NO_SEAM
    return image


def _behaviour(name: object, place: str) -> str:
    if name not in BEHAVIOURS:
        raise Refusal(f"split behaviour {name}", place)
    return str(name)


def _predicate(name: str, place: str) -> Atom:
    return Atom(name, place, predicate=name)


def _predicate_split(name: str, place: str, behaviour: str) -> Split:
    return _op(_predicate(name, place), name, behaviour, False, place)


def _string_split(string: str, place: str, behaviour: str, invert: bool) -> Split:
    with refusing(string):
        return _op(parse_string(string, place), repr(string), behaviour, invert, place)


def _op(node: Node, pattern: str, behaviour: str, invert: bool, place: str) -> Split:
    return Split(place, pattern, node, positions(node, place), behaviour, invert)
