"""Whether an engine's 400 is about the IDs: such a request is sent again as text, and its client never hears of it.

An engine codes its replies as the client's ``Accept-Encoding`` allows, error bodies too; what is relayed stays coded.
"""

from __future__ import annotations

from dataclasses import dataclass

import aiohttp

from proxy import changes
from proxy.body import decoded_start
from proxy.wire import Reply

STATUSES = (400, 422)
_READ = 64 << 10
"""Bytes of an error body that are looked at: as they come, and decoded."""


@dataclass(frozen=True)
class Refused:
    """``names_ids``: whether the ID field is named. ``start``: what was taken of the reply's body, as it came."""

    names_ids: bool
    start: bytes


async def refused(reply: Reply, token_field: str) -> Refused | None:
    """None for a reply that is no client error; else what its body says about ``token_field``'s IDs."""
    if reply.status not in STATUSES:
        return None
    start = bytearray()
    try:
        while len(start) < _READ and (piece := await reply.content.readany()):
            start += piece
    except (aiohttp.ClientError, OSError, TimeoutError):
        return Refused(False, bytes(start))  # the relay meets the same error again and says so
    plain = decoded_start(reply.headers.get("Content-Encoding", ""), bytes(start), _READ)
    return Refused(changes.ID_PATHS[token_field][-1].encode() in plain, bytes(start))
