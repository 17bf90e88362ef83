"""The reference engine: Hugging Face `tokenizers` on ``tokenizer.json``, without post-processor.

Invariants:

- This is T. Every other engine is judged by it; nothing here may change an ID.
- Nothing of one text is left for the next call: the library would remember the words that it has merged, and how fast a
  text is encoded would tell one tenant what words another has sent (`_memoryless`).
- Truncation and padding are off on the instance, whatever its file says.
- `encode_batch_fast` is the only entry used: it releases the GIL (``encode`` does not) and skips the offsets.
- A text that the library gives up on (a character that it has no token for, a pattern that backtracks too far) or
  panics on has no IDs: `CannotEncode`. A panic of the library is no ``Exception``.
- The library keeps its own thread pool. A process that forks after a batch was encoded loses it in the child; TokTier
  never forks (workers are spawned).

Getting IDs out of an ``Encoding`` costs one Python list; ``array("I", ids)`` over it is the cheapest copy (per 40,000
IDs: list 0.9 ms, ``array`` 1.8 ms, ``np.fromiter`` 2.7 ms, ``np.array`` 3.3 ms in all). It is under 2 % of the encode.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import tokenizers

from toktier.errors import CannotEncode, InvalidText, is_failure
from toktier.ids import EMPTY, Ids

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_GROUP = 262_144
"""Characters of texts that the library gets at a time: an ``Encoding`` takes some hundred bytes per token, with a
string of its own for each, and a heap that holds millions of them slows down every allocation (`docs/log.md`)."""


class ReferenceEngine:
    """T by its definition. Thread-safe; the GIL is released but for the copy of the IDs."""

    name = "tokenizers"
    version: str = tokenizers.__version__

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self._forget = _memoryless(tokenizer.model)

    def encode(self, text: str) -> Ids:
        """T(text), shape ``(n,)``. Raises `InvalidText` on a lone surrogate, and `CannotEncode`."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """T of each text, one after the other, and their counts. The texts are encoded on all cores.

        Raises as `encode` does.
        """
        rows: list[Ids] = []
        try:
            for group in _groups(texts):
                rows += map(_ids, self._batch(group))
        finally:
            self._forget()
        counts = np.fromiter(map(len, rows), np.int64, len(rows))
        return (rows[0] if len(rows) == 1 else np.concatenate([EMPTY, *rows])), counts

    def decode(self, ids: Ids) -> str:
        """The text of ``ids``, shape ``(n,)``, special tokens included. Unknown IDs are left out."""
        return self.tokenizer.decode(ids.tolist(), skip_special_tokens=False)

    def with_offsets(self, text: str) -> Encoding:
        """T(text) with the characters of each ID (``offsets``) and the number of its piece (``word_ids``).

        Some three times the work of `encode`, and raises as it does. A post-processor may trim blanks off the offsets.
        """
        try:
            return self.tokenizer.encode_batch([text], add_special_tokens=False)[0]
        except BaseException as error:
            raise self._given_up(error) from error

    def pieces(self, text: str) -> list[str]:
        """What the normalizer and the pre-tokenizer make of a text in which no literal is looked for.

        Raises as `encode` does.
        """
        check_text([text])
        normalizer, pre_tokenizer = self.tokenizer.normalizer, self.tokenizer.pre_tokenizer
        try:
            text = normalizer.normalize_str(text) if normalizer else text
            return [piece for piece, _ in pre_tokenizer.pre_tokenize_str(text)] if pre_tokenizer else [text]
        except BaseException as error:
            raise self._given_up(error) from error

    def _batch(self, texts: list[str]) -> list[Encoding]:
        try:
            return self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except TypeError:
            check_text(texts)
            raise
        except BaseException as error:
            raise self._given_up(error) from error

    def _given_up(self, error: BaseException) -> CannotEncode:
        """For what the library raised. Raises ``error`` itself where it is none of the library's, an interrupt say."""
        if not is_failure(error):
            raise error
        return CannotEncode(f"{self.name} {self.version}", type(error).__name__)


def _memoryless(model: Any) -> Callable[[], None]:
    """Makes ``model`` remember no words; what is returned is to be called after each use, for what that does not reach.

    BPE is told to remember none: told to forget them it only stops looking at them, and every thread of the library
    keeps them until it ends (0.23.3). Unigram never goes without, but does forget. Other models remember nothing.
    """
    if isinstance(model, tokenizers.models.BPE):
        model._resize_cache(0)
        return lambda: None
    forget: Callable[[], None] = getattr(model, "_clear_cache", lambda: None)
    return forget


def _groups(texts: Sequence[str]) -> Iterator[list[str]]:
    """``texts`` in order, in groups of about `_GROUP` characters."""
    group: list[str] = []
    held = 0
    for text in texts:
        group.append(text)
        held += len(text)
        if held >= _GROUP:
            yield group
            group, held = [], 0
    if group:
        yield group


def check_text(texts: Sequence[str]) -> None:
    """Raises `InvalidText` at the first lone surrogate of the first text that has one; the offset is in that text."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidText(error.start) from None


def _ids(encoding: Encoding) -> Ids:
    return np.frombuffer(array("I", encoding.ids), np.uint32)
