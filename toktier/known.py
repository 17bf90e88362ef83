"""What a request can take over from an earlier one of its session, because it was read beside that one's body.

A caller that has a request's bytes compares them with those of an earlier request (`proxy.beside`). Messages with the
same bytes are not read again, and the objects that they were read as are not kept: a `Source` says which they are, and
what was made of each (the engine's form of it, its digest, whether it holds a control literal) is taken over.

Invariants
 - What was made of a message stands for the same value when it comes again: nobody changes it.
 - What is taken over was made by the same rules (`Made.rules`); whoever asks says by which. For other rules the body
   has to be read as a whole (`OtherRules`).
 - A source holds no other source once its request is done, so no chain of bodies is kept.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from toktier.traits import Traits

if TYPE_CHECKING:
    from toktier.digests import Digests

T = TypeVar("T")

FIRST_KEY = 2048
"""A body shorter than this, in bytes, is not looked for: reading it takes no longer than finding another."""
MOST_CONTAINERS = 50_000
"""A request with more objects and arrays than this is not kept. They are freed in one piece, and meanwhile nothing else
runs, the event loop neither: 50,000 take 2 to 3 ms. Four million characters of an agent's session have 14,000."""
_SAMPLE = 64
_DIGEST = 16
_FEW = 256
"""Numbers that Python adds as quickly as numpy does."""


class Weight(NamedTuple):
    """Of plain data: about the bytes that it holds, and its objects and arrays."""

    nbytes: int
    containers: int


class Weights(NamedTuple):
    """A `Weight` for each of some messages."""

    nbytes: array[int]
    containers: array[int]


class OtherRules(Exception):
    """What is known of a request's messages was made by other rules."""


class Run(NamedTuple):
    """Items ``[at, at + size)`` of a list are those from ``old`` on of another."""

    at: int
    old: int
    size: int


@dataclass(slots=True, eq=False)
class Made:
    """What was made of a request's messages, one entry a message on the wire but where that is said. Never changed."""

    rules: tuple[object, ...]
    """By which ``messages`` were made: compared by identity."""
    messages: list[dict[str, Any]]
    """As the engine's rules have each of them."""
    systems: tuple[int, ...] | None
    """As in `toktier.template.RenderRequest`."""
    given: list[dict[str, Any]]
    """What the template was given: ``messages``, or what was made of them together."""
    digests: Digests
    chain: Digests
    """Of ``given``, as in `toktier.fingerprint.Fingerprint`."""
    marks: bytes
    """1 for each of ``given`` with a special token's literal."""
    weights: Weights
    """What the objects of ``messages`` are."""
    tools_weight: Weight
    given_weight: Weight
    """Of what ``given`` has beside ``messages``."""
    kinds: list[Traits]
    """What each message was on the wire."""
    traits: Traits
    wire_tools: object
    tool_choice: object
    """As the body had them: compared by identity."""
    tools: list[dict[str, Any]] | None
    tool_digests: tuple[bytes, ...]
    nbytes: int = field(init=False)
    """About the bytes that all of it holds."""
    containers: int = field(init=False)

    def __post_init__(self) -> None:
        weights, tools, given = self.weights, self.tools_weight, self.given_weight
        self.nbytes = tools.nbytes + given.nbytes + _sum(weights.nbytes) + 64 * len(weights.nbytes) + 2048
        self.containers = tools.containers + given.containers + _sum(weights.containers)


@dataclass(slots=True, eq=False)
class Source:
    """Of one request: its body, and what it shares with the one that it was read beside."""

    body: Any
    """Whatever the caller reads later bodies beside."""
    nbytes: int
    """Bytes that ``body`` holds."""
    keys: tuple[bytes, ...]
    """Under which it can be found (`keys_of`)."""
    again: Callable[[], Mapping[str, Any]] = field(repr=False)
    """Reads the whole body anew, with nothing of another one. For who trusts nothing that was kept."""
    epoch: int = 0
    """`SessionStore.epoch` before the other body was looked for."""
    before: Source | None = None
    shared: tuple[Run, ...] = ()
    made: Made | None = None
    free_of: object = None
    """What the caller found ``body`` to hold nothing of."""


class Known(NamedTuple):
    """What is known of a request's messages: ``made`` of another one, and where its items come again."""

    made: Made
    shared: tuple[Run, ...]

    @property
    def lead(self) -> int:
        """Leading messages that are the other one's leading ones."""
        run = self.shared[0] if self.shared else Run(0, 0, 0)
        return run.size if run.at == run.old == 0 else 0

    def by(self, rules: tuple[object, ...]) -> bool:
        """Whether the messages were made by these rules."""
        made = self.made.rules
        return len(made) == len(rules) and all(a is b for a, b in zip(made, rules, strict=True))


def known_of(source: Source | None) -> Known | None:
    """What the source of a request tells, if it was read beside another one that was served."""
    if source is None or source.before is None or source.before.made is None:
        return None
    return Known(source.before.made, source.shared)


def gaps(shared: Iterable[Run], size: int) -> Iterator[int]:
    """The places, of ``size``, that are in no run."""
    position = 0
    for run in shared:
        yield from range(position, run.at)
        position = run.at + run.size
    yield from range(position, size)


def taken_over(shared: Iterable[Run], size: int, old: Sequence[T], fresh: Callable[[int], T]) -> list[T]:
    """A list of ``size`` items: those in runs from ``old``, the others made by ``fresh`` of their places, in order."""
    out: list[T] = []
    for run in shared:
        out += map(fresh, range(len(out), run.at))
        # A slice of all would be one more list, and each list touches every object in it, once more when it goes.
        out += old if run.size == len(old) else old[run.old : run.old + run.size]
    out += map(fresh, range(len(out), size))
    return out


def weights_of(shared: Iterable[Run], size: int, old: Weights | None, fresh: Callable[[int], Weight]) -> Weights:
    """As `taken_over`."""
    out = Weights(array("q"), array("q"))
    for run in (*shared, Run(size, 0, 0)):
        for place in range(len(out.nbytes), run.at):
            for one, value in zip(out, fresh(place), strict=True):
                one.append(value)
        for one, values in zip(out, old or (), strict=False):
            one.extend(values[run.old : run.old + run.size])
    return out


def _sum(values: array[int]) -> int:
    return sum(values) if len(values) < _FEW else int(np.frombuffer(values, np.int64).sum())


def keys_of(tenant: str, raw: bytes, hint: str | None = None) -> tuple[bytes, ...]:
    """Under which a body is kept and looked for, the most telling first; none for a short one.

    A key stands for the tenant and 64 bytes at a fixed place: places double, so two bodies that begin alike for a while
    share all keys up to there, and an edit that keeps the length costs one or none. ``hint`` is what the request's head
    says of its session. Keys only choose what is compared.
    """
    if len(raw) < FIRST_KEY:
        return ()
    base = blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=_DIGEST)
    keys = []
    if hint is not None:
        keys.append(_key(base, 0, hint.encode("utf-8", "surrogatepass")))
    place = FIRST_KEY
    while place <= len(raw):
        keys.append(_key(base, place, raw[place - _SAMPLE : place]))
        place *= 2
    keys.reverse()
    return tuple(keys)


def _key(base: Any, place: int, sample: bytes) -> bytes:
    out = base.copy()
    out.update(place.to_bytes(8, "little"))
    out.update(sample)
    return bytes(out.digest())


def settle(*values: object) -> Weight:
    """Prepares plain data for a long stay, and weighs it: a long string once, all else as often as it comes.

    Its containers are taken out of the cyclic collector's lists: JSON has no cycles, nobody changes it (see above), and
    each pass over all objects, which nothing else in the process can run beside, would look at all of every session's.
    They are freed with their last reference, like any others.
    """
    seen: set[int] = set()
    size = containers = 0
    pending: list[Any] = list(values)
    while pending:
        value = pending.pop()
        kind = type(value)
        if kind is str:
            if len(value) > _SHORT:
                if id(value) in seen:
                    continue
                seen.add(id(value))
            size += sys.getsizeof(value)
        elif kind is dict:
            containers += 1
            size += sys.getsizeof(value) + _NAME * len(value.keys() - _NAMES)
            pending += value.values()
            if gc.is_tracked(value):
                _untrack(value)
        elif kind is list:
            containers += 1
            size += sys.getsizeof(value)
            pending += value
            _untrack(value)
    return Weight(size, containers)


_SHORT = 64
"""Strings up to this length are counted as often as they come."""
_NAME = 54
"""What the name of a member costs: a parser makes a new string of it for each object that it reads."""
_NAMES = frozenset({"role", "content", "tool_calls", "tool_call_id", "reasoning", "reasoning_content"}) | frozenset(
    {"id", "type", "function", "name", "arguments", "text"}
)
"""Profiles name the members of a message by themselves, so these cost nothing."""
_untrack = ctypes.pythonapi.PyObject_GC_UnTrack
_untrack.argtypes, _untrack.restype = [ctypes.py_object], None
