"""Lemma 3: cuts inside a piece of text that no stage splits, from the merges of a BPE.

Claim. Let a and b stand side by side in one piece, as they are after the normalizer and the pre-tokenizer. If no merge
(l, r) has the last symbol of ``u a`` among the *last symbols* of l and the first symbol of ``b v`` among the *first
symbols* of r, and a and b pass the conditions below, then the IDs of ``u a b v`` are those of ``u a`` and of ``b v``.

Proof. (1) The model turns characters into symbols: a character in the vocabulary is its entry; otherwise, with byte
fallback and all its bytes in the vocabulary, the entries ``<0xHH>`` of its bytes; otherwise the unknown token; or else
nothing. The symbols of the whole are those of the parts in a row (conditions *unknown* and *dropped*). (2) A merge puts
the entry whose string is theirs in a row in the place of two neighbours, so the string of every token is that of its
symbols in a row. Hence the last symbol of a token l is the entry of its string's last character, or ``<0xHH>`` if the
string ends so, or the unknown token if it ends so: these are the *last symbols* of l; likewise the first ones. (3) Take
the first merge across the seam: until then the token left of it ends with the last symbol of ``u a``, and the one right
of it begins with the first of ``b v``. No merge joins such two, so there is none. (4) Merges of one side then depend on
that side alone: the queue orders by rank, then by position, and an entry is applied only if the two tokens that stand
at its position by then are a merge, which those on two sides of the seam never are.

Conditions (each has a counter-example in the tests):
- *affix*: ``continuing_subword_prefix`` and ``end_of_word_suffix`` are empty: they change symbols at the seam;
- *one string*: no two entries share an ID, and no entry that can be a symbol is empty: else (2) fails;
- *dropped*: without an unknown token an unknown character leaves no symbol, so its neighbours meet: it is at no seam;
- *unknown*: an unknown is held back past characters of byte fallback until a known character, the end or, where
  unknowns are not fused, another unknown. So, if there are unknown characters at all: a or b is in the vocabulary, or b
  is unknown and unknowns are not fused. And ``u a`` may end with a held-back unknown if a is made of bytes, ``b v`` may
  begin with any byte if b is unknown;
- *whole words*: with ``ignore_merges`` a piece that is an entry is that entry. Where merges make it of itself that is
  no difference. Otherwise: no seam inside such an entry, after its last symbol or before its first; then neither the
  piece, nor its part before the seam, nor its part after it, is such an entry.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import models

from toktier.certificate.classes import CODE_POINTS, SURROGATES, Mask
from toktier.certificate.images import NO_SEAM, Sides
from toktier.certificate.model import may_join
from toktier.certificate.packed import packed
from toktier.errors import Refusal

_BYTE = CODE_POINTS
_UNKNOWN = _BYTE + 256
_NEVER = _UNKNOWN + 1
_BYTE_TOKENS = [f"<0x{byte:02X}>" for byte in range(256)]
_BYTE_FIRST = re.compile(r"<0x([0-9A-F]{2})>")
_BYTE_LAST = re.compile(r"<0x([0-9A-F]{2})>\Z")

Symbols = npt.NDArray[np.uint32]
"""Symbols by number: the code point of a character in the vocabulary, `_BYTE` + byte, `_UNKNOWN`, or `_NEVER`."""


@dataclass(frozen=True)
class Joins:
    """Which two characters a merge may join, exactly: no pair is joined only because it shares a place in the table.

    ``left``, ``right``: shape ``(0x110000,)``, uint32, over raw characters a and b; ``table``: shape ``(n,)``, uint32.
    ``left[a]`` is where the row of a begins in the table, ``right[b]`` the column of b; rows lie over each other, and a
    place of the table holds the beginning of the row that it belongs to: that of a if a and b may be joined.
    """

    left: npt.NDArray[np.uint32]
    right: npt.NDArray[np.uint32]
    table: npt.NDArray[np.uint32]
    _left: array[int] = field(init=False, repr=False, compare=False)
    _right: array[int] = field(init=False, repr=False, compare=False)
    _table: array[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # An item of an `array` is read several times as fast as one of numpy's; both look at one memory.
        for name in ("left", "right", "table"):
            items = array("I")
            items.frombytes(np.ascontiguousarray(getattr(self, name), np.uint32).data.cast("B"))
            object.__setattr__(self, f"_{name}", items)
            object.__setattr__(self, name, np.frombuffer(items, np.uint32))

    def apart(self, a: int, b: int) -> bool:
        """Whether no merge joins the code points a and b, whatever stands around them."""
        row = self._left[a]
        return self._table[row + self._right[b]] != row

    def apart_many(self, a: npt.NDArray[np.integer], b: npt.NDArray[np.integer]) -> Mask:
        """`apart` for many pairs; ``a``, ``b`` of one shape ``(n,)``, result of the same shape."""
        row = self.left.take(a)
        result: Mask = self.table.take(row + self.right.take(b)) != row
        return result


def unsplit_rule(model: Mapping[str, Any], sides: Sides) -> Joins:
    """Lemma 3 for a model as in the file, with its vocabulary and merges.

    ``sides`` are the images of raw characters after the normalizer and the pre-tokenizer. Raises `Refusal` naming the
    flag that stops it.
    """
    _check_flags(model)
    alphabet = _Alphabet(model)
    merges = _merges(model)
    pairs = alphabet.with_held_back(_of_merges(merges, alphabet))
    last, first = alphabet.last.copy(), alphabet.first.copy()
    if model.get("ignore_merges"):
        whole = _words_of_their_own(model, merges)
        inside = [(last[ord(x)], first[ord(y)]) for word in whole for x, y in pairwise(word)]
        pairs = np.concatenate([pairs, np.array(inside, np.uint32).reshape(-1, 2)])
        last[np.isin(last, [last[ord(word[-1])] for word in whole])] = _NEVER
        first[np.isin(first, [first[ord(word[0])] for word in whole])] = _NEVER
    begins, columns, table = packed(pairs, _NEVER + 1, _NEVER)
    return Joins(begins.take(last).take(sides.left), columns.take(first).take(sides.right), table)


def _check_flags(model: Mapping[str, Any]) -> None:
    if not may_join(model):
        raise Refusal("a model without merges over text that no stage splits", "model")
    if model.get("dropout"):
        raise Refusal("BPE dropout", "model.dropout")
    for affix in ("continuing_subword_prefix", "end_of_word_suffix"):
        if model.get(affix):
            raise Refusal(f"{affix} over text that no stage splits", f"model.{affix}")
    vocab = model["vocab"]
    if len(set(vocab.values())) != len(vocab):
        raise Refusal("two vocabulary entries of one ID over text that no stage splits", "model.vocab")
    if model.get("unk_token") == "" and "" in vocab:
        raise Refusal("an empty unknown token over text that no stage splits", "model.unk_token")


class _Alphabet:
    """The symbols of a model: of each character its last one and its first one, shapes ``(0x110000,)``."""

    def __init__(self, model: Mapping[str, Any]) -> None:
        vocab = model["vocab"]
        self.known = np.zeros(CODE_POINTS, np.bool_)
        self.known[[ord(entry) for entry in vocab if len(entry) == 1]] = True
        self.unknown: str = model.get("unk_token") or ""
        self.fused = bool(model.get("fuse_unk"))
        has_byte = np.array([bool(model.get("byte_fallback")) and byte in vocab for byte in _BYTE_TOKENS])
        self.bytes = np.flatnonzero(has_byte)
        """The bytes that are symbols."""
        heads, tails, whole = _utf8(has_byte)
        # Without the token in the vocabulary the engine raises on an unknown character, on the whole and on the part.
        kept = self.unknown != "" and self.unknown in vocab
        self.may_hold_back = kept and not bool((self.known | whole).all())
        self.last = np.full(CODE_POINTS + 1, _UNKNOWN if kept else _NEVER, np.uint32)
        """By code point; the item at `NO_SEAM`, after all of them, is `_NEVER`."""
        self.first = self.last.copy()
        for side, ends in ((self.last, tails), (self.first, heads)):
            side[:-1][whole] = _BYTE + ends[whole]
            known = np.flatnonzero(self.known)
            side[known] = known
            side[NO_SEAM] = _NEVER

    def with_held_back(self, pairs: Symbols) -> Symbols:
        """The joined pairs of the merges, and those that an unknown may be held back across; shapes ``(n, 2)``."""
        if not self.may_hold_back:
            return pairs
        of_bytes = _BYTE + self.bytes.astype(np.uint32)
        either = np.append(of_bytes, np.uint32(_UNKNOWN))
        after = np.unique(pairs[pairs[:, 0] == _UNKNOWN, 1])
        pairs = np.concatenate([pairs, _product(of_bytes, after)])
        before = np.unique(pairs[np.isin(pairs[:, 1], of_bytes), 0])
        return np.concatenate(
            [
                pairs,
                _product(before, np.array([_UNKNOWN])),
                _product(either, either if self.fused else of_bytes),
            ]
        )

    def last_of(self, token: str) -> list[int]:
        """The last symbols of a token by its string."""
        at = _BYTE_LAST.search(token)
        return self._at_edge(token[-1], at, self.unknown != "" and token.endswith(self.unknown))

    def first_of(self, token: str) -> list[int]:
        """The first symbols of a token by its string."""
        at = _BYTE_FIRST.match(token)
        return self._at_edge(token[0], at, self.unknown != "" and token.startswith(self.unknown))

    def _at_edge(self, character: str, byte: re.Match[str] | None, unknown: bool) -> list[int]:
        found = [ord(character)] if self.known[ord(character)] else []
        if byte is not None:
            found.append(_BYTE + int(byte[1], 16))
        if unknown:
            found.append(_UNKNOWN)
        return found


def _utf8(has_byte: Mask) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint32], Mask]:
    """The first and the last byte of each code point in UTF-8, and whether all its bytes are there; ``(0x110000,)``."""
    heads, tails = np.empty(CODE_POINTS, np.uint32), np.empty(CODE_POINTS, np.uint32)
    whole = np.empty(CODE_POINTS, np.bool_)
    tails[:] = np.tile(np.arange(0x80, 0xC0), CODE_POINTS // 64)
    followed = np.ones(1, np.bool_)
    blocks = []
    for head, stop in ((0xC0, 0x800), (0xE0, 0x10000), (0xF0, CODE_POINTS)):
        followed = np.logical_and.outer(has_byte[0x80:0xC0], followed).reshape(-1)
        blocks.append((head, stop, followed))
    for head, stop, after in reversed(blocks):
        heads[:stop] = head + np.arange(stop) // len(after)
        whole[:stop] = has_byte[heads[:stop]] & np.resize(after, stop)
    heads[:0x80] = tails[:0x80] = np.arange(0x80)
    whole[:0x80] = has_byte[:0x80]
    whole[SURROGATES.start : SURROGATES.stop] = True  # they stand in no text
    return heads, tails, whole


def _product(left: npt.NDArray[np.integer], right: npt.NDArray[np.integer]) -> Symbols:
    return np.stack([np.repeat(left, len(right)), np.tile(right, len(left))], axis=1).astype(np.uint32)


def _merges(model: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The merges as pairs of tokens, in either spelling of the file. Merges of an empty token apply to nothing."""
    try:
        pairs = [
            m.split(" ") if isinstance(m, str) else m
            for m in model["merges"]
            if not (isinstance(m, str) and m.startswith("#version"))
        ]
        return [(left, right) for left, right in pairs if left and right]
    except ValueError:
        raise Refusal("a merge that is not of two tokens", "model.merges") from None


def _of_merges(merges: Sequence[tuple[str, str]], alphabet: _Alphabet) -> Symbols:
    """The pairs of a last symbol of l and a first symbol of r over all merges (l, r), shape ``(n, 2)``."""
    met = "".join({left[-1] + right[0] for left, right in merges})
    pairs = np.frombuffer(met.encode("utf-32-le", "surrogatepass"), "<u4").reshape(-1, 2)
    pairs = pairs[alphabet.known[pairs].all(axis=1)]
    # Other symbols than characters are rare: only tokens that end or begin as they do are looked at closely.
    ends, begins = {">", alphabet.unknown[-1:]}, {"<", alphabet.unknown[:1]}
    more = {
        (x, y)
        for left, right in merges
        if left[-1] in ends or right[0] in begins
        for x in alphabet.last_of(left)
        for y in alphabet.first_of(right)
    }
    return np.concatenate([pairs, np.array(sorted(more), np.uint32).reshape(-1, 2)]).astype(np.uint32)


def _words_of_their_own(model: Mapping[str, Any], merges: list[tuple[str, str]]) -> list[str]:
    """The entries that merges do not make of their own string, as the engine says without `ignore_merges`."""
    vocab = model["vocab"]
    flags = {name: model[name] for name in ("unk_token", "fuse_unk", "byte_fallback") if model.get(name)}
    engine = models.BPE(vocab, merges, ignore_merges=False, **flags)
    return [entry for entry, k in vocab.items() if entry and not _is_made(engine, entry, k)]


def _is_made(engine: models.BPE, entry: str, k: int) -> bool:
    try:
        tokens = engine.tokenize(entry)
    except Exception:  # the engine raises on a character that it has no symbol for
        return False
    return len(tokens) == 1 and tokens[0].id == k
