"""The reference engine of a rank file: tiktoken, with every special token looked for.

Invariants:

- This is T of a rank file. Nothing here may change an ID: text that tiktoken would change first (it makes U+FFFD of a
  lone surrogate) and text for which it has no answer raise.
- Special tokens are literals: ``allowed_special="all"``. Each segment between two of them is split on its own.
- tiktoken releases the GIL. It has no state that a call changes; the threads of `encode_batch` are the engine's own,
  since tiktoken's batch starts new ones on every call.
- A panic of tiktoken is no ``Exception``; `CannotEncode` is. Known causes: its regex engine keeps a stack and gives up
  where a part of a pattern that it may have to go back on (``\\s+(?!\\S)``) matches a million characters in a row, or
  where a million in a row match nothing; and a pattern that matches the empty string.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import numpy as np
import numpy.typing as npt
import tiktoken

from toktier.engines.reference import check_text
from toktier.errors import CannotEncode, UnusableFile, is_failure
from toktier.ids import EMPTY, Ids
from toktier.rank_files import BYTE_RANKS, Ranks

_INLINE = 16_384
"""Characters of a batch below which it is not worth waking a thread."""


class TiktokenEngine:
    """T of ``ranks``. Thread-safe; the GIL is released but for the copy of the text."""

    name = "tiktoken"
    version: str = tiktoken.__version__

    def __init__(self, ranks: Ranks, source: str = "the rank file") -> None:
        """Raises `UnusableFile` where tiktoken does not take the pattern."""
        self.ranks = ranks
        self._workers = os.cpu_count() or 1
        try:
            self._encoding = tiktoken.Encoding(
                ranks.name,
                pat_str=ranks.pattern,
                mergeable_ranks=ranks.mergeable,
                special_tokens=dict(ranks.special_tokens),
            )
        except BaseException as error:
            _no_panic(error)
            raise UnusableFile(f"tiktoken does not take the encoding of {source}: {error}") from error
        try:
            self.encode("")
        except CannotEncode as error:
            raise UnusableFile(f"the pattern of {source} matches the empty string, on which tiktoken panics") from error

    def encode(self, text: str) -> Ids:
        """T(text), shape ``(n,)``, read-only. Raises `InvalidText` on a lone surrogate, and `CannotEncode`."""
        try:
            return self._encoding.encode_to_numpy(text, allowed_special="all", disallowed_special=())
        except UnicodeEncodeError:
            check_text([text])
            raise
        except BaseException as error:
            _no_panic(error)
            raise CannotEncode(f"tiktoken {self.version}", type(error).__name__) from error

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """T of each text, one after the other, and their counts. The texts are encoded on all cores."""
        if self._workers == 1 or len(texts) < 2 or sum(map(len, texts)) < _INLINE:
            rows = list(map(self.encode, texts))
        else:
            rows = [row for part in self._pool.map(self._encode_all, _shares(texts, self._workers)) for row in part]
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        return (np.concatenate(rows) if rows else EMPTY), counts

    def decode(self, ids: Ids) -> str:
        """The text of ``ids``, shape ``(n,)``, special tokens included. Unknown IDs are left out."""
        numbers = ids.tolist()
        try:
            return self._encoding.decode(numbers)
        except KeyError:
            return self._encoding.decode([number for number in numbers if number in self._known])

    def bytes_of(self, ids: Ids) -> bytes:
        """What ``ids``, shape ``(n,)``, stand for; not always whole characters. All of them must be known."""
        return self._encoding.decode_bytes(ids.tolist())

    def pieces(self, text: str) -> list[str]:
        """The matches of the pattern in a text in which no special token is looked for.

        tiktoken tells tokens, not matches. With single bytes as the only tokens and the pattern tied to the start of
        the text, its answer is the first match; a match depends on nothing that stands before it, so the rest follows
        one match at a time. Some microseconds per match; quadratic in the length. Raises as `encode` does.
        """
        check_text([text])
        ask = self._first_match.encode_ordinary
        found = []
        try:
            while text:
                taken = bytes(ask(text)).decode()
                if taken:
                    found.append(taken)
                text = text[max(len(taken), 1) :]
        except BaseException as error:
            _no_panic(error)
            raise CannotEncode(f"tiktoken {self.version}", type(error).__name__) from error
        return found

    def _encode_all(self, texts: Sequence[str]) -> list[Ids]:
        return list(map(self.encode, texts))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._workers, "toktier-tiktoken")

    @cached_property
    def _known(self) -> frozenset[int]:
        return frozenset(self.ranks.mergeable.values()) | frozenset(self.ranks.special_tokens.values())

    @cached_property
    def _first_match(self) -> tiktoken.Encoding:
        pattern = rf"\A(?:{self.ranks.pattern})"
        return tiktoken.Encoding("first match", pat_str=pattern, mergeable_ranks=BYTE_RANKS, special_tokens={})


def _shares(texts: Sequence[str], count: int) -> Iterator[Sequence[str]]:
    """``texts`` in some ``count`` runs of about as many characters each."""
    share = sum(map(len, texts)) / count
    start, held = 0, 0
    for i, text in enumerate(texts):
        held += len(text)
        if held >= share:
            yield texts[start : i + 1]
            start, held = i + 1, 0
    if start < len(texts):
        yield texts[start:]


def _no_panic(error: BaseException) -> None:
    """Raises ``error`` again unless it is an ``Exception`` or a panic of native code."""
    if not is_failure(error):
        raise error
