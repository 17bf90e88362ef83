"""Sessions in memory: which kept text a request continues, and how long texts are kept.

Invariants:
 (1) IDs never depend on the choice of a session: the rope compares texts, and a wrong or missing session only costs
     work. So every rule below may be a guess, and state may be dropped at any time.
 (2) Nothing crosses a group (tenant, model, render settings): every look-up goes through digests that begin with it.
 (3) A session is changed in place only by a request that extends it (all its messages, the same tools, then more);
     the same request again changes nothing; any other request works on a copy. So forks, such as a title generator
     or an agent that goes back, do not disturb each other.
 (4) A rope is touched only under its session's lock; what the store knows of a session changes only under that lock
     and the store's. Locks are taken in this order, and the store's is never held while a text is encoded.
 (5) A lease that began before `SessionStore.clear` stores nothing and gets no rope that was there before; nor does one
     of a body that was read beside one from before: what is forgotten because it was wrong does not come back.
 (6) A rope that a change left for any reason but one of its own errors (memory that ran out, say) may be half changed:
     its session goes, and nobody who waits for it gets the rope.
 (7) Nobody waits longer than `HELD_S` for a session: one that is held so long goes, and who waited starts anew.
 (8) Every entry of the indexes belongs to a live session: after the last one is gone, all maps are empty.
 (9) What else a session keeps (`toktier.memory`: its last body, its render, its IDs as text) goes where its rope goes,
     counts as its rope counts, and is touched under the same lock. A body is found by its tenant's keys only.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from toktier.errors import TokTierError
from toktier.fingerprint import Fingerprint, common_prefix
from toktier.known import Source
from toktier.memory import Memory
from toktier.rope import ChunkEncoder, Rope
from toktier.session import Lease, Session, SessionBusy
from toktier.session_index import Index
from toktier.session_search import search

__all__ = ["Lease", "Session", "SessionBusy", "SessionStore"]

MESSAGE_BYTES = 310
"""What the index costs for one message: two digests, a place in the map and the pointers to them."""
SESSION_BYTES = 1700
"""What a session costs whatever it holds: its objects, its lock, its places in the orders."""
TOOL_BYTES = 64
"""What the digest of one tool costs."""
KEY_BYTES = 170
"""What a key of its body costs: the digest, its places in the map and the pointers to it."""
HELD_S = 10.0
"""Longest wait for another request on the same session, in seconds."""
_AT_ONCE = 4
_DROPS = 20_000
"""Messages of the sessions that go while the lock is held once, to make room, each session counted as `_DROP` more:
some four milliseconds."""
_DROP = 16
_ALIKE = 3
"""Bodies that are looked at for each key."""


class SessionStore:
    """All sessions of a process. Thread-safe.

    ``budget_bytes`` bounds what sessions hold, ``tenant_share`` the part of it that one tenant may hold, ``ttl_s`` the
    seconds that an unused one lives. Least recently used ones go first; one that is in use stays until it is not.
    """

    def __init__(
        self,
        budget_bytes: int,
        tenant_share: float = 1.0,
        ttl_s: float = 3600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock = Lock()
        self._clock = clock
        self._epoch = 0
        self._gone: deque[object] = deque()
        self._replaced: deque[object] = deque()
        self._start_empty()
        self.evictions = {"budget": 0, "tenant_share": 0, "ttl": 0, "too_large": 0}
        self.configure(budget_bytes, tenant_share, ttl_s)

    def _start_empty(self) -> None:
        self._all: OrderedDict[Session, None] = OrderedDict()  # least recently used first
        self._tenants: dict[str, OrderedDict[Session, None]] = {}
        self._tenant_bytes: dict[str, int] = {}
        self._index: Index[Session] = Index()  # of every prefix
        self._ends: Index[Session] = Index()  # of the whole list
        self._bodies: Index[Session] = Index()
        self.nbytes = 0

    def configure(self, budget_bytes: int, tenant_share: float, ttl_s: float) -> None:
        """Change the limits. They are applied with the next request."""
        if budget_bytes < 0 or not 0 < tenant_share <= 1 or ttl_s <= 0:
            raise ValueError("budget_bytes must be >= 0, tenant_share in (0, 1], ttl_s > 0")
        self._budget = budget_bytes
        self._tenant_budget = budget_bytes * tenant_share
        self._ttl = ttl_s

    def __len__(self) -> int:
        return len(self._all)

    def clear(self) -> None:
        """Forget every session. Requests in flight finish on their ropes and commit nothing."""
        with self._lock:
            self._epoch += 1
            gone: tuple[Any, ...] = self._all, *self._tenants.values(), self._index, self._ends, self._bodies
            for session in self._all:
                session.alive = False
            self._start_empty()
        # Taken apart here, piece by piece: freed as a whole they would hold the interpreter, and so the event loop.
        for pieces in gone:
            while pieces:
                pieces.popitem()

    def expire(self) -> None:
        """Drop what is older than ``ttl_s`` or over the budget. Requests do so as well, but there may be none."""
        more = True
        while more:
            with self._lock:
                more = self._expire() or self._evict(self._all, self.nbytes - self._budget, None, "budget")
            self._free()

    def tidy(self) -> None:
        """Give back two bodies that later ones of their sessions took the place of: what was made of their messages
        lives on, so that takes no longer than reading one. To be called where a request has been served, or the memory
        of a long session's bodies would not be used again for a while."""
        with suppress(IndexError):
            self._replaced.popleft()
            self._replaced.popleft()

    @property
    def epoch(self) -> int:
        """Grows with every `clear`. To be asked before `sources`, for `Source.epoch`."""
        return self._epoch

    def sources(self, keys: Iterable[bytes]) -> list[Source]:
        """What sessions keep of bodies with any of the keys (`toktier.known.keys_of`), by the first keys first."""
        found: dict[Session, Source] = {}
        with self._lock:
            for key in keys:
                for session in reversed(self._bodies.latest(key, _ALIKE)):
                    if session.memory.source is not None:
                        found.setdefault(session, session.memory.source)
                if len(found) >= 2 * _ALIKE:
                    break
        return list(found.values())

    @contextmanager
    def lease(self, fingerprint: Fingerprint, encoder: ChunkEncoder, *, wait: bool = True) -> Iterator[Lease]:
        """A rope to put the request's text in: a session's own if the request extends it, a copy, or an empty one.

        Waits while another request works on that session; with ``wait`` false it raises `SessionBusy` instead.
        """
        with self._lock:
            self._expire()
            epoch = self._epoch
            own: dict[Session, None] = self._tenants.get(fingerprint.group.tenant, {})
            base = search(fingerprint, self._index, self._ends, own)
            if base is not None:
                base.pins += 1
        if wait:
            self._free()
        if base is None:
            yield self._detached(Rope(encoder), None, fingerprint, epoch, wait)
            return
        try:
            with self._held(base, wait):
                if base.broken or epoch != self._epoch:
                    # All was forgotten while this one waited, and what was forgotten may have been wrong.
                    detached = self._detached(Rope(encoder), None, fingerprint, self._epoch, wait)
                elif not _extends(fingerprint, base):
                    detached = self._detached(base.rope.clone(), base, fingerprint, epoch, wait, base.memory.clone())
                else:
                    try:
                        yield self._lease(base, base.rope, len(base.messages), base, fingerprint, epoch, wait)
                    except BaseException as error:
                        with self._lock:
                            if isinstance(error, TokTierError):
                                # It may have failed after its change: its text is then in the rope, and has to count.
                                self._weigh(base)
                            else:
                                self._break(base)
                        raise
                    return
            yield detached
        finally:
            with self._lock:
                base.pins -= 1

    @contextmanager
    def _held(self, session: Session, wait: bool) -> Iterator[None]:
        """Inside the block the caller has the session's rope, unless it is `broken`."""
        held = session.lock.acquire(blocking=wait, timeout=HELD_S if wait else -1)
        if not held:
            if not wait:
                raise SessionBusy
            with self._lock:
                self._break(session)
        try:
            yield
        finally:
            if held:
                session.lock.release()

    # leases

    def _detached(
        self,
        rope: Rope,
        base: Session | None,
        fingerprint: Fingerprint,
        epoch: int,
        wait: bool,
        memory: Memory | None = None,
    ) -> Lease:
        shared = common_prefix(base.messages, fingerprint.messages) if base is not None else 0
        return self._lease(Session(fingerprint.group, rope, memory), rope, shared, base, fingerprint, epoch, wait)

    def _lease(
        self,
        session: Session,
        rope: Rope,
        shared: int,
        base: Session | None,
        fingerprint: Fingerprint,
        epoch: int,
        wait: bool,
    ) -> Lease:
        def commit(marks: bytes, source: Source | None) -> None:
            with self._lock:
                more = False
                if epoch == self._epoch and (source is None or source.epoch == epoch):
                    more = self._store(session, fingerprint, marks, source, new=session is not base)
            while wait and more:
                self._free()
                with self._lock:
                    more = self._shrink(session)

        return Lease(
            rope=rope,
            session=session.id,
            shared=shared,
            previous=None if base is None else len(base.messages),
            previous_chars=0 if base is None else base.rope.chars,
            previous_tools=() if base is None else base.tools,
            marks=b"" if base is None else bytes(base.marks[:shared]),
            memory=session.memory,
            _fingerprint=fingerprint,
            _commit=commit,
        )

    # all below: under the store's lock

    def _store(
        self, session: Session, fingerprint: Fingerprint, marks: bytes, source: Source | None, *, new: bool
    ) -> bool:
        """Whether more has to go than went."""
        if not fingerprint.messages or not (new or session.alive):
            return False
        self._forget_body(session, self._replaced)
        if source is not None:
            session.memory.source = source
            for key in source.keys:
                self._bodies.add(key, session)
        session.tools = fingerprint.tools
        session.hint = fingerprint.hint
        session.used = self._clock()
        tenant = session.group.tenant
        known = len(session.messages)
        if known:
            self._ends.remove(session.chain[-1], session)
        for key in fingerprint.chain[known + 1 :]:
            self._index.add(key, session)
        if known < len(fingerprint.messages):
            session.chain, session.messages = fingerprint.chain[1:], fingerprint.messages
        session.marks[known:] = marks[known:]
        self._ends.add(session.chain[-1], session)

        session.alive = True
        own = self._tenants.setdefault(tenant, OrderedDict())
        for order in (self._all, own):
            order[session] = None
            order.move_to_end(session)
        return self._weigh(session)

    def _weigh(self, session: Session) -> bool:
        """Count what the session holds now, and make room for it. Whether more has to go than went."""
        if not session.alive:
            return False
        tenant = session.group.tenant
        index = SESSION_BYTES + MESSAGE_BYTES * len(session.messages) + TOOL_BYTES * len(session.tools)
        source = session.memory.source
        keys = 0 if source is None else KEY_BYTES * len(source.keys)
        nbytes = session.rope.nbytes + session.memory.nbytes + index + keys
        if nbytes > self._most():
            # Better without what saves work than not at all.
            self._forget_body(session, self._gone)
            session.memory.forget()
            nbytes = session.rope.nbytes + session.memory.nbytes + index
        self.nbytes += nbytes - session.nbytes
        self._tenant_bytes[tenant] = self._tenant_bytes.get(tenant, 0) + nbytes - session.nbytes
        session.nbytes = nbytes
        return self._shrink(session)

    def _most(self) -> float:
        """Bytes that one session may have."""
        return min(self._tenant_budget, self._budget)

    def _shrink(self, newest: Session) -> bool:
        """Whether more has to go than went."""
        if not newest.alive:
            return False
        tenant = newest.group.tenant
        if newest.nbytes > self._most():
            # Nothing else has to go for one that could not stay anyway.
            self._drop(newest)
            self.evictions["too_large"] += 1
            return False
        more = False
        if self._tenant_budget < self._budget:
            excess = self._tenant_bytes[tenant] - self._tenant_budget
            more = self._evict(self._tenants[tenant], excess, newest, "tenant_share")
        return more or self._evict(self._all, self.nbytes - self._budget, newest, "budget")

    def _evict(self, order: Iterable[Session], excess: float, newest: Session | None, reason: str) -> bool:
        """Drop the least recently used ones until ``excess`` bytes are free, or so many that others have waited enough
        for the lock: then it is true. Looks at no more than go or are in use."""
        going: list[Session] = []
        size = 0
        for session in order if excess > 0 else ():
            if not session.pins and session is not newest:
                going.append(session)
                excess -= session.nbytes
                size += len(session.chain) + _DROP
                if excess <= 0 or size > _DROPS:
                    break
        for session in going:
            self._drop(session)
            self.evictions[reason] += 1
        return excess > 0 and size > _DROPS

    def _free(self) -> None:
        """Give the memory of dropped sessions back, one after the other and not under the lock: each takes milliseconds
        in which nothing else runs. Not for who must not wait."""
        for gone in (self._gone, self._replaced):
            with suppress(IndexError):
                while True:
                    gone.popleft()

    def _expire(self) -> bool:
        """Drop what is too old, a few at most: others wait for the lock. Whether there may be more."""
        oldest = self._clock() - self._ttl
        for _ in range(_AT_ONCE):
            session = next(iter(self._all), None)
            if session is None or session.used > oldest or session.pins:
                return False
            self._drop(session)
            self.evictions["ttl"] += 1
        return True

    def _break(self, session: Session) -> None:
        """Nobody gets the rope any more."""
        session.broken = True
        if session.alive:
            self._drop(session)

    def _forget_body(self, session: Session, to: deque[object]) -> None:
        if session.memory.source is not None:
            for key in session.memory.source.keys:
                self._bodies.remove(key, session)
            to.append(session.memory.source)
            session.memory.source = None

    def _drop(self, session: Session) -> None:
        self._gone.append(session)
        self._forget_body(session, self._gone)
        for key in session.chain:
            self._index.remove(key, session)
        self._ends.remove(session.chain[-1], session)
        session.alive = False
        tenant = session.group.tenant
        del self._all[session]
        own = self._tenants[tenant]
        del own[session]
        self.nbytes -= session.nbytes
        self._tenant_bytes[tenant] -= session.nbytes
        if not own:
            del self._tenants[tenant], self._tenant_bytes[tenant]


def _extends(fingerprint: Fingerprint, base: Session) -> bool:
    """Whether the request has all messages of the session first, and its tools."""
    known = len(base.messages)
    first = known <= len(fingerprint.messages) and (not known or fingerprint.chain[known] == base.chain[-1])
    return first and base.tools == fingerprint.tools
