"""Equality that no template can see through, and differences of lists.

A template tells apart what Python's ``==`` does not: ``1``, ``1.0`` and ``true``, ``0.0`` and ``-0.0``, the order of
keys (all of them show in ``tojson``). So:

1. ``same(a, b)`` implies that every template renders alike with a and with b in its place, for plain JSON data and for
   `Undefined`. What it does not know is never the same, a function that may answer differently included.
2. Identity decides about lists of messages: `reuse` puts the old object wherever a new one is the same, so that from
   there on an object stands for its value. Two objects that differ may be the same; that costs time and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, count
from operator import is_not
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from jinja2.runtime import Undefined

ATOMS = frozenset({str, int, float, bool, type(None)})


def same(a: Any, b: Any, pure: frozenset[int] = frozenset()) -> bool:
    """Whether no template can tell a from b. ``pure``: the `id` of functions that only depend on their arguments."""
    kind = type(a)
    if a is b:
        # One object in two renders is an argument or a constant: neither ever changes. A function may be a clock.
        return kind in ATOMS or kind is dict or kind is list or kind is tuple or kind is Undefined or id(a) in pure
    if kind is not type(b):
        return False
    if kind is str or kind is int or kind is bool:
        return bool(a == b)
    if kind is float:
        return bool(a == b) and repr(a) == repr(b)
    if kind is list or kind is tuple:
        return len(a) == len(b) and all(same(x, y, pure) for x, y in zip(a, b, strict=True))
    if kind is dict:
        if len(a) != len(b):
            return False
        for (key, value), (other_key, other) in zip(a.items(), b.items(), strict=True):
            if type(key) is not type(other_key) or key != other_key or not same(value, other, pure):
                return False
        return True
    return kind is Undefined  # prints nothing, whatever its name


def plain(value: Any) -> bool:
    """Whether ``value`` is JSON data through and through, so that nothing can change it."""
    kind = type(value)
    if kind in ATOMS or kind is Undefined:
        return True
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str or not (type(item) in ATOMS or plain(item)):
                return False
        return True
    if kind is list or kind is tuple:
        for item in value:  # noqa: SIM110 - a generator takes twice the time
            if not (type(item) in ATOMS or plain(item)):
                return False
        return True
    return False


def is_function(value: Any) -> bool:
    """A function, a class, or a method of plain data: no template can change its state. Its answers may still vary."""
    if type(value) is BuiltinFunctionType:
        return isinstance(value.__self__, ModuleType) or plain(value.__self__)
    return type(value) is FunctionType or isinstance(value, type)


def first_difference(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The first position at which two lists hold different objects, or the shorter one ends."""
    return next(compress(count(), map(is_not, a, b)), min(len(a), len(b)))


def common_suffix(a: Sequence[Any], b: Sequence[Any]) -> int:
    """How many objects two lists of the same length have in common at their ends."""
    return next(compress(count(), map(is_not, reversed(a), reversed(b))), len(a))


def reuse(old: list[Any], new: list[Any], known: int = 0) -> tuple[list[Any], list[int]]:
    """``new`` with the old object in every place where it is the same, and the places that have none.

    The first ``known`` objects are the old ones already. ``new`` itself is returned where nothing is replaced.
    """
    both = min(len(old), len(new))
    out = new
    fresh: list[int] = []
    for place in compress(range(known, both), map(is_not, old[known:both], new[known:both])):
        if same(old[place], new[place]):
            if out is new:
                out = list(new)
            out[place] = old[place]
        else:
            fresh.append(place)
    fresh.extend(range(both, len(new)))
    return out, fresh
