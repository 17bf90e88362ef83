"""What stands beside the GPU's own times: the same texts on this machine's cores, small documents in one launch, other
processes in the way, and the share of IDs that are the reference's.

Accounts:
- ``host to host, batch``: small documents, from a list of ``bytes`` to the IDs and a count for each, in one launch;
- ``host to host, bytes, N processes beside``: one request while N processes keep cores busy;
- ``cores``: the whole text by another library on this machine's cores, text it has seen before, from a ``str``; HF and
  tiktoken use one core for one text.
"""

from __future__ import annotations

import multiprocessing
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from toktier.engines.base import Reference
from toktier.engines.tiktoken_engine import TiktokenEngine
from toktier.gpu.vocabulary import BREAK_BYTE, BREAK_ID
from toktier.ids import Ids
from toktier.reference_of import reference_of
from tools.bench.records import Record, record, unmeasured
from tools.bench.texts import chat, corpus
from tools.kernels.check import read

BATCHES = ((1000, 200), (1000, 1000), (256, 4000))
"""Documents of a launch, and the characters of each."""
COMPETING = 28
START_S = 60.0
"""In which a process that competes is there, or never."""
_SPECIAL = re.compile(r"<\|im_(?:start|end)\|>")


class Encodes(Protocol):
    """As `toktier.gpu.launcher.Encoder`."""

    def encode_view(self, segment: bytes) -> Ids: ...
    def encode_batch(self, segments: Sequence[bytes]) -> tuple[Ids, Any]: ...


@dataclass(frozen=True)
class Similarity:
    """Of the tokens of the reference's, the share that the GPU gives at the same place of the same piece."""

    tokenizer: str
    text: str
    bytes: int
    tokens: int
    share: float


def chat_segments(seed: int, chars: int) -> bytes:
    """A templated chat as the router sends it: a break where a literal was."""
    return _SPECIAL.sub("\ue000", chat(seed, chars)).encode().replace("\ue000".encode(), bytes([BREAK_BYTE]))


def batches(encoder: Encodes, name: str, rounds: int) -> list[Record]:
    found = []
    for documents, chars in BATCHES:
        texts = [corpus(5000 + k, chars).encode() for k in range(documents)]
        times = timed(partial(encoder.encode_batch, texts), rounds)
        case = f"{documents} documents of {chars:,}"
        found.append(record("host to host, batch", case, name, documents * chars, times))
    return found


@contextmanager
def competing(count: int) -> Iterator[None]:
    """``count`` processes that do nothing but be busy."""
    context = multiprocessing.get_context("spawn")
    ends = context.Event()
    ready = context.Semaphore(0)
    others = [context.Process(target=busy, args=(ready, ends), daemon=True) for _ in range(count)]
    for other in others:
        other.start()
    try:
        for _ in others:
            if not ready.acquire(timeout=START_S):
                raise RuntimeError(f"{sum(other.is_alive() for other in others)} of {count} processes have started")
        yield
    finally:
        ends.set()
        for other in others:
            other.join()


def busy(ready: Any, ends: Any) -> None:
    ready.release()
    while not ends.is_set():
        sum(range(100_000))


def crowded(encoder: Encodes, name: str, sizes: Sequence[int], rounds: int, count: int = COMPETING) -> list[Record]:
    """One request at a time while ``count`` processes are busy."""
    with competing(count):
        account = f"host to host, bytes, {count} processes beside"
        found = []
        for size in sizes:
            text = corpus(1000, size).encode()
            times = timed(partial(encoder.encode_view, text), rounds)
            found.append(record(account, "steady", name, size, times))
        return found


def cores(folder: Path, sizes: Sequence[int], rounds: int) -> list[Record]:
    """The libraries that read this tokenizer, each with each size; the row's engine is ``TOKENIZER, LIBRARY``."""
    found = []
    for library, encode in libraries(folder).items():
        for size in sizes:
            if isinstance(encode, str):
                found.append(unmeasured("cores", "steady", f"{folder.name}, {library}", size, encode))
                continue
            times = timed(partial(encode, corpus(1000, size)), max(3, min(rounds, 20_000_000 // size)), 1)
            found.append(record("cores", "steady", f"{folder.name}, {library}", size, times))
    return found


def libraries(folder: Path) -> dict[str, Callable[[str], Any] | str]:
    """What encodes a text by each library, or why it does not take this tokenizer."""
    files = read(folder)
    reference = reference_of(files)[0]
    if isinstance(reference, TiktokenEngine):
        return {"tiktoken": reference.encode}
    import fastokens
    from tokenizers import Tokenizer

    known = Tokenizer.from_str(files.tokenizer.decode())
    found: dict[str, Callable[[str], Any] | str] = {
        "HF tokenizers": lambda text: known.encode_batch_fast([text], add_special_tokens=False)
    }
    try:
        fast = fastokens.Tokenizer.from_json_str(files.tokenizer.decode())
        found["fastokens"] = lambda text: fast.encode_batch_flat([text])
    except ValueError as error:
        found["fastokens"] = f"fastokens refuses it: {error}"
    return found


def similarity(encoder: Encodes, reference: Reference, name: str, text: str, rows: bytes) -> Similarity:
    """Of pieces with `BREAK_BYTE` between them."""
    got = np.split(found := encoder.encode_view(rows).copy(), np.flatnonzero(found == BREAK_ID))
    want = [reference.encode(row.decode()) for row in rows.split(bytes([BREAK_BYTE]))]
    same = total = 0
    for k, ids in enumerate(want):
        own = got[k][k > 0 :] if k < len(got) else got[-1][:0]  # behind the first its break comes before it
        both = min(len(own), len(ids))
        same += int(np.count_nonzero(own[:both] == ids[:both]))
        total += max(len(ids), len(own))
    return Similarity(name, text, len(rows), total, round(same / total, 6))


def timed(call: Callable[[], object], rounds: int, warm: int = 5) -> list[int]:
    """Nanoseconds of each call."""
    for _ in range(warm):
        call()
    found = []
    for _ in range(rounds):
        started = time.perf_counter_ns()
        call()
        found.append(time.perf_counter_ns() - started)
    return found
