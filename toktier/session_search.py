"""Which session a request continues. A guess may be wrong: that only costs work (`toktier.sessions`).

Every prefix of a session's message list is in the index, so the longest known prefix of a new list is found by halving.
Among the sessions with it, one that ends there is preferred, then the one that shares most messages counted from both
ends. If less than half of the list is known, the sessions used last in the group are compared too: an edit of the first
message (a date, a git status) leaves no prefix, yet nearly all of the text.
"""

from __future__ import annotations

from toktier.fingerprint import Fingerprint, Group, common_prefix, common_suffix
from toktier.session import Session
from toktier.session_index import Index

_CANDIDATES = 8
_LOOK_BACK = 64


def search(
    wanted: Fingerprint, index: Index[Session], ends: Index[Session], own: dict[Session, None]
) -> Session | None:
    """The session that shares most with the request, or None.

    ``index``: of every prefix, ``ends``: of whole lists, ``own``: the tenant's sessions, least recently used first.
    """
    chain, size = wanted.chain, len(wanted.messages)
    low, high = 0, size
    if size and chain[size] in index:
        low = size
    elif wanted.lead and chain[wanted.lead] in index:
        low = wanted.lead
        high = size - 1 if chain[low + 1] in index else low
    while low < high:
        mid = (low + high + 1) // 2
        if chain[mid] in index:
            low = mid
        else:
            high = mid - 1

    def agrees(session: Session) -> tuple[bool, bool, float]:
        hinted = wanted.hint is not None and session.hint == wanted.hint
        return hinted, session.tools == wanted.tools, session.used

    # The latest ones: a client whose tools differ in every request leaves as many as the budget allows.
    ended = ends.latest(chain[low], _LOOK_BACK) if low else []
    if ended:
        return max(ended, key=agrees)
    pool = index.latest(chain[low], _CANDIDATES) if low else []
    if 2 * low < size:
        pool = [*pool, *_recent(wanted.group, own)]

    best: tuple[int, tuple[bool, bool, float]] | None = None
    found: Session | None = None
    for session in pool:
        prefix = common_prefix(session.messages, wanted.messages)
        shorter = min(len(session.messages), size)
        overlap = prefix + common_suffix(session.messages, wanted.messages, shorter - prefix)
        score = overlap, agrees(session)
        if (prefix or 2 * overlap >= size) and overlap and (best is None or score > best):
            best, found = score, session
    return found


def _recent(group: Group, own: dict[Session, None]) -> list[Session]:
    found: list[Session] = []
    for looked_at, session in enumerate(reversed(own)):
        if looked_at == _LOOK_BACK or len(found) == _CANDIDATES:
            break
        if session.group == group:
            found.append(session)
    return found
