"""Which requests are checked: by chance, the first of every shape, and, if asked for, every change of old context.

A shape is what decides through which code a request goes: two requests of one shape exercise the same branches, so a
fault in one of them shows in the first few of a shape. It holds no text, and clients cannot make shapes without end.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock
from typing import Any, NamedTuple

from toktier.reasons import FullEncode, Path
from toktier.shadow.job import Sampled
from toktier.traits import Traits, together, traits_of

_SHAPES = 4096
"""Shapes remembered; the one unseen for longest goes first, and counts as new when it comes again."""


class Shape(NamedTuple):
    path: Path
    full: FullEncode | None
    roles: frozenset[str]
    contents: frozenset[str]
    tools: bool
    arguments: bool
    """Whether the request has template arguments of its own."""
    special_tokens: bool
    """Whether it asks for them around the prompt."""
    control_tokens: bool
    """Whether its text holds literals of special tokens."""
    by_gpu: bool = False
    """Whether some of its IDs may come from a GPU: a path of its own."""


def shape_of(
    body: Mapping[str, Any],
    path: Path,
    full: FullEncode | None,
    control_tokens: int,
    traits: Traits | None = None,
    *,
    by_gpu: bool = False,
) -> Shape:
    """The shape of a body that was prepared, so one with well-formed messages. ``traits``: theirs, where known; else
    the body has to hold all of them."""
    roles, contents = traits or together(map(traits_of, body["messages"]))
    return Shape(
        path=path,
        full=full,
        roles=roles,
        contents=contents,
        tools=bool(body.get("tools")),
        arguments=bool(body.get("chat_template_kwargs") or body.get("reasoning_effort")),
        special_tokens=body.get("add_special_tokens") is True,
        control_tokens=control_tokens > 0,
        by_gpu=by_gpu,
    )


class Sampler:
    """Draws for one model. Thread-safe.

    ``rate``: the share drawn by chance, 0 to 1. ``first``: so many of every shape are always checked.
    ``after_change``: so is every edit and compaction. ``seed``: for a draw that repeats; None for one that does not.
    """

    def __init__(self, rate: float, first: int, after_change: bool, seed: int | None = None) -> None:
        if not 0 <= rate <= 1 or first < 0:
            raise ValueError("rate must be in [0, 1] and first >= 0")
        self._rate = rate
        self._first = first
        self._after_change = after_change
        self._random = random.Random(seed)
        self._lock = Lock()
        self._seen: OrderedDict[Shape, int] = OrderedDict()

    def wants(self, shape: Shape, path: Path) -> Sampled | None:
        """Why this request is to be checked, or None."""
        with self._lock:
            drawn = self._random.random() < self._rate  # always, so that the draw does not depend on the shapes
            if self._first and self._count(shape) <= self._first:
                return Sampled.FIRST
        if self._after_change and path in (Path.EDIT, Path.COMPACTION):
            return Sampled.CHANGE
        return Sampled.RATE if drawn else None

    def _count(self, shape: Shape) -> int:
        """How often the shape was seen, this time included."""
        count = min(self._seen.get(shape, 0), self._first) + 1
        self._seen[shape] = count
        self._seen.move_to_end(shape)
        if len(self._seen) > _SHAPES:
            self._seen.popitem(last=False)
        return count
