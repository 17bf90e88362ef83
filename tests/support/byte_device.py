"""A device whose IDs are the bytes of a segment, and a router over it: for tests of what goes on around devices."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pytest

from toktier.gpu.router.cuda import failure_of
from toktier.gpu.router.devices import Failed
from toktier.gpu.router.jobs import Encode, Limits, Tokenizer
from toktier.gpu.router.literals import Finder
from toktier.gpu.router.router import Router
from toktier.gpu.router.segments import Segmenter, Segments
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids
from toktier.reasons import Gpu
from tools.kernels.faults import Script, hangs

KEY = "bytes"
SEGMENTER = Segmenter(Finder({}), Finder({}), None)


class ByteDevice:
    """See `toktier.gpu.router.devices.OpenDevice`; it is its own encoder."""

    name = "bytes"

    def encoder(self, _tables: object, _room: int) -> ByteDevice:
        return self

    def encode_view(self, segment: bytes) -> Ids:
        ids = np.frombuffer(bytes(segment), np.uint8).astype(np.uint32)
        ids[ids == BREAK_BYTE] = BREAK_ID
        return ids

    def failure(self, error: BaseException) -> Failed:
        return failure_of(error)

    def close(self) -> None:
        pass


def accepts(_encode: Encode) -> None:
    """Nothing is found wrong."""


@contextmanager
def routing(
    devices: int = 1, accept: Callable[[Encode], None] = accepts, *, wait: bool = True, **limits: Any
) -> Iterator[tuple[Router, list[Script]]]:
    """A router that serves `KEY`, and a script for each device."""
    scripts = [Script(lambda _: ByteDevice()) for _ in range(devices)]
    settled = Limits(**{"timeout_s": 10.0, "first_retry_s": 0.01, **limits})
    router = Router(lambda number: scripts[number](number), range(devices), settled)
    try:
        router.add(Tokenizer(KEY, cast(Any, None), accept))
        if wait:
            until(lambda: all(KEY in worker.serves for worker in router.workers))
        yield router, scripts
    finally:
        router.close()


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Waits for it."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.002)


def segments(*pieces: str) -> Segments:
    return SEGMENTER.segments(pieces)


def encoded(router: Router, *pieces: str) -> list[bytes]:
    """The pieces, as they come back."""
    made = segments(*pieces)
    ids, counts = made.assembled(router.encode(KEY, made))
    return [row.astype(np.uint8).tobytes() for row in np.split(ids, np.cumsum(counts)[:-1])]


def reason(call: Callable[[], object]) -> Gpu:
    """Why there is no answer."""
    with pytest.raises(Failed) as failed:
        call()
    return failed.value.reason


class Held:
    """A device that is busy with one request until it is told to go on."""

    def __init__(self, router: Router, script: Script, pool: ThreadPoolExecutor) -> None:
        self.go = threading.Event()
        script.calls.append(hangs(self.go))
        self.first = pool.submit(encoded, router, "first")
        until(lambda: not script.calls)

    def queue(self, router: Router, pool: ThreadPoolExecutor, texts: list[str]) -> list[Future[list[bytes]]]:
        """These wait behind it, all of them."""
        worker = router.workers[0]
        asked = [pool.submit(encoded, router, text) for text in texts]
        until(lambda: len(worker._queue) == len(texts))
        return asked
