"""Which tokenizers a device is to serve: those that are wanted, but for those that it does not take.

Invariant: a verdict is of one `Tokenizer` object. Another one under the same key is another tokenizer, of which nothing
is known yet. All of it belongs to the worker's lock, but for `Wanted.verdict`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from toktier.gpu.router.devices import Failed
from toktier.gpu.router.jobs import LAST_RETRY_S, Tokenizer
from toktier.reasons import Gpu

FOR_GOOD = frozenset({Gpu.SELF_CHECK, Gpu.SLOWER, Gpu.KERNEL_FAULT})
"""What a check finds again however often it is made."""
FOR_NOW = frozenset({Gpu.OUT_OF_MEMORY, Gpu.INTERNAL_ERROR})
"""What one tokenizer may fail with while others work, and may get over: it is tried again."""


@dataclass(frozen=True)
class _Verdict:
    failed: Failed
    until: float
    """`time.monotonic` of the next trial."""
    wait_s: float


class Wanted:
    """Of one device."""

    def __init__(self, first_retry_s: float) -> None:
        self._first_retry_s = first_retry_s
        self._tokenizers: dict[str, Tokenizer] = {}
        self._verdicts: dict[str, _Verdict] = {}

    def add(self, tokenizer: Tokenizer) -> None:
        """From now on; what was wanted under its key is not."""
        self.remove(tokenizer.key)
        self._tokenizers[tokenizer.key] = tokenizer

    def remove(self, key: str) -> None:
        self._tokenizers.pop(key, None)
        self._verdicts.pop(key, None)

    def has(self, tokenizer: Tokenizer) -> bool:
        """Whether this very one is wanted."""
        return self._tokenizers.get(tokenizer.key) is tokenizer

    def due(self) -> dict[str, Tokenizer]:
        """Those that are to be served, or checked, at present."""
        now = time.monotonic()
        refused = {key for key, verdict in self._verdicts.items() if verdict.until > now}
        return {key: one for key, one in self._tokenizers.items() if key not in refused}

    def due_in(self) -> float | None:
        """Seconds after which one is to be tried again; None where none is."""
        ends = [verdict.until for verdict in self._verdicts.values() if verdict.failed.reason in FOR_NOW]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def refuse(self, tokenizer: Tokenizer, failed: Failed) -> float | None:
        """Not this one: for good, or for so many seconds, which double each time."""
        if not self.has(tokenizer):
            return None
        before = self._verdicts.get(tokenizer.key)
        wait_s = self._first_retry_s if before is None else min(LAST_RETRY_S, 2 * before.wait_s)
        retry_s = wait_s if failed.reason in FOR_NOW else None
        until = float("inf") if retry_s is None else time.monotonic() + retry_s
        self._verdicts[tokenizer.key] = _Verdict(failed, until, wait_s)
        return retry_s

    def accept(self, tokenizer: Tokenizer) -> None:
        """It works."""
        if self.has(tokenizer):
            self._verdicts.pop(tokenizer.key, None)

    def verdict(self, key: str) -> Failed | None:
        """Why it is not served, if that is the tokenizer's own fault. Any thread may ask."""
        verdict = self._verdicts.get(key)
        return None if verdict is None else verdict.failed
