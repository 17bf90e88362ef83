"""Rule 10 of `toktier.profiles.vllm`: ``developer`` messages, for a template that does not name the role.

Where one of a request's messages is the developer's, the system's and the developer's messages together are the first
one that the template is given: itself under the other role where there is one only, which is the first, else their
texts. The other messages follow as they are.

Invariant: that first message follows from those that it is made of and from whether there is one only, the first. Where
they are an earlier request's, all of them and in order, the message is that one's object.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from toktier.known import Known, Run, gaps, taken_over
from toktier.profiles.vllm_content import JOINER
from toktier.template import wire_place

_ROLES = ("system", "developer")


class Converted(NamedTuple):
    """As the fields of `toktier.template.RenderRequest`."""

    messages: list[dict[str, Any]]
    systems: tuple[int, ...]
    shared: tuple[Run, ...]


def as_system(messages: list[dict[str, Any]], known: Known | None) -> Converted | None:
    """None where none of the ``messages``, as they are by themselves, is the developer's.

    ``known``: of these. Linear in what is not known, in its runs and in the system's messages.
    """
    found = list(_systems(messages, known))
    if not any(messages[place]["role"] == "developer" for place, _ in found):
        return None
    systems = tuple(place for place, _ in found)
    shared: tuple[Run, ...] = ()
    old: list[dict[str, Any]] = []
    if known is not None and known.made.systems is not None:
        before, old = known.made.systems, known.made.given
        same = tuple(place for _, place in found) == before and (systems == (0,)) == (before == (0,))
        shared = tuple(_runs(known.shared, systems, before, same))

    def fresh(at: int) -> dict[str, Any]:
        return messages[wire_place(systems, at)] if at else _first(messages, systems)

    return Converted(taken_over(shared, len(messages) - len(systems) + 1, old, fresh), systems, shared)


def _systems(messages: list[dict[str, Any]], known: Known | None) -> Iterator[tuple[int, int | None]]:
    """The places of the system's and the developer's messages, and where the other request had each of them.

    Those that are known are not looked at one by one: the other request knows its own, or had no developer. Nothing is
    found where there is none now either.
    """
    old = None if known is None else known.made.systems
    runs: Sequence[Run] = () if known is None else known.shared
    if old is None:
        if any(messages[place]["role"] == "developer" for place in gaps(runs, len(messages))):
            yield from ((place, None) for place, one in enumerate(messages) if one["role"] in _ROLES)
        return
    place = 0
    for run in (*runs, Run(len(messages), 0, 0)):
        yield from ((at, None) for at in range(place, run.at) if messages[at]["role"] in _ROLES)
        for at in old[bisect_left(old, run.old) : bisect_left(old, run.old + run.size)]:
            yield run.at + at - run.old, at
        place = run.at + run.size


def _runs(shared: Sequence[Run], systems: Sequence[int], before: Sequence[int], same: bool) -> Iterator[Run]:
    """Runs of messages on the wire as runs of what the template is given. ``same``: whether the first one is."""
    last = Run(0, 0, int(same))
    for run in shared:
        first, end = bisect_left(before, run.old), bisect_left(before, run.old + run.size)
        one = Run(run.at + 1 - bisect_left(systems, run.at), run.old + 1 - first, run.size - (end - first))
        if (one.at, one.old) == (last.at + last.size, last.old + last.size):
            last = last._replace(size=last.size + one.size)
        elif one.size:
            if last.size:
                yield last
            last = one
    if last.size:
        yield last


def _first(messages: list[dict[str, Any]], systems: tuple[int, ...]) -> dict[str, Any]:
    if systems == (0,):
        return {**messages[0], "role": "system"}
    texts = [_plain(messages[place]["content"]) for place in systems]
    return {"role": "system", "content": "\n\n".join(text for text in texts if text)}


def _plain(content: Any) -> str:
    return content if isinstance(content, str) else JOINER.join(part["text"] for part in content if "text" in part)
