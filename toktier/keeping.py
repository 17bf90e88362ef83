"""What a session keeps of a request's messages, so that the next one need not make it again (`toktier.known`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from toktier.fingerprint import Fingerprint
from toktier.known import MOST_CONTAINERS, Known, Made, Run, Source, Weight, gaps, settle, taken_over, weights_of
from toktier.template import RenderRequest
from toktier.traits import Traits, together, traits_of


def kinds_of(body: Mapping[str, Any], known: Known | None) -> tuple[list[Traits], Traits]:
    """The traits of each message on the wire, and of all. Known messages need not be in ``body``."""
    wire = body["messages"]
    if known is None:
        kinds = list(map(traits_of, wire))
        return kinds, together(kinds)
    made, shared = known
    kinds = taken_over(shared, len(wire), made.kinds, lambda place: traits_of(wire[place]))
    if not _all_again(shared, len(made.kinds)):
        return kinds, together(kinds)
    return kinds, together([made.traits, *(kinds[place] for place in gaps(shared, len(wire)))])


def _all_again(shared: Iterable[Run], size: int) -> bool:
    """Whether each of the other request's messages is in a run; some may be in several."""
    place = 0
    for run in sorted(shared, key=lambda one: one.old):
        if run.old > place:
            return False
        place = max(place, run.old + run.size)
    return place >= size


def to_keep(
    source: Source,
    body: Mapping[str, Any],
    request: RenderRequest,
    wanted: Fingerprint,
    marks: bytes,
    shown: tuple[list[Any], list[Any] | None] | None,
    known: Known | None,
    kinds: list[Traits],
    traits: Traits,
) -> Source | None:
    """``source`` with what was made of its messages; None where that is too much.

    ``shown``: the messages and tools that the session's render keeps, where that is of this request: one set of objects
    is enough. ``known``: what was taken over.
    """
    given, tools = (request.messages, request.tools) if shown is None else shown
    messages, given_weight = given, Weight(0, 0)
    if request.by_wire is not None:
        messages, first = request.by_wire, settle(given[0])
        given_weight = first._replace(nbytes=first.nbytes + sys.getsizeof(given))
    runs, weights = ((), None) if known is None else (known.shared, known.made.weights)
    wire_tools = body.get("tools")
    if known is not None and known.made.wire_tools is wire_tools and known.made.tools is tools:
        tools_weight = known.made.tools_weight
    else:
        tools_weight = settle(wire_tools, tools)
    made = Made(
        rules=request.rules,
        messages=messages,
        systems=request.systems,
        given=given,
        digests=wanted.messages,
        chain=wanted.chain,
        marks=marks,
        weights=weights_of(runs, len(kinds), weights, lambda place: settle(messages[place])),
        tools_weight=tools_weight,
        given_weight=given_weight,
        kinds=kinds,
        traits=traits,
        wire_tools=wire_tools,
        tool_choice=body.get("tool_choice"),
        tools=tools,
        tool_digests=wanted.tools,
    )
    return None if made.containers > MOST_CONTAINERS else replace(source, before=None, shared=(), made=made)
