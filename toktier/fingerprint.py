"""What a request is compared by: one digest a message, and a digest for every prefix of the message list.

Invariants:
 - Equal digests mean values that no template can tell apart: types, key order and the sign of zero count, so
   ``1``, ``1.0`` and ``True`` differ, and so do ``{"a": 1, "b": 2}`` and ``{"b": 2, "a": 1}`` (`==` knows neither).
 - A digest only selects the session whose text the new one is compared with. IDs never depend on it.
"""

from __future__ import annotations

import marshal
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from toktier.digests import SIZE as _SIZE
from toktier.digests import Digests, taken_over
from toktier.known import Known, Run, gaps


class Group(NamedTuple):
    """Sessions are only ever looked for inside one group."""

    tenant: str
    model: str
    settings: bytes
    """Digest of whatever else shapes the rendered text: engine rules, template, tokenizer, template arguments."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """A message list as digests of 16 bytes."""

    group: Group
    packed: Mapping[int, bytes]
    """The strict form (see `strict`) of the messages whose digests were not known, by place."""
    chain: Digests
    """``chain[k]`` stands for the group and the first ``k`` messages; one longer than `messages`."""
    messages: Digests
    """The digest of each message alone."""
    tools: tuple[bytes, ...]
    """The digest of each tool, in order."""
    hint: bytes | None
    """Digest of what the client calls its session, if it says so."""
    lead: int = 0
    """Leading messages that an earlier request had as well. A guess at where the session ends."""


def strict(value: Any) -> bytes:
    """A byte form of a JSON value that is equal only for values that are the same in type, order and sign.

    Version 2 of the marshal format: later ones encode object identity. A value that is nested too deeply for it, or
    is no JSON, gets a form that equals no other.
    """
    try:
        return marshal.dumps(value, 2)
    except ValueError:
        return os.urandom(_SIZE)


def digest(*parts: bytes) -> bytes:
    """A digest of the parts and of where each ends."""
    out = blake2b(digest_size=_SIZE)
    for part in parts:
        out.update(len(part).to_bytes(8, "little"))
        out.update(part)
    return out.digest()


def fingerprint(
    group: Group,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] | None = None,
    hint: str | None = None,
    known: Known | None = None,
    tool_digests: tuple[bytes, ...] | None = None,
) -> Fingerprint:
    """The fingerprint of a normalised request. Cost: about 2 ns a byte of text and 2 microseconds a message.

    ``known``: messages in its runs are those of another request, whose digests are taken; they cost nothing.
    ``tool_digests``: of the same tools, where they are known.
    """
    shared: tuple[Run, ...] = () if known is None else known.shared
    packed = {place: strict(messages[place]) for place in gaps(shared, len(messages))}
    old = Digests() if known is None else known.made.digests
    alone = taken_over(shared, len(messages), old, lambda place: _digest(packed[place]))
    link = digest(group.tenant.encode(), group.model.encode(), group.settings)
    lead = 0
    links = [link]
    if known is not None and known.made.chain[0] == link:
        lead = known.lead
        link = known.made.chain[lead]
        links = [known.made.chain[: lead + 1].packed]
    for place in range(lead, len(messages)):
        link = _digest(link + alone[place])
        links.append(link)
    return Fingerprint(
        group,
        packed,
        Digests(b"".join(links)),
        alone,
        tuple(digest(strict(tool)) for tool in tools or ()) if tool_digests is None else tool_digests,
        None if hint is None else digest(hint.encode("utf-8", "surrogatepass")),
        lead,
    )


def _digest(form: bytes) -> bytes:
    return blake2b(form, digest_size=_SIZE).digest()


def common_prefix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many leading entries of two lists, or characters of two strings, are equal, by halving.

    Each step is one comparison in C.
    """
    return agreed(min(len(a), len(b)), lambda m, n: a[m:n] == b[m:n])


def common_suffix(a: Sequence[bytes], b: Sequence[bytes], most: int) -> int:
    """How many trailing entries of two lists are equal, at most ``most``."""
    i, j = len(a), len(b)
    return agreed(min(i, j, most), lambda m, n: a[i - n : i - m] == b[j - n : j - m])


def agreed(most: int, same: Callable[[int, int], bool]) -> int:
    """How many of ``most`` units agree, by halving: ``same(m, n)`` says whether units ``[m, n)`` do, where the
    first ``m`` are known to."""
    low, high = 0, most
    while low < high:
        mid = (low + high + 1) // 2
        if same(low, mid):
            low = mid
        else:
            high = mid - 1
    return low
