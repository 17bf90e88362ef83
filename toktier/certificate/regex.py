"""Split patterns as trees, read as the reference engine reads them (Oniguruma, Ruby syntax).

Invariants:
- every `Atom` matches exactly one code point, and ``Atom.text``, given to the engine alone, matches the same ones;
- a construct that is not listed here is refused by name and place, never guessed at.

Readings that differ from other regex dialects (each is a test against the engine):
- ``x{n,m}+`` repeats the group ``(?:x{n,m})``, it is not possessive; ``x{n}?`` is ``(?:x{n})?``, it is not lazy;
- ``a(?i)b|c`` is ``a(?i:b|c)``: an isolated option runs to the end of the group, alternatives included;
- ``x{,n}`` is ``x{0,n}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from toktier.errors import Refusal

GREEDY, LAZY, POSSESSIVE = "greedy", "lazy", "possessive"
_MAX_DEPTH = 100
_MAX_STACKED = 4


@dataclass(frozen=True)
class Atom:
    """One code point. ``text`` is a self-contained pattern."""

    text: str
    place: str
    literal: str | None = None
    """The code point, where the atom stands for itself and case counts."""
    unfolded: str | None = None
    """Where case is ignored: the pattern without that option."""
    predicate: str | None = None
    """Where no regex tells the set: the name of a predicate of the engine's, in `predicates`."""


@dataclass(frozen=True)
class Alt:
    branches: tuple[Node, ...]


@dataclass(frozen=True)
class Seq:
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat:
    body: Node
    low: int
    high: int | None
    kind: str


@dataclass(frozen=True)
class Atomic:
    body: Node


@dataclass(frozen=True)
class Look:
    """A lookahead over one code point: any of ``atoms`` (``negative``: none of them, or the end of the text)."""

    negative: bool
    atoms: tuple[Atom, ...]


Node = Atom | Alt | Seq | Repeat | Atomic | Look

_CLASS_ESCAPES = frozenset("dDwWsShHNO")
_CONTROL_ESCAPES = frozenset("tnrfvae")
_LITERAL_ESCAPES = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ")
_ANCHOR_ESCAPES = frozenset("bBAzZGyY")
_NUMERIC = re.compile(r"\\x\{[0-9A-Fa-f]{1,6}\}|\\x[0-7][0-9A-Fa-f]|\\u[0-9A-Fa-f]{4}")
_PROPERTY = re.compile(r"\\[pP]\{\^?[A-Za-z0-9_ -]+\}")
_INTERVAL = re.compile(r"\{(\d*)(,?)(\d*)\}")
_OPTIONS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
_NAMED = re.compile(r"\(\?(?:<[A-Za-z_]\w*>|'[A-Za-z_]\w*')")


def parse(pattern: str, where: str = "pattern") -> Node:
    """The tree of ``pattern``. Raises `Refusal` naming the construct; ``where`` leads its place."""
    parser = _Parser(pattern, where)
    node = parser.alternation("", 0)
    if parser.at < len(pattern):
        raise parser.refusal("unmatched ')'")
    return node


def parse_string(string: str, where: str = "pattern") -> Node:
    """The tree of a Split by a plain string: its characters one after the other."""
    return Seq(tuple(Atom(escape(c), f"{where}, character {i}", literal=c) for i, c in enumerate(string)))


def escape(char: str) -> str:
    """``char`` as a pattern that matches it alone."""
    return f"\\x{{{ord(char):x}}}"


class _Parser:
    def __init__(self, pattern: str, where: str) -> None:
        self.s = pattern
        self.at = 0
        self.where = where

    def refusal(self, construct: str, at: int | None = None) -> Refusal:
        return Refusal(construct, f"{self.where}, character {self.at if at is None else at}")

    def alternation(self, flags: str, depth: int) -> Node:
        """Up to the closing ``)`` or the end, which is left unread. ``flags``: those of "im" that are on."""
        if depth > _MAX_DEPTH:
            raise self.refusal("deeply nested groups")
        branches = [self.sequence(flags, depth)]
        while self.s.startswith("|", self.at):
            self.at += 1
            branches.append(self.sequence(flags, depth))
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def sequence(self, flags: str, depth: int) -> Node:
        items: list[Node] = []
        while self.at < len(self.s) and self.s[self.at] not in "|)":
            option = self.isolated_option(flags)
            if option is not None:
                items.append(self.alternation(option, depth + 1))
                break
            items.append(self.quantified(self.item(flags, depth)))
        return items[0] if len(items) == 1 else Seq(tuple(items))

    def isolated_option(self, flags: str) -> str | None:
        m = _OPTIONS.match(self.s, self.at)
        if m is None or m[3] != ")":
            return None
        flags = self.options(m, flags)
        self.at = m.end()
        return flags

    def options(self, m: re.Match[str], flags: str) -> str:
        for flag in m[1] + (m[2] or ""):
            if flag not in "im":
                raise self.refusal(f"group option {flag!r}")
        return "".join(f for f in "im" if f not in (m[2] or "") and (f in m[1] or f in flags))

    def item(self, flags: str, depth: int) -> Node:
        c = self.s[self.at]
        if c == "(":
            return self.group(flags, depth)
        if c in "*+?":
            raise self.refusal("quantifier without a target")
        if c in "^$":
            raise self.refusal(f"anchor {c}")
        if c == "{":
            raise self.refusal("brace that is no quantifier")
        start = self.at
        if c == "[":
            self.at = self.class_end()
        elif c == "\\":
            self.at = self.escape_end(start)
        else:
            self.at += 1
        text = self.s[start : self.at]
        place = f"{self.where}, character {start}"
        if c not in "[\\.":
            text = escape(c)
            if not flags:
                return Atom(text, place, literal=c)
        if not flags:
            return Atom(text, place)
        unfolded = text if flags == "i" else f"(?m:{text})"
        return Atom(f"(?{flags}:{text})", place, unfolded=unfolded if "i" in flags else None)

    def escape_end(self, start: int) -> int:
        for form in (_NUMERIC, _PROPERTY):
            if m := form.match(self.s, start):
                return m.end()
        c = self.s[start + 1 : start + 2]
        if not c:
            raise self.refusal("backslash at the end", start)
        if c in _CLASS_ESCAPES or c in _CONTROL_ESCAPES or c in _LITERAL_ESCAPES:
            return start + 2
        if c in _ANCHOR_ESCAPES:
            raise self.refusal("word boundary" if c in "bB" else f"anchor \\{c}", start)
        if c in "xu0123456789cCMo":
            raise self.refusal("back-reference, numeric or control escape", start)
        if c == "k":
            raise self.refusal("back-reference", start)
        raise self.refusal(f"escape \\{c}", start)

    def class_end(self) -> int:
        """Index after the ``]`` of the class at ``self.at``; nested classes and ``&&`` belong to its text."""
        start, at, depth = self.at, self.at, 0
        while at < len(self.s):
            c = self.s[at]
            if c == "[":
                depth += 1
                at += 2 if self.s.startswith("^", at + 1) else 1
                if self.s.startswith("]", at):
                    raise self.refusal("unescaped ] at the start of a class", at)
            elif c == "]":
                depth -= 1
                at += 1
                if not depth:
                    return at
            elif c == "\\":
                at = self.class_escape_end(at)
            else:
                at += 1
        raise self.refusal("class without an end", start)

    def class_escape_end(self, at: int) -> int:
        if self.s.startswith("\\b", at):  # backspace inside a class
            return at + 2
        if self.s[at + 1 : at + 2] in ("N", "O"):
            raise self.refusal(f"escape \\{self.s[at + 1]} in a class", at)
        return self.escape_end(at)

    def group(self, flags: str, depth: int) -> Node:
        start = self.at
        s = self.s
        wrap = None
        if s.startswith(("(?=", "(?!"), start):
            self.at += 3
            atoms = self.lookahead_atoms(self.alternation(flags, depth + 1), start)
            self.close(start)
            return Look(s[start + 2] == "!", atoms)
        if s.startswith(("(?<=", "(?<!"), start):
            raise self.refusal("look-behind")
        if s.startswith("(?>", start):
            self.at += 3
            wrap = Atomic
        elif m := _NAMED.match(s, start):
            self.at = m.end()
        elif m := _OPTIONS.match(s, start):
            flags = self.options(m, flags)
            self.at = m.end()
        elif s.startswith("(?", start) or s.startswith("(*", start):
            raise self.refusal(f"group {s[start : start + 4]}")
        else:
            self.at += 1
        body = self.alternation(flags, depth + 1)
        self.close(start)
        return wrap(body) if wrap else body

    def close(self, start: int) -> None:
        if not self.s.startswith(")", self.at):
            raise self.refusal("group without an end", start)
        self.at += 1

    def lookahead_atoms(self, body: Node, start: int) -> tuple[Atom, ...]:
        if isinstance(body, Atom):
            return (body,)
        if isinstance(body, Alt):
            return tuple(a for branch in body.branches for a in self.lookahead_atoms(branch, start))
        raise self.refusal("lookahead that is not one character", start)

    def quantified(self, node: Node) -> Node:
        stacked = 0
        while (q := self.quantifier()) is not None:
            stacked += 1
            if stacked > _MAX_STACKED:
                raise self.refusal("deeply stacked quantifiers")
            if isinstance(node, Look):
                raise self.refusal("quantified lookahead")
            low, high, suffix, interval = q
            if not interval:
                node = Repeat(node, low, high, {"": GREEDY, "?": LAZY, "+": POSSESSIVE}[suffix])
            elif suffix and low == high:  # x{n}? is (?:x{n})?
                node = Repeat(Repeat(node, low, high, GREEDY), 0, 1, GREEDY)
            else:
                node = Repeat(node, low, high, LAZY if suffix else GREEDY)
        return node

    def quantifier(self) -> tuple[int, int | None, str, bool] | None:
        """(low, high, suffix, whether it is an interval), or None where there is no quantifier."""
        c = self.s[self.at : self.at + 1]
        if c and c in "*+?":
            self.at += 1
            low, high = {"*": (0, None), "+": (1, None), "?": (0, 1)}[c]
            suffix = self.s[self.at : self.at + 1]
            if suffix not in ("?", "+"):
                suffix = ""
            self.at += len(suffix)
            return low, high, suffix, False
        if c != "{":
            return None
        m = _INTERVAL.match(self.s, self.at)
        if m is None or not (m[1] or m[3]):
            raise self.refusal("brace that is no quantifier")
        first = int(m[1] or 0)
        last = first if not m[2] else (int(m[3]) if m[3] else None)
        if last is not None and last < first:
            raise self.refusal("interval with its bounds swapped")
        self.at = m.end()
        suffix = "?" if self.s.startswith("?", self.at) else ""
        self.at += len(suffix)
        return first, last, suffix, True
