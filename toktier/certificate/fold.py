"""Lemma 1's proviso under ``(?i)`` in Oniguruma: which atoms and runs of atoms match other than one code point each.

Full case folding gives several code points for some letters: ``ß`` folds to ``ss``. The engine uses that both ways:

- an atom that holds ``ß`` may also match the string ``ss``. Such an atom is *open*; whether one is depends on how it is
  written (``[\\p{L}]`` is, ``\\p{L}`` and ``[^x]`` are not), so the engine is asked, for each string;
- a run ``ss`` of literals may also match the one code point ``ß``.

`widened` puts both into the tree, as alternatives. They stand for the strings that the engine tries there, in more
combinations than it does: the follow relation can only be larger than the engine's, and nothing is added to cov, since
the strings have two characters or more and an alternative is covered by what its other branch covers.

The strings themselves are asked for by candidates. A letter that folds to several code points is ``ß``, ``ẞ`` or
decomposes, and its fold is its decomposition with none, some or all of the marks composed into the first letter (a
property of Unicode's CaseFolding.txt, where the rest are one to one; tested against Python's data).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from tokenizers import Regex, decoders, normalizers

from toktier.certificate.classes import (
    CODE_POINTS,
    SURROGATES,
    Flips,
    Mask,
    Probe,
    flips_of,
    flips_of_points,
    matched,
    members,
)
from toktier.certificate.follow import positions
from toktier.certificate.images import mask_of
from toktier.certificate.regex import GREEDY, Alt, Atom, Atomic, Look, Node, Repeat, Seq, escape
from toktier.errors import Refusal

_CASED = Atom(r"[\p{L}\p{M}\p{N}\p{S}]", "case folding")
"""Nothing else has case."""
_SHARP_S = "ßẞ"
_LONGEST = 3
_BLOCK = 256


def widened(node: Node, probe: Probe, place: str) -> Node:
    """The tree with what folds of several characters add to it. Raises `Refusal` where they have no rule here."""
    atoms = positions(node, place).atoms
    if all(a.unfolded is None for a in atoms):
        return node
    return _Widening(probe, atoms).tree(node, place)


class _Widening:
    """``sets``: by text of an atom under ``(?i)`` the single code points that it matches; ``letters``: by text of one
    that is a single literal, that literal; ``taken``: by text, the strings that an open one takes."""

    def __init__(self, probe: Probe, atoms: Sequence[Atom]) -> None:
        self._probe = probe
        self._cased = mask_of(probe.atoms([_CASED])[0])
        self._strings = fold_strings(probe)
        folding = {a.text: a for a in atoms if a.unfolded is not None}
        unfolded = probe.atoms([Atom(a.unfolded, a.place) for a in folding.values() if a.unfolded is not None])
        self._taken = {text: taken for text in folding if (taken := _taken(text, self._strings))}
        self._letters: dict[str, str] = {}
        closed = {text: a for text, a in folding.items() if text not in self._taken}
        self._sets = dict(zip(closed, map(mask_of, probe.atoms(list(closed.values()))), strict=True))
        for text, flips in zip(folding, unfolded, strict=True):
            inside = mask_of(flips)
            if inside.sum() == 1:
                self._letters[text] = chr(int(inside.argmax()))
            if text in self._taken:
                self._sets[text] = (inside & ~self._cased) | self._singles(text)

    def _singles(self, pattern: str) -> Mask:
        """The code points with case that ``pattern`` matches alone."""
        key = f"single {pattern}"
        return mask_of(self._probe.cached(key, lambda: {key: flips_of(_alone(pattern, self._cased))}))

    def tree(self, node: Node, place: str) -> Node:
        self._in_runs: set[tuple[int, int]] = set()
        result = self._widen(node)
        p = positions(node, place)
        for x, y in sorted(p.follow):
            a, b = p.atoms[x], p.atoms[y]
            if self._may_join(a, b) and (id(a), id(b)) not in self._in_runs:
                raise Refusal("case fold of several characters across a group or a repeat", b.place)
        return result

    def _widen(self, node: Node) -> Node:
        if isinstance(node, Atom):
            return self._atom(node)
        if isinstance(node, Look):
            return Look(node.negative, tuple(self._looked_at(a) for a in node.atoms))
        if isinstance(node, Alt):
            return Alt(tuple(self._widen(b) for b in node.branches))
        if isinstance(node, Repeat):
            return Repeat(self._widen(node.body), node.low, node.high, node.kind)
        if isinstance(node, Atomic):
            return Atomic(self._widen(node.body))
        return self._sequence(_flat(node))

    def _atom(self, atom: Atom) -> Node:
        strings = self._taken.get(atom.text)
        if strings is None:
            return atom
        first = self._variants({s[0] for s in strings}, atom.place)
        rest = self._variants({c for s in strings for c in s[1:]}, atom.place)
        return Alt((self._single(atom), Seq((first, Repeat(rest, 1, _LONGEST - 1, GREEDY)))))

    def _looked_at(self, atom: Atom) -> Atom:
        """A lookahead over an open atom is one over its single characters, if those begin all of its strings."""
        strings = self._taken.get(atom.text)
        if strings is None:
            return atom
        inside = self._sets[atom.text]
        if (self._singles(_any_case({s[0] for s in strings})) & ~inside).any():
            raise Refusal("lookahead at a case fold of several characters", atom.place)
        return self._single(atom)

    def _sequence(self, items: Sequence[Node]) -> Node:
        """Runs of literals that one code point may match become alternatives."""
        result: list[Node] = []
        at = 0
        while at < len(items):
            end = at + 1
            while end < len(items) and self._joins(items[end - 1], items[end]):
                end += 1
            run = [i for i in items[at:end] if isinstance(i, Atom)]
            result.append(self._run(run) if len(run) > 1 else self._widen(items[at]))
            at = end
        return Seq(tuple(result))

    def _run(self, run: Sequence[Atom]) -> Node:
        self._in_runs.update((id(a), id(b)) for a, b in pairwise(run))
        for a in run:
            if a.text in self._taken:
                raise Refusal("case fold of several characters beside another letter", a.place)
        text = "".join(self._letters[a.text] for a in run)
        parts = {text[i : i + n] for n in range(2, _LONGEST + 1) for i in range(len(text) - n + 1)}
        joined = self._singles("(?i:" + "|".join("".join(map(escape, p)) for p in sorted(parts)) + ")")
        loose = [Atom(a.text, a.place) for a in run]
        if joined.any():
            loose.append(Atom(_class_of(joined), run[0].place))
        return Alt((Seq(tuple(run)), Repeat(Alt(tuple(loose)), 2, None, GREEDY)))

    def _joins(self, a: Node, b: Node) -> bool:
        return isinstance(a, Atom) and isinstance(b, Atom) and self._may_join(a, b)

    def _may_join(self, a: Atom, b: Atom) -> bool:
        """Whether a and b are literals under ``(?i)`` that match neighbours in some string."""
        if a.text not in self._letters or b.text not in self._letters:
            return False
        x, y = self._sets[a.text], self._sets[b.text]
        pairs = (pair for s in self._strings for pair in pairwise(s))
        return a.text in self._taken or b.text in self._taken or any(x[ord(p)] and y[ord(q)] for p, q in pairs)

    def _single(self, atom: Atom) -> Atom:
        return Atom(_class_of(self._sets[atom.text]), atom.place)

    def _variants(self, chars: set[str], place: str) -> Atom:
        return Atom(_class_of(self._singles(_any_case(chars))), place)


def _flat(node: Seq) -> list[Node]:
    """The items, those of sequences inside it included: the engine joins literals across such groups."""
    return [leaf for i in node.items for leaf in (_flat(i) if isinstance(i, Seq) else (i,))]


def _any_case(chars: Iterable[str]) -> str:
    return f"(?i:{_class_of(mask_of(flips_of_points(map(ord, chars))))})"


def _class_of(mask: Mask) -> str:
    """A class of exactly the members of ``mask``."""
    flips = [*flips_of(mask).tolist()]
    if len(flips) % 2:
        flips.append(CODE_POINTS)
    ranges = zip(flips[::2], flips[1::2], strict=True)
    return "[" + "".join(f"\\x{{{a:x}}}-\\x{{{b - 1:x}}}" for a, b in ranges) + "]"


def fold_strings(probe: Probe) -> list[str]:
    """The strings of two or three characters that the engine, ignoring case, takes for one code point, in one case."""
    key = "long folds"
    sources = list(map(chr, members(probe.cached(key, lambda: {key: _ask_sources(mask_of(probe.atoms([_CASED])[0]))}))))
    return _taken(_any_case(sources), _candidates(sources))


def _ask_sources(cased: Mask) -> Flips:
    """The code points that fold to several."""
    chars = _decomposing()
    strings = _taken(_any_case([*chars, *_SHARP_S]), _candidates(chars))
    literals = "|".join("".join(map(escape, s)) for s in strings)
    return flips_of(_alone(f"(?i:{literals})", cased))


def _decomposing() -> list[str]:
    decompose = normalizers.NFKD().normalize_str
    found: list[str] = []
    for start in range(0, CODE_POINTS, _BLOCK):
        if start not in SURROGATES:
            block = "".join(map(chr, range(start, start + _BLOCK)))
            found += [c for c in block if decompose(c) != c] if decompose(block) != block else []
    return found


def _candidates(chars: Iterable[str]) -> list[str]:
    decompose, compose = normalizers.NFKD().normalize_str, normalizers.NFC().normalize_str
    found = {"ss"}
    for c in chars:
        d = decompose(c)
        found.update(compose(d[:k]) + d[k:] for k in range(1, len(d)))
    return sorted(s for s in found if 2 <= len(s) <= _LONGEST)


def _taken(pattern: str, strings: Sequence[str]) -> list[str]:
    """Those of ``strings`` (none with a line end) that one match of ``pattern`` is."""
    rest = decoders.Replace(Regex(f"\\n(?:{pattern})(?=\\n)"), "").decode(["\n" + "\n".join(strings) + "\n"])
    left = set(rest.split("\n"))
    return [s for s in strings if s not in left]


def _alone(pattern: str, points: Mask) -> Mask:
    """Which of ``points`` the pattern matches, each on a line of its own, so that no string of letters stands there."""
    text = np.flatnonzero(points).astype("<u4").tobytes().decode("utf-32-le")
    return matched(pattern, "\n".join(text)) & points
