"""A request as its IDs went upstream: what is known of it while the engine answers, so that its answer can be judged.

Invariant: text and IDs of requests under way hold at most `Room.nbytes` bytes here, whatever the limits on bodies are.
A request beyond that is judged all the same; only where a difference stands cannot be found out then, and the
upstream's ``/tokenize`` is not asked about it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock

from toktier.ids import Ids
from toktier.reasons import FullEncode, Path
from toktier.shadow.job import Setup


class Held:
    """What takes room of a `Room`, and gives it back itself when nobody has it any more."""

    __slots__ = ("_room", "nbytes")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        """About what it holds."""
        self._room: Room | None = None

    def __del__(self) -> None:
        if self._room is not None:
            self._room.left(self.nbytes)


class Content(Held):
    """Text of a request: the body as the client sent it, what was rendered, and the IDs."""

    __slots__ = ("body", "ids", "texts")

    def __init__(self, body: bytes, texts: Sequence[str], ids: Ids, text_bytes: int | None = None) -> None:
        """``texts``: the text in pieces; ``text_bytes``: what these hold, where that is known."""
        self.body, self.texts, self.ids = body, texts, ids
        if text_bytes is None:
            text_bytes = sum(map(sys.getsizeof, texts))
        super().__init__(len(body) + text_bytes + ids.nbytes)

    @property
    def text(self) -> str:
        """The text, joined."""
        return "".join(self.texts)

    def ids_bytes(self) -> bytes:
        """The IDs as uint32, little endian; a copy."""
        return self.ids.astype("<u4", copy=False).tobytes()


class Question(Held):
    """What the upstream's ``/tokenize`` is to be asked, and what it should answer."""

    __slots__ = ("body", "ids")

    def __init__(self, body: bytes, ids: Ids) -> None:
        self.body, self.ids = body, ids
        super().__init__(len(body) + ids.nbytes)


class Room:
    """Memory for what is held of requests under way. Thread-safe."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self._lock = RLock()  # `Held.__del__` may run anywhere, in `takes` too

    def keep(self, body: bytes, texts: Sequence[str], ids: Ids, text_bytes: int | None = None) -> Content | None:
        """The content, if there is room for it. The arguments are `Content`'s."""
        content = Content(body, texts, ids, text_bytes)
        return content if self.takes(content) else None

    def takes(self, held: Held) -> bool:
        """Whether there is room for it; then it is taken until ``held`` is gone. At most once for each."""
        with self._lock:
            if self.used + held.nbytes > self.nbytes:
                return False
            self.used += held.nbytes
        held._room = self
        return True

    def left(self, nbytes: int) -> None:
        """So much is free again."""
        with self._lock:
            self.used -= nbytes


@dataclass(frozen=True, slots=True)
class Sent:
    """``setup`` is None where no worker can load the model (another tier): no process then checks it."""

    request_id: str
    model: str
    upstream: str
    path: Path
    full: FullEncode | None
    session: str
    chars: int
    tokens: int
    trust_digest: str
    """Of the files of the model's tokenizer, whatever prepared the request: what a quarantine is looked up by."""
    tokenizer_digest: str
    """Of what prepared it."""
    template_digest: str
    versions: Mapping[str, str]
    """Of the encoding engines, by name."""
    certificate: str | None
    """Digest of the tokenizer's certificate."""
    setup: Setup | None = field(repr=False)
    content: Content | None = field(repr=False)
    question: Question | None = field(repr=False)
    """Set where the request was drawn for a comparison with the upstream's ``/tokenize``."""
    by_gpu: bool = False
    """Whether some of the IDs may come from a GPU."""
    at: float = field(default_factory=time.monotonic)
    """`time.monotonic` when the IDs were ready."""

    def age_us(self) -> int:
        """Microseconds since the IDs were ready."""
        return int((time.monotonic() - self.at) * 1e6)
