"""What goes into a shadow check and what comes out of it: plain data, nothing that holds on to the fast path.

Invariants:
 - Every `Job` that is submitted to a `toktier.shadow.pool.Pool` ends exactly once: in a `Verdict`, or in a `Drop`.
 - `Setup` names files and settings only. Whoever has one can build the reference without the process that made it.
 - A `Job` holds the text of a request; a `Verdict`, a `NotComparable` and a `WorkerEvent` hold none.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from toktier.profiles.base import ProfileSettings
from toktier.reasons import FullEncode, Path

if TYPE_CHECKING:
    from toktier.tier import ModelTier


class Sampled(StrEnum):
    """Why a request is checked."""

    RATE = "rate"
    """Drawn by chance."""
    FIRST = "first"
    """One of the first of its shape."""
    CHANGE = "change"
    """An edit or a compaction."""
    USAGE = "usage"
    """The engine counted other prompt tokens than were sent."""


class Drop(StrEnum):
    """Why a job ended without a verdict."""

    QUEUE_FULL = "queue_full"
    TOO_LARGE = "too_large"
    WORKER_DIED = "worker_died"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    FILES_CHANGED = "files_changed"
    """The files on disk are no longer those that the model was loaded from, or cannot be read."""
    CANNOT_ENCODE = "cannot_encode"
    """The reference gives up on the whole text. Its parts may have IDs all the same."""
    TEMPLATE_ERROR = "template_error"
    """The worker's own render of the request failed."""
    INTERNAL_ERROR = "internal_error"


class Kind(StrEnum):
    """What differs, the earliest of it."""

    TEXT = "text"
    """The rendered text, and so most likely the IDs."""
    IDS = "ids"
    """The IDs of the same text."""
    DIGEST = "digest"
    """Text and IDs are right, but the request was prepared with another tokenizer or template than its model's."""


@dataclass(frozen=True, slots=True)
class Setup:
    """What a worker loads to check a model's requests, and what the model was loaded with."""

    source: str
    """As `toktier.files.read` takes it; for a hub id the snapshot must be in the cache, nothing is fetched."""
    revision: str | None
    sidecar: str | None
    chat_template: str | None
    """Path of the operator's own template, None for the model's."""
    profile: str
    """``vllm`` or ``sglang``."""
    settings: ProfileSettings
    tokenizer_digest: str
    """Of the files when the model was loaded: other files on disk mean `Drop.FILES_CHANGED`."""
    template_digest: str


def setup_of(tier: ModelTier, *, chat_template: str | None = None, sidecar: str | None = None) -> Setup:
    """That of a loaded tier. ``chat_template`` and ``sidecar``: the paths that it was loaded with, None without."""
    return Setup(
        source=tier.tokenizer.source,
        revision=tier.tokenizer.revision,
        sidecar=sidecar,
        chat_template=chat_template,
        profile=tier.profile.name,
        settings=tier.settings,
        tokenizer_digest=tier.tokenizer.digest,
        template_digest=tier.template.digest,
    )


@dataclass(frozen=True, slots=True)
class Job:
    """One request as the fast path answered it."""

    request_id: str
    model: str
    setup: Setup
    body: bytes = field(repr=False)
    """The client's body, decoded."""
    text: str = field(repr=False)
    """As the fast path rendered it."""
    ids: bytes = field(repr=False)
    """As they were sent: uint32, little endian."""
    path: Path
    full: FullEncode | None
    session: str
    sampled: Sampled
    tokenizer_digest: str
    """Of what prepared this request; differs from the setup's only where something is wrong."""
    template_digest: str
    versions: Mapping[str, str]
    prepared_at: float
    """`time.monotonic` when the IDs were ready. The worker's template is shown this moment as the time."""

    @property
    def nbytes(self) -> int:
        """What it holds, in bytes."""
        return len(self.body) + sys.getsizeof(self.text) + len(self.ids)


@dataclass(frozen=True, slots=True)
class Piece:
    """A piece (pre-token or literal) of the reference's text; ``start`` and ``chars`` count characters."""

    index: int
    start: int
    chars: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a comparison found. ``reference_*`` is what the worker came to, the others are what was sent.

    Digests are of `toktier.shadow.check.digest_of_text` and `digest_of_ids`.
    """

    kind: Kind | None
    """None where all is equal."""
    chars: int
    reference_chars: int
    tokens: int
    reference_tokens: int | None
    """None where the texts differ and the reference gives up on its own; so are its digest and ``first_id``."""
    text_digest: str
    reference_text_digest: str
    ids_digest: str
    reference_ids_digest: str | None
    first_id: int | None
    """Index of the first ID that differs; the shorter length where one list begins the other, None where none does."""
    first_char: int | None
    """Character of the reference's text at which the texts part, or else at which the first differing ID begins."""
    piece: Piece | None
    """That which holds ``first_char``; None where nothing differs, or that could not be found out."""
    stages: Mapping[str, int]
    """Microseconds for ``load``, ``normalise``, ``render``, ``encode``, ``compare``."""

    @property
    def equal(self) -> bool:
        return self.kind is None


@dataclass(frozen=True, slots=True)
class NotComparable:
    """The worker came to no verdict. ``detail`` is in our words and holds no text of the request."""

    reason: Drop
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Timing:
    """Microseconds of one job."""

    queue_us: int
    """From `Pool.submit` until a worker had it."""
    check_us: int
    """From then to the verdict."""
    delay_us: int
    """From `Job.prepared_at` to the verdict."""


class WorkerState(StrEnum):
    STARTED = "started"
    DIED = "died"
    """On its own, or killed by somebody else."""
    KILLED = "killed"
    """By the pool: it did not answer in time."""
    STOPPED = "stopped"
    """By `Pool.close`."""


@dataclass(frozen=True, slots=True)
class WorkerEvent:
    """``exit_code``: as `subprocess.Popen.returncode`; None for `WorkerState.STARTED`."""

    state: WorkerState
    pid: int
    exit_code: int | None
