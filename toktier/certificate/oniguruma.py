r"""Split patterns as `tokenizers` reads them: Oniguruma, Ruby syntax.

Readings that differ from other dialects (each is a test against the engine):
- ``x{n,m}+`` repeats the group ``(?:x{n,m})``, it is not possessive; ``x{n}?`` is ``(?:x{n})?``, it is not lazy;
- ``a(?i)b|c`` is ``a(?i:b|c)``: an isolated option runs to the end of the group, alternatives included;
- ``x{,n}`` is ``x{0,n}``;
- ``$`` is the end of a line, with or without options: ``(?![^\n])``; ``\z`` is the end of the text. Both are read as
  what they are, a negative lookahead of one character;
- with ``x``, blanks and comments between tokens are nothing: ``a +`` is ``a+``, but ``a+ +`` is ``(?:a+)+``; in a class
  they stand for themselves.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from toktier.certificate.nodes import (
    GREEDY,
    LAZY,
    POSSESSIVE,
    Alt,
    Atom,
    Atomic,
    Look,
    Node,
    Repeat,
    Seq,
    escape,
)
from toktier.errors import Refusal

_MAX_DEPTH = 100
_MAX_STACKED = 4
_CLASS_ESCAPES = frozenset("dDwWsShHNO")
CONTROL_ESCAPES = frozenset("tnrfvae")
LITERAL_ESCAPES = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ")
_ANCHOR_ESCAPES = frozenset("bBAzZGyY")
_NUMERIC = re.compile(r"\\x\{[0-9A-Fa-f]{1,6}\}|\\x[0-7][0-9A-Fa-f]|\\u[0-9A-Fa-f]{4}")
_PROPERTY = re.compile(r"\\[pP]\{\^?[A-Za-z0-9_ -]+\}")
_INTERVAL = re.compile(r"\{(\d*)(,?)(\d*)\}")
OPTIONS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]*))?([:)])")
_NAMED = re.compile(r"\(\?(?:<[A-Za-z_]\w*>|'[A-Za-z_]\w*')")
_COMMENT = re.compile(r"\(\?#[^)\\]*\)")
_LINE_COMMENT = re.compile(r"#[^\n]*\n?")


class Parser:
    """One pass over a pattern. `fancy.FancyParser` overrides what the other dialect reads differently."""

    flags = "imx"
    """Options that are known; they are passed down as the string of those that are on."""
    blanks = " \t\n\r\f"
    """What ``x`` skips."""
    regroups = True
    """Whether an isolated option takes the alternatives after it into a group of its own."""
    escapes = _CLASS_ESCAPES | CONTROL_ESCAPES | LITERAL_ESCAPES
    """Escapes of one character that stand for one code point."""
    forms = (_NUMERIC, _PROPERTY)
    """Longer ones."""
    named = _NAMED
    ends = MappingProxyType({"$": r"[^\n]", "\\z": "(?m:.)"})
    """Anchors that hold where no such character follows."""

    def __init__(self, pattern: str, where: str) -> None:
        self.s = pattern
        self.at = 0
        self.where = where

    def refusal(self, construct: str, at: int | None = None) -> Refusal:
        return Refusal(construct, f"{self.where}, character {self.at if at is None else at}")

    def parse(self) -> Node:
        """The tree of the whole pattern. Raises `Refusal`."""
        node = self.alternation("", 0)
        if self.at < len(self.s):
            raise self.refusal("unmatched ')'")
        return node

    def alternation(self, flags: str, depth: int) -> Node:
        """Up to the closing ``)`` or the end, which is left unread."""
        if depth > _MAX_DEPTH:
            raise self.refusal("deeply nested groups")
        branch, flags = self.sequence(flags, depth)
        branches = [branch]
        while self.s.startswith("|", self.at):
            self.at += 1
            branch, flags = self.sequence(flags, depth)
            branches.append(branch)
        return branches[0] if len(branches) == 1 else Alt(tuple(branches))

    def sequence(self, flags: str, depth: int) -> tuple[Node, str]:
        """Up to the next ``|`` or the end of the group, and the options with which the next branch begins."""
        items: list[Node] = []
        self.skip(flags)
        while self.at < len(self.s) and self.s[self.at] not in "|)":
            option = self.isolated_option(flags)
            if option is None:
                items.append(self.quantified(self.item(flags, depth), flags))
            elif self.regroups:
                items.append(self.alternation(option, depth + 1))
                break
            else:
                flags = option
            self.skip(flags)
        return (items[0] if len(items) == 1 else Seq(tuple(items))), flags

    def skip(self, flags: str) -> None:
        """Comments, and with ``x`` blanks: what stands between two tokens without being one."""
        while True:
            if "x" in flags and self.s.startswith(tuple(self.blanks), self.at):
                self.at += 1
            elif m := _COMMENT.match(self.s, self.at) or ("x" in flags and _LINE_COMMENT.match(self.s, self.at)):
                self.at = m.end()
            else:
                return

    def isolated_option(self, flags: str) -> str | None:
        m = OPTIONS.match(self.s, self.at)
        if m is None or m[3] != ")":
            return None
        flags = self.options(m, flags)
        self.at = m.end()
        return flags

    def options(self, m: re.Match[str], flags: str) -> str:
        for flag in m[1] + (m[2] or ""):
            if flag not in self.flags:
                raise self.refusal(f"group option {flag!r}")
        return "".join(f for f in self.flags if f not in (m[2] or "") and (f in m[1] or f in flags))

    def item(self, flags: str, depth: int) -> Node:
        c = self.s[self.at]
        if c == "(":
            return self.group(flags, depth)
        if c in "*+?":
            raise self.refusal("quantifier without a target")
        if (anchor := self.anchor()) is not None:
            return anchor
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
            if flags in ("", "x"):
                return Atom(text, place, literal=c)
        meant = flags.replace("x", "")  # it changes how a pattern is read, not what an atom matches
        return self.atom(text, meant, place) if meant else Atom(text, place)

    def anchor(self) -> Node | None:
        """The lookahead that an anchor at ``self.at`` stands for, read; None where there is none. Refuses others."""
        for end, follower in self.ends.items():
            if self.s.startswith(end, self.at):
                atom = Atom(follower, f"{self.where}, character {self.at}")
                self.at += len(end)
                return Look(True, (atom,))
        if self.s[self.at] == "^":
            raise self.refusal("anchor ^")
        return None

    def atom(self, text: str, flags: str, place: str) -> Atom:
        unfolded = text if flags == "i" else f"(?m:{text})"
        return Atom(f"(?{flags}:{text})", place, unfolded=unfolded if "i" in flags else None)

    def escape_end(self, start: int) -> int:
        for form in self.forms:
            if m := form.match(self.s, start):
                return m.end()
        c = self.s[start + 1 : start + 2]
        if not c:
            raise self.refusal("backslash at the end", start)
        if c in self.escapes:
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
        elif m := self.named.match(s, start):
            self.at = m.end()
        elif m := OPTIONS.match(s, start):
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

    def quantified(self, node: Node, flags: str) -> Node:
        stacked = 0
        while (q := self.quantifier(flags)) is not None:
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

    def quantifier(self, flags: str) -> tuple[int, int | None, str, bool] | None:
        """(low, high, suffix, whether it is an interval), or None where there is no quantifier."""
        self.skip(flags)
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
        first, last = self.interval()
        suffix = "?" if self.s.startswith("?", self.at) else ""
        self.at += len(suffix)
        return first, last, suffix, True

    def interval(self) -> tuple[int, int | None]:
        """The bounds of the ``{n,m}`` at ``self.at``, read."""
        m = _INTERVAL.match(self.s, self.at)
        if m is None or not (m[1] or m[3]):
            raise self.refusal("brace that is no quantifier")
        first = int(m[1] or 0)
        last = first if not m[2] else (int(m[3]) if m[3] else None)
        if last is not None and last < first:
            raise self.refusal("interval with its bounds swapped")
        self.at = m.end()
        return first, last
