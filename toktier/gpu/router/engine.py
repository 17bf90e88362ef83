"""What a `toktier.chunks.ChunkEncoder` asks before it encodes: whether a GPU has the IDs of some chunks.

A tokenizer is made ready in a thread of its own (tables, literals, texts to check with), then checked by each device's
thread, and only then served. The first device also measures from which size on it is faster than the CPU path of the
same encoder; below that size nothing but a comparison of two numbers is done.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import structlog

from toktier import files as sources
from toktier.campaign import corpus
from toktier.certificate.samples import TextSource
from toktier.chunks import ChunkEncoder
from toktier.errors import CannotEncode, Refusal, UnusableFile, is_failure
from toktier.gpu.router.devices import Failed
from toktier.gpu.router.jobs import Encode, Tokenizer
from toktier.gpu.router.pace import Pace
from toktier.gpu.router.router import Router
from toktier.gpu.router.scratch import copied, give
from toktier.gpu.router.segments import Segmenter, segmenter_of
from toktier.gpu.tables import tables_of
from toktier.ids import Ids
from toktier.reasons import Gpu
from toktier.tokenizer import FrozenTokenizer

CHECKS = 240
"""Texts that each device is checked with."""
_PER_CHECK = 40
SIZES = tuple(1 << k for k in range(10, 19))
"""Characters of the texts that are measured: 1 K to 256 K."""
ROUNDS = 3

_log = structlog.get_logger("toktier.gpu")


@dataclass
class Shared:
    """One tokenizer, for all models that have it. Attributes are replaced whole."""

    key: str
    segmenter: Segmenter | None = None
    refused: Gpu | None = None
    from_chars: int | None = None
    """Texts below are not worth it; None while that is not known."""
    pace: Pace | None = None
    """Where the size was measured; where it was given, long texts always go to the GPU."""
    lock: threading.Lock = field(default_factory=threading.Lock)


@dataclass(frozen=True)
class GpuEngine:
    """The GPU path of one tokenizer. Thread-safe.

    ``allowed``: whether its IDs are trusted (`toktier.quarantine`).
    """

    router: Router
    shared: Shared
    allowed: Callable[[], bool]

    @property
    def from_chars(self) -> int | None:
        """Characters from which on a text is worth it; None while that is not known."""
        return self.shared.from_chars

    @property
    def standing(self) -> Gpu:
        """What a long text would meet now: `Gpu.USED`, or why not."""
        shared = self.shared
        if shared.refused is not None:
            return shared.refused
        why = self.router.refuses(shared.key)
        if why is None and not self.allowed():
            return Gpu.QUARANTINED
        return why or (Gpu.LOADING if shared.from_chars is None else Gpu.USED)

    def encode(self, pieces: Sequence[str]) -> tuple[Ids, list[int]] | Gpu:
        """The IDs of each chunk, one after the other, and their counts; or why there are none.

        Never raises but for a lone surrogate (`UnicodeEncodeError`).
        """
        chars = sum(map(len, pieces))
        outcome = Gpu.INTERNAL_ERROR
        started = time.perf_counter_ns()
        try:
            made = self._encode(pieces, chars)
            outcome = Gpu.USED
            if self.shared.pace is not None:
                self.shared.pace.took(True, chars, time.perf_counter_ns() - started)
            return made
        except Failed as failed:
            outcome = failed.reason
        except UnicodeEncodeError:
            raise
        except BaseException as error:
            if not is_failure(error):
                raise
            _log.exception("gpu_failed", device=None)
        finally:
            self.router.count(outcome, chars)
        return outcome

    def cpu_took(self, why: Gpu, chars: int, ns: int) -> None:
        """What it said ``why`` to was encoded by the CPU, in so many nanoseconds."""
        if self.shared.pace is not None and why is Gpu.SLOWER:
            self.shared.pace.took(False, chars, ns)

    def _encode(self, pieces: Sequence[str], chars: int) -> tuple[Ids, list[int]]:
        shared, router = self.shared, self.router
        least, segmenter = shared.from_chars, shared.segmenter
        if least is not None and chars < max(least, 1):
            raise Failed(Gpu.SMALL)
        if (standing := self.standing) is not Gpu.USED or segmenter is None:
            raise Failed(standing)
        if shared.pace is not None and not shared.pace.gpu_next():
            raise Failed(Gpu.SLOWER)
        with router.coming():
            segments = segmenter.segments(pieces)
        told = router.encode(shared.key, segments)
        made = segments.assembled(told)
        give(told, segments.buffer)
        return made


class Engines:
    """Makes the GPU path of tokenizers. Thread-safe."""

    def __init__(self, router: Router, *, from_chars: int = 0) -> None:
        """``from_chars``: characters of a text that is worth it; 0: measured."""
        self.router = router
        self._from_chars = from_chars
        self._lock = threading.Lock()
        self._shared: weakref.WeakValueDictionary[str, Shared] = weakref.WeakValueDictionary()

    def engine(
        self,
        tokenizer: FrozenTokenizer,
        read: sources.TokenizerFiles,
        allowed: Callable[[], bool],
        cache_dir: Path | None,
    ) -> GpuEngine:
        """That of a tokenizer with a certificate; ``read``: its files. What is to be made for it is made beside."""
        with self._lock:
            shared = self._shared.get(tokenizer.digest)
            if shared is None:
                shared = self._shared[tokenizer.digest] = Shared(tokenizer.digest)
                weakref.finalize(shared, self.router.remove, tokenizer.digest).atexit = False
                threading.Thread(
                    target=self._prepare,
                    args=(weakref.ref(shared), tokenizer, read, cache_dir),
                    name="toktier-gpu-tables",
                    daemon=True,
                ).start()
        return GpuEngine(self.router, shared, allowed)

    def _prepare(
        self,
        held: weakref.ref[Shared],
        tokenizer: FrozenTokenizer,
        read: sources.TokenizerFiles,
        cache_dir: Path | None,
    ) -> None:
        started = time.perf_counter()
        try:
            tables = tables_of(read, cache_dir=cache_dir)
            segmenter = segmenter_of(tokenizer.spec, tokenizer.reference, cache_dir)
            trial = Trial.of(tokenizer, segmenter)
        except BaseException as error:
            if not is_failure(error):
                raise
            known = isinstance(error, Refusal | UnusableFile)
            if not known:
                _log.exception("gpu_failed", device=None)
            reason = Gpu.REFUSED if known else Gpu.INTERNAL_ERROR
            if (shared := held()) is not None:
                shared.refused = reason
            detail = str(error) if known else type(error).__name__
            _log.info("gpu_tokenizer_refused", device=None, digest=tokenizer.digest, reason=reason.value, detail=detail)
            return

        def accept(encode: Encode) -> None:
            trial.check(encode)
            if (own := held()) is None:
                return
            with own.lock:
                if own.from_chars is None:
                    own.pace = None if self._from_chars else Pace()
                    own.from_chars = self._from_chars or trial.from_chars(encode)
                    _log.info(
                        "gpu_tokenizer",
                        digest=tokenizer.digest,
                        source=tokenizer.source,
                        from_chars=own.from_chars,
                        seconds=round(time.perf_counter() - started, 2),
                    )

        if (shared := held()) is not None:
            shared.segmenter = segmenter
            self.router.add(Tokenizer(tokenizer.digest, tables, accept))


@dataclass(frozen=True)
class Trial:
    """Texts with the reference's IDs, and text to measure with."""

    segmenter: Segmenter
    cpu: ChunkEncoder
    texts: Sequence[str]
    ids: Sequence[Ids]
    sample: str

    @classmethod
    def of(cls, tokenizer: FrozenTokenizer, segmenter: Segmenter) -> Trial:
        """Hostile texts of the classes of the tokenizer's certificate, which it must have, with its literals; and prose
        and code that come with the package."""
        assert tokenizer.certificate is not None
        literals = [token["content"] for token in tokenizer.spec.get("added_tokens") or () if token.get("content")]
        source = TextSource(tokenizer.certificate.table.classes, literals, seed=tokenizer.digest)
        real = corpus.built_in()
        texts: list[str] = []
        ids: list[Ids] = []
        for k in range(CHECKS):
            text = source.text(source.rng.choice((3, 24, 24, 100)))
            if k % 8 == 0:
                whole = source.rng.choice(real)
                at = source.rng.randrange(max(1, len(whole) - 2000))
                text += whole[at : at + 2000]
            try:
                ids.append(tokenizer.reference.encode(text))
                texts.append(text)
            except CannotEncode:
                continue
        sample = "".join(real)
        sample *= -(-SIZES[-1] * (ROUNDS + 1) // max(1, len(sample)))
        return cls(segmenter, tokenizer.encoder, texts, ids, sample)

    def check(self, encode: Encode) -> None:
        """Raises `Failed` where a device gives other IDs, or other counts, than the reference."""
        for start in range(0, len(self.texts), _PER_CHECK):
            texts, want = self.texts[start : start + _PER_CHECK], self.ids[start : start + _PER_CHECK]
            ids, counts = self._device(encode, texts)
            if counts != list(map(len, want)) or not np.array_equal(ids, np.concatenate(want)):
                raise Failed(Gpu.SELF_CHECK)

    def from_chars(self, encode: Encode) -> int:
        """The size of `SIZES` from which on the device was faster each time. Raises `Failed` where there is none."""
        least = None
        for size in reversed(SIZES):
            texts = [self.sample[k * size : (k + 1) * size] for k in range(ROUNDS + 1)]
            cut = [self.cpu.pieces(text, True) for text in texts]
            self._device(encode, cut[0])  # buffers
            device = min(_time(lambda pieces: self._device(encode, pieces), cut[1:]))
            cpu = min(_time(self.cpu.encode, cut[1:]))
            if device >= cpu:
                break
            least = size
        if least is None:
            raise Failed(Gpu.SLOWER)
        return least

    def _device(self, encode: Encode, pieces: Sequence[str]) -> tuple[Ids, list[int]]:
        segments = self.segmenter.segments(pieces)
        told = copied(encode(cast(Any, segments.buffer)))
        made = segments.assembled(told)
        give(told, segments.buffer)
        return made


def _time(call: Callable[[Sequence[str]], object], texts: Sequence[Sequence[str]]) -> list[int]:
    found = []
    for text in texts:
        started = time.perf_counter_ns()
        call(text)
        found.append(time.perf_counter_ns() - started)
    return found
