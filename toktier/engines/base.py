"""What every encoding engine offers.

T(x) below is the reference function of `docs/proof.md`: added tokens extracted, normalizer, pre-tokenizer and model
applied, no post-processor (``add_special_tokens=False``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from toktier.ids import Ids


class Engine(Protocol):
    """An implementation of T. Thread-safe; releases the GIL while it works."""

    name: str
    version: str

    def encode(self, text: str) -> Ids:
        """T(text), shape ``(n,)``. Raises `InvalidText` on a lone surrogate."""
        ...

    def encode_batch(self, texts: Sequence[str]) -> tuple[Ids, npt.NDArray[np.int64]]:
        """T of each text, one after the other, and their counts: shapes ``(sum,)`` and ``(len(texts),)``."""
        ...


class Reference(Engine, Protocol):
    """The engine whose answers are T by definition: `tokenizers` for a ``tokenizer.json``, tiktoken for a rank file."""

    def decode(self, ids: Ids) -> str:
        """The text of ``ids``, shape ``(n,)``, special tokens included. Unknown IDs are left out."""
        ...

    def pieces(self, text: str) -> list[str]:
        """What the model is given, piece by piece, for a text in which no literal is looked for."""
        ...
