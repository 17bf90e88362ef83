"""Code point sets, probed out of the reference engine, and the partition that they induce.

Invariants:
- a set is never taken from a Unicode library: the engine's own answer over all code points is the truth;
- a set is stored as its *flips*: the sorted code points at which membership changes, starting from "not a member"
  (shape ``(n,)``, uint32), so that a set costs kilobytes and a partition milliseconds;
- surrogates are in no set;
- a cached set is keyed by what was asked, the engine's name and version and this package's source, and carries a
  checksum: a changed engine or rule asks again, a damaged file is asked for again.

Two engines are asked: `Oniguruma`, which `tokenizers` splits by, and `FancyRegex`, which tiktoken splits by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import tiktoken
import tokenizers
from tokenizers import Regex, decoders

from toktier import kept
from toktier.certificate.predicates import held
from toktier.certificate.regex import Atom, Dialect
from toktier.certificate.source import derivation
from toktier.errors import Refusal
from toktier.rank_files import BYTE_RANKS

Flips = npt.NDArray[np.uint32]
Mask = npt.NDArray[np.bool_]

CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
ENGINE = f"tokenizers {tokenizers.__version__}"
_FEW = 64
_BITS = 40


class RegexEngine(Protocol):
    """The regex engine of a reference: what decides which characters an atom holds."""

    @property
    def name(self) -> str:
        """The library and its version: part of every cache key and of a certificate."""
        ...

    @property
    def dialect(self) -> Dialect:
        """How it reads a pattern."""
        ...

    def accepts(self, pattern: str) -> bool:
        """Whether it compiles ``pattern``."""
        ...

    def matched(self, pattern: str, text: str) -> Mask:
        """Which code points of ``text`` it matches by ``pattern``, whose matches are one code point each.

        Shape ``(0x110000,)``; what is not in ``text`` is not matched.
        """
        ...


@dataclass(frozen=True)
class Oniguruma:
    """What `tokenizers` splits by."""

    name: str = ENGINE
    dialect: Dialect = Dialect.ONIGURUMA

    def accepts(self, pattern: str) -> bool:
        try:
            Regex(pattern)
        except Exception:  # the binding raises plain Exception
            return False
        return True

    def matched(self, pattern: str, text: str) -> Mask:
        """See `RegexEngine`.

        Replace is taken as a decoder, which runs the same regex but keeps no offsets, and takes out a run of matches at
        a time: some ten times as fast as the normalizer.
        """
        rest = decoders.Replace(Regex(f"(?>(?:{pattern})+)"), "").decode([text])
        mask = _points(text)
        mask[np.frombuffer(rest.encode("utf-32-le"), "<u4")] = False
        return mask


@dataclass(frozen=True)
class FancyRegex:
    """What tiktoken splits by: the fancy-regex crate over the regex crate."""

    name: str = f"tiktoken {tiktoken.__version__}"
    dialect: Dialect = Dialect.FANCY

    def accepts(self, pattern: str) -> bool:
        try:
            _bytes_encoding(pattern)
        except ValueError:
            return False
        return True

    def matched(self, pattern: str, text: str) -> Mask:
        """See `RegexEngine`. tiktoken drops what its pattern does not match, so that the matches are left."""
        ids = _bytes_encoding(f"(?:{pattern})+").encode_to_numpy(text, disallowed_special=())
        return _points(ids.astype(np.uint8).tobytes().decode("utf-8"))


def _bytes_encoding(pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding("probe", pat_str=pattern, mergeable_ranks=BYTE_RANKS, special_tokens={})


def _points(text: str) -> Mask:
    """The code points of ``text`` as a mask, shape ``(0x110000,)``."""
    mask = np.zeros(CODE_POINTS, np.bool_)
    mask[np.frombuffer(text.encode("utf-32-le"), "<u4")] = True
    return mask


ONIGURUMA: RegexEngine = Oniguruma()
FANCY: RegexEngine = FancyRegex()


def flips_of(mask: Mask) -> Flips:
    """The flips of a mask over all code points, shape ``(0x110000,)``."""
    return np.flatnonzero(np.diff(mask, prepend=False)).astype(np.uint32)


def flips_of_points(points: Iterable[int]) -> Flips:
    """The flips of a small set of code points."""
    mask = np.zeros(CODE_POINTS, np.bool_)
    mask[list(points)] = True
    return flips_of(mask)


def contains(flips: Flips, points: npt.NDArray[np.integer]) -> Mask:
    """Which of ``points`` are members, same shape."""
    return (np.searchsorted(flips, points, side="right") & 1).astype(np.bool_)


def members(flips: Flips) -> npt.NDArray[np.int64]:
    """The code points of a set, sorted."""
    edges = np.append(np.insert(flips.astype(np.int64), 0, 0), CODE_POINTS)
    return np.flatnonzero(np.repeat(np.arange(len(edges) - 1) % 2 == 1, np.diff(edges)))


def partition(sets: Sequence[Flips]) -> tuple[npt.NDArray[np.uint16], Mask]:
    """The coarsest partition that every set is a union of.

    Returns the class of each code point, shape ``(0x110000,)``, and which sets hold which classes, shape
    ``(len(sets), classes)``.
    """
    starts = np.unique(np.concatenate([np.zeros(1, np.uint32), *sets]))
    starts = starts[starts < CODE_POINTS]
    # Sets seen through a rewrite to bytes flip at every other code point: whole rows would be slow to sort.
    of_start = np.zeros(len(starts), np.int64)
    for at in range(0, len(sets), _BITS):
        for flips in sets[at : at + _BITS]:
            of_start = of_start << 1 | contains(flips, starts)
        found, of_start = np.unique(of_start, return_inverse=True)
        if len(found) >= 1 << 16:
            raise Refusal("more than 65,535 character classes", "partition")
    _, first = np.unique(of_start, return_index=True)
    signatures = [contains(flips, starts[first]) for flips in sets]
    lengths = np.diff(np.append(starts, CODE_POINTS))
    return np.repeat(of_start.astype(np.uint16), lengths), np.array(signatures, np.bool_).reshape(len(sets), len(first))


class Probe:
    """Asks an engine for sets, with a cache in memory and, where ``cache_dir`` is given, on disk."""

    def __init__(self, cache_dir: Path | None = None, engine: RegexEngine = ONIGURUMA) -> None:
        self.engine = engine
        self._dir = cache_dir
        self._known: dict[str, Flips] = {}
        self.asked = 0
        """How many sets were not in the cache."""

    def cached(self, key: str, ask: Callable[[], dict[str, Flips]]) -> Flips:
        """The set named ``key``. ``ask`` yields it, and maybe others that come with it, where it is not cached."""
        if not self._has(key):
            for name, flips in ask().items():
                self._keep(name, flips)
        return self._known[key]

    def atoms(self, atoms: Sequence[Atom]) -> list[Flips]:
        """The set of each atom, in order. Raises `Refusal` where the engine does not take an atom on its own."""
        patterns = {a.text: a for a in atoms if a.literal is None and a.predicate is None}
        missing = [a for text, a in patterns.items() if not self._has(f"atom {text}")]
        for a, flips in zip(missing, _ask_atoms(missing, self.engine) if missing else (), strict=True):
            self._keep(f"atom {a.text}", flips)
        return [self._set(a) for a in atoms]

    def _set(self, atom: Atom) -> Flips:
        if atom.literal is not None:
            return flips_of_points([ord(atom.literal)])
        if atom.predicate is not None:
            return self.predicate(atom.predicate)
        return self._known[f"atom {atom.text}"]

    def predicate(self, name: str) -> Flips:
        """The set of a predicate of `predicates`."""
        return self.cached(f"predicate {name}", lambda: _ask_predicates(name))

    def _has(self, key: str) -> bool:
        return key in self._known or self._load(key)

    def _keep(self, key: str, flips: Flips) -> None:
        self.asked += 1
        self._known[key] = flips
        self._store(key, flips)

    def _path(self, key: str) -> Path | None:
        if self._dir is None:
            return None
        name = hashlib.sha256(f"{self.engine.name}\0{derivation()}\0{key}".encode()).hexdigest()
        return self._dir / "classes" / f"{name[:40]}.set"

    def _load(self, key: str) -> bool:
        path = self._path(key)
        if path is None:
            return False
        try:
            raw = path.read_bytes()
        except OSError:
            return False
        if len(raw) % 4 or hashlib.sha256(raw[32:]).digest() != raw[:32]:
            return False
        self._known[key] = np.frombuffer(raw, "<u4", offset=32).astype(np.uint32)
        return True

    def _store(self, key: str, flips: Flips) -> None:
        path = self._path(key)
        if path is None:
            return
        body = flips.astype("<u4").tobytes()
        kept.write(path, hashlib.sha256(body).digest() + body)  # where that fails, it costs time and nothing else


def all_code_points() -> str:
    """Every code point but the surrogates, ascending."""
    points = np.concatenate([np.arange(SURROGATES.start), np.arange(SURROGATES.stop, CODE_POINTS)])
    return points.astype("<u4").tobytes().decode("utf-32-le")


def matched(pattern: str, text: str) -> Mask:
    """`RegexEngine.matched` of `tokenizers`."""
    return ONIGURUMA.matched(pattern, text)


def _ask_predicates(name: str) -> dict[str, Flips]:
    found = held(name, all_code_points())
    return {f"predicate {other}": flips_of_points(map(ord, chars)) for other, chars in found.items()}


def _ask_atoms(atoms: Sequence[Atom], engine: RegexEngine) -> list[Flips]:
    """Each atom over all code points.

    The atoms that match little are asked for together first: an alternation of one-code-point atoms matches a code
    point exactly when one of them does, so each needs to be asked only over what the alternation matched.
    """
    for a in atoms:
        if not engine.accepts(a.text):
            raise Refusal(f"atom {a.text!r} that the engine rejects", a.place)
    every = all_code_points()
    sample = every[:0x3000]
    few = [a for a in atoms if int(engine.matched(a.text, sample).sum()) <= _FEW]
    found = every
    if len(few) > 1:
        mask = engine.matched("|".join(f"(?:{a.text})" for a in few), every)
        found = np.flatnonzero(mask).astype("<u4").tobytes().decode("utf-32-le")
    small = {a.text for a in few}
    return [flips_of(engine.matched(a.text, found if a.text in small else every)) for a in atoms]
