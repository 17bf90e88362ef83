"""Which merges a BPE over bytes can ever make, and in which order.

BPE makes, as long as there is one, the merge of the lowest rank, the leftmost of equals. Write BPE(x) for the result.

Lemma A. Let BPE(x) = e1 ... en. Then BPE of the text of any ei ... ej is ei ... ej. For: no merge crosses the ends of
that stretch, so the merges inside it are those that BPE makes on it alone: each is the lowest of all, hence the lowest
there.

Lemma B. Conversely, where each two neighbours of e1 ... en are the BPE of their own text, e1 ... en is BPE of the
whole. For: before the first merge that crosses a boundary, say of ei and ei+1, what happened inside those two is what
happens on their text alone, and there that merge would be the lowest as well; but there it is not made.

So two results on overlapping stretches that share a token with the same span join at it. This is how long pieces are
encoded in windows (``cuda_src/windows.cuh``). Neither lemma asks anything of the table of ranks.

Lemma C. A token t is ever made by one pair only, the last merge of BPE(t's own text), and that only if BPE gives [t].
For: when a merge makes t, the text of t has been merged by itself up to there, as in lemma A. So the other rules whose
product is t may be left out of the table: one that is never made is never the lowest of all either.

Lemma D. Where no token has two characters side by side, a piece may be cut between them: see `adjacency`. A part of a
piece is not a piece, so what an engine takes for a token without merging counts for it only if BPE gives it too.

Lemma E. A character that BPE of its own bytes makes one token may be that token from the beginning where no token has a
part of it beside the character before it or behind it (`adjacency`), if every rule that uses the token ranks above all
merges that make it. For: a token across one of its ends has it whole, so the first merge across an end takes that very
token; up to there its bytes are merged by themselves. A merge that is made elsewhere before it is whole ranks no higher
than its own next one, hence below all that would use it: having it from the beginning changes no choice.

Batches. If the rule that makes a token ranks before every rule, of those left, that uses it, then its merge makes no
pair of its own rank or below. So all occurrences of the lowest pair may be merged at once, from the left. A rule for
which that fails is a *dip*: Llama 3.1 has 81. Its occurrences are merged one after the other, each followed by what it
makes possible (``cuda_src/rounds.cuh``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from toktier.errors import Refusal

NO_ID = 0xFFFFFFFF
LARGEST_ID, LARGEST_RANK = (1 << 20) - 1, (1 << 24) - 1
_NEVER = 1 << 64

UTF8_BYTES = frozenset(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
"""The bytes that valid UTF-8 has."""

Pair = tuple[int, int]


@dataclass(frozen=True)
class Rules:
    """The merges that are ever made. Rows are sorted by rank."""

    left: npt.NDArray[np.uint32]
    right: npt.NDArray[np.uint32]
    rank: npt.NDArray[np.uint32]
    product: npt.NDArray[np.uint32]
    dip: npt.NDArray[np.bool_]
    of_byte: npt.NDArray[np.uint32]
    """The token of each byte, shape ``(256,)``; `NO_ID` for bytes that UTF-8 does not have."""
    whole: npt.NDArray[np.bool_]
    """Per token of the vocabulary, in its order: whether BPE of its text is that one token."""
    characters: npt.NDArray[np.uint32]
    """The tokens of lemma E: each a character beyond ASCII."""


def rules(tokens: Sequence[tuple[bytes, int]], merges: Mapping[Pair, tuple[int, int]]) -> Rules:
    """The rules of a vocabulary. ``merges``: per pair of IDs its rank and product.

    Raises `Refusal` where a byte has no token, or an ID is beyond what the kernels hold.
    """
    single = {text[0]: token for text, token in tokens if len(text) == 1}
    missing = sorted(UTF8_BYTES - single.keys())
    if missing:
        raise Refusal(f"{len(missing)} bytes without a token, 0x{missing[0]:02x} the first", "model.vocab")
    if max(token for _, token in tokens) > LARGEST_ID:
        raise Refusal("token ID beyond 20 bits", "model.vocab")
    if any(rank > LARGEST_RANK for rank, _ in merges.values()):
        raise Refusal("more merges than 24 bits count", "model.merges")
    packed = {pair: rank << 32 | product for pair, (rank, product) in merges.items()}
    made: dict[int, tuple[int, Pair]] = {}
    whole = np.zeros(len(tokens), np.bool_)
    for k, (text, token) in enumerate(tokens):
        last = _last_merge(text, token, single, packed)
        whole[k] = last is not None
        if last and len(text) > 1:
            made[token] = (merges[last][0], last)
    lowest_use: dict[int, int] = {}
    for rank, pair in made.values():
        for part in pair:
            lowest_use[part] = min(rank, lowest_use.get(part, NO_ID))
    order = sorted(made.items(), key=lambda item: item[1][0])
    column = np.array([(pair[0], pair[1], rank, token) for token, (rank, pair) in order], np.uint32).reshape(-1, 4)
    dip = np.array([lowest_use.get(token, NO_ID) <= rank for token, (rank, _) in order], np.bool_)
    of_byte = np.full(256, NO_ID, np.uint32)
    for byte in UTF8_BYTES:
        of_byte[byte] = single[byte]
    left, right, ranks, product = (np.ascontiguousarray(column[:, i]) for i in range(4))
    characters = [
        token
        for text, token in tokens
        if 1 < len(text) < 5
        and token in made
        and _is_character(text)
        and lowest_use.get(token, NO_ID) > _highest_merge(token, made)
    ]
    return Rules(left, right, ranks, product, dip, of_byte, whole, np.array(characters, np.uint32))


def _is_character(text: bytes) -> bool:
    try:
        return len(text.decode()) == 1
    except UnicodeDecodeError:
        return False


def _highest_merge(token: int, made: Mapping[int, tuple[int, Pair]]) -> int:
    """The highest rank among the merges that make a token; -1 for one byte."""
    if token not in made:
        return -1
    rank, parts = made[token]
    return max(rank, *(_highest_merge(part, made) for part in parts))


def _last_merge(text: bytes, token: int, single: Mapping[int, int], merges: Mapping[Pair, int]) -> Pair | None:
    """The pair that BPE of ``text`` merges last, if that gives ``[token]``; ``(-1, -1)`` for one byte; None if not.

    ``merges``: rank and product of a pair in one number, which is quicker to compare.
    """
    parts = [single.get(byte, -1) for byte in text]
    if len(parts) == 1:
        return (-1, -1) if parts[0] == token else None
    ask = merges.get
    found = [ask(pair, _NEVER) for pair in pairwise(parts)]
    while True:
        lowest = min(found)
        if lowest == _NEVER:
            return None
        at = found.index(lowest)
        pair = (parts[at], parts[at + 1])
        parts[at : at + 2] = [lowest & NO_ID]
        if len(parts) == 1:
            return pair if parts[0] == token else None
        del found[at]
        if at:
            found[at - 1] = ask((parts[at - 1], parts[at]), _NEVER)
        if at < len(found):
            found[at] = ask((parts[at], parts[at + 1]), _NEVER)


def bpe(text: bytes, found: Rules) -> list[int]:
    """BPE of ``text`` by the rules alone, slowly: what tests compare with."""
    table = {(a, b): (r, p) for a, b, r, p in _rows(found)}
    parts = [int(found.of_byte[byte]) for byte in text]
    while len(parts) > 1:
        at = min(range(len(parts) - 1), key=lambda k: table.get((parts[k], parts[k + 1]), (NO_ID, 0))[0])
        merged = table.get((parts[at], parts[at + 1]))
        if merged is None:
            break
        parts[at : at + 2] = [merged[1]]
    return parts


def _rows(found: Rules) -> Iterator[tuple[int, int, int, int]]:
    columns = (found.left, found.right, found.rank, found.product)
    yield from zip(*(column.tolist() for column in columns), strict=True)


def rank_merges(tokens: Mapping[bytes, int]) -> dict[Pair, tuple[int, int]]:
    """tiktoken's merges: any two tokens whose texts, put together, are a token; its ID is the rank."""
    merges: dict[Pair, tuple[int, int]] = {}
    for text, token in tokens.items():
        for cut in range(1, len(text)):
            left = tokens.get(text[:cut])
            if left is not None and (right := tokens.get(text[cut:])) is not None:
                merges[left, right] = (token, token)
    return merges


def file_merges(lines: Sequence[str | Sequence[str]], vocab: Mapping[str, int]) -> dict[Pair, tuple[int, int]]:
    """The merges of a ``tokenizer.json``: the rank is the place in the file, of equal pairs the last one's.

    Raises `Refusal` where a line names what is no token (the engine refuses such a file as well).
    """
    merges: dict[Pair, tuple[int, int]] = {}
    for rank, line in enumerate(lines):
        parts = line.split(" ") if isinstance(line, str) else line
        if len(parts) != 2 or not {parts[0], parts[1], parts[0] + parts[1]} <= vocab.keys():
            raise Refusal("merge of what is no token", f"model.merges[{rank}]")
        merges[vocab[parts[0]], vocab[parts[1]]] = (rank, vocab[parts[0] + parts[1]])
    return merges
