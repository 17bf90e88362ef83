"""One kept conversation, and what a request is given of it: the parts of `toktier.sessions` that hold state."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

from toktier.digests import Digests
from toktier.fingerprint import Fingerprint, Group
from toktier.known import Source
from toktier.memory import Memory
from toktier.reasons import Path
from toktier.rope import Rope


class SessionBusy(Exception):
    """Another request works on the session, and the caller does not want to wait."""


class Session:
    """One kept conversation. Owned by `SessionStore`; see invariants 3 and 4."""

    __slots__ = (
        "alive", "broken", "chain", "group", "hint", "id", "lock", "marks", "memory", "messages", "nbytes", "pins",
        "rope", "tools", "used",
    )  # fmt: skip

    def __init__(self, group: Group, rope: Rope, memory: Memory | None = None) -> None:
        self.id = secrets.token_hex(8)
        self.group = group
        self.rope = rope
        self.memory = memory or Memory()
        self.lock = Lock()
        self.chain = Digests()
        self.messages = Digests()
        self.marks = bytearray()
        self.tools: tuple[bytes, ...] = ()
        self.hint: bytes | None = None
        self.used = 0.0
        self.nbytes = 0
        self.pins = 0
        self.alive = False
        self.broken = False


@dataclass(slots=True)
class Lease:
    """A rope for one request. Set the new text, then `commit`; without that the store learns nothing."""

    rope: Rope
    session: str
    """Names the session that will hold the text after `commit`."""
    shared: int
    """Leading messages that the request and the session that it continues have in common."""
    previous: int | None
    """Messages of that session, None where there is none."""
    previous_chars: int
    previous_tools: tuple[bytes, ...]
    marks: bytes
    """What `commit` was told about each of the shared messages."""
    memory: Memory
    """What is kept beside the rope, the caller's as the rope is."""
    _fingerprint: Fingerprint
    _commit: Callable[[bytes, Source | None], None] = field(repr=False)

    @property
    def tools_changed(self) -> bool:
        """Whether the tools differ from those of the session that is continued."""
        return self.previous is not None and self.previous_tools != self._fingerprint.tools

    def paths(self) -> tuple[Path, ...]:
        """What `path` may say when the text is known."""
        size = len(self._fingerprint.messages)
        if self.previous is None:
            return (Path.INIT,)
        if not self.tools_changed and self.shared == self.previous:
            return (Path.RETRY if size == self.previous else Path.APPEND,)
        return (Path.EDIT, Path.COMPACTION) if size < self.previous else (Path.EDIT,)

    def path(self, chars: int) -> Path:
        """What the request is, now that its text is known to have ``chars`` characters.

        An append has all messages of the session first, then more, and the same tools; a retry has the same messages
        and tools; a compaction is neither, and has less than half of the messages, or fewer messages and less than
        half of the text; all else is an edit.
        (A new conversation that begins like a longer one cannot be told from a compaction.)
        """
        possible = self.paths()
        if len(possible) == 1:
            return possible[0]
        assert self.previous is not None
        halved = 2 * len(self._fingerprint.messages) < self.previous or 2 * chars < self.previous_chars
        return Path.COMPACTION if halved else Path.EDIT

    def commit(self, marks: bytes, source: Source | None = None) -> None:
        """Keep the rope's text as that of the request's messages; ``marks`` is one byte for each of them.

        ``source``: the request's, to be found by its keys from now on.
        """
        self._commit(marks, source)
