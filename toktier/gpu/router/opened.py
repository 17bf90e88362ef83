"""A device while it is open: the tokenizers that were checked on it, and one launch. Of `toktier.gpu.router.worker`'s
thread alone."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np

from toktier.gpu.router.devices import Failed, OpenDevice, SegmentEncoder
from toktier.gpu.router.jobs import Job, Tokenizer
from toktier.gpu.router.scratch import copied
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids
from toktier.reasons import Gpu

MISCOUNTED = "the device told of other segments than it was given"


class Served(NamedTuple):
    """A tokenizer that was checked."""

    tokenizer: Tokenizer
    encoder: SegmentEncoder


@dataclass
class Opened:
    """Of the thread, while it is open."""

    opened: OpenDevice
    room: int
    """Bytes of a launch, at most."""
    served: dict[str, Served] = field(default_factory=dict)


def checked(device: Opened, tokenizer: Tokenizer) -> Failed | None:
    """Makes an encoder and checks it: it is served, or what was found."""
    encoder = None
    try:
        encoder = device.opened.encoder(tokenizer.tables, device.room)
        tokenizer.accept(encoder.encode_view)
    except BaseException as error:
        failed = device.opened.failure(error)
        if encoder is not None:
            with contextlib.suppress(Exception):
                encoder.close()
        return failed
    device.served[tokenizer.key] = Served(tokenizer, encoder)
    return None


def encoded(encoder: SegmentEncoder, batch: list[Job]) -> list[Ids]:
    """Each job's part of one launch, in rows of `toktier.gpu.router.scratch`."""
    if len(batch) == 1:
        return [copied(encoder.encode_view(cast(Any, batch[0].raw)))]
    ids = encoder.encode_view(bytes([BREAK_BYTE]).join(cast(Any, [job.raw for job in batch])))
    breaks = np.flatnonzero(ids == BREAK_ID)
    last = np.cumsum([job.count for job in batch]) - 1  # the break behind each job
    if len(breaks) != last[-1]:
        raise Failed(Gpu.INTERNAL_ERROR, MISCOUNTED)
    edges = [-1, *breaks[last[:-1]].tolist(), len(ids)]
    return [copied(ids[a + 1 : b]) for a, b in pairwise(edges)]
