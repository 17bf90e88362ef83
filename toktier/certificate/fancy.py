r"""Split patterns as tiktoken reads them: the fancy-regex crate, which hands what is regular to the regex crate.

Readings that differ from `oniguruma` (each is a test against tiktoken):
- ``x{n,m}+`` is possessive and ``x{n}?`` is lazy, like the other quantifiers;
- ``a(?i)b|c`` is ``a(?i:b)|(?i:c)``: an isolated option holds to the end of the group; alternatives stay as they are;
- an isolated option in a group other than ``(?:...)`` also holds behind that group (a slip of fancy-regex): refused;
- with ``x``, a blank may also stand between a quantifier and its suffix, and the two crates differ in classes and in
  what a blank is: refused, all three;
- options are ``i``, ``s`` (``.`` matches a line feed) and ``x``; case is ignored by simple folding, one character for
  one, so that no atom or run of atoms matches other than one code point each (``Atom.unfolded`` is None);
- ``$`` and ``\z`` are the end of the text: without ``m`` there is no other line end. They are read as a negative
  lookahead of any character, which has the same outcome everywhere: it holds at the end and nowhere else. Lemma 1 (ii)
  asks that a lookahead right after a does not tell b from the end of the text; this one always does, so that no a after
  which an end may be asked for is the left of a transparent seam. Nothing else changes in the proof.
"""

from __future__ import annotations

import re
from types import MappingProxyType

from toktier.certificate.nodes import GREEDY, LAZY, POSSESSIVE, Atom, Look, Node, Repeat
from toktier.certificate.oniguruma import CONTROL_ESCAPES, LITERAL_ESCAPES, OPTIONS, Parser

_NUMERIC = re.compile(r"\\[xuU]\{[0-9A-Fa-f]{1,8}\}|\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\U[0-9A-Fa-f]{8}")
_PROPERTY = re.compile(r"\\[pP](?:\{\^?[A-Za-z0-9_ =:!-]+\}|[A-Za-z])")
_NAMED = re.compile(r"\(\?(?:P?<[A-Za-z_]\w*>|'[A-Za-z_]\w*')")


def _odd(char: str) -> bool:
    """What ``x`` makes nothing, or a comment, for at least one of the two crates."""
    return char.isspace() or char in "#\u200e\u200f"


class FancyParser(Parser):
    """See the module."""

    flags = "isx"
    blanks = " \t\n\r"
    regroups = False
    escapes = frozenset("dDwWsShHNO") | CONTROL_ESCAPES | (LITERAL_ESCAPES - frozenset("<>"))
    forms = (_NUMERIC, _PROPERTY)
    named = _NAMED
    ends = MappingProxyType({"$": "(?s:.)", "\\z": "(?s:.)"})

    def __init__(self, pattern: str, where: str) -> None:
        super().__init__(pattern, where)
        self._leaky = [False]
        """Per open group: whether an isolated option in it would hold behind it too."""

    def group(self, flags: str, depth: int) -> Node:
        self._leaky.append(OPTIONS.match(self.s, self.at) is None)
        node = super().group(flags, depth)
        self._leaky.pop()
        return node

    def isolated_option(self, flags: str) -> str | None:
        start = self.at
        option = super().isolated_option(flags)
        if option is not None and self._leaky[-1]:
            raise self.refusal("option that holds behind its group", start)
        return option

    def atom(self, text: str, flags: str, place: str) -> Atom:
        return Atom(f"(?{flags}:{text})", place)

    def skip(self, flags: str) -> None:
        super().skip(flags)
        if "x" in flags and (c := self.s[self.at : self.at + 1]) and _odd(c):
            raise self.refusal("white space that the two crates read in two ways")

    def item(self, flags: str, depth: int) -> Node:
        start = self.at
        node = super().item(flags, depth)
        if "x" in flags and self.s[start] == "[" and any(map(_odd, self.s[start : self.at])):
            raise self.refusal("blank or # in a class under (?x)", start)
        return node

    def quantified(self, node: Node, flags: str) -> Node:
        q = self.quantifier(flags)
        if q is None:
            return node
        if isinstance(node, Look):
            raise self.refusal("quantified lookahead or anchor")
        low, high, suffix, _ = q
        if not suffix and self.s.startswith("+", self.at):  # the base reads no + after an interval
            suffix = "+"
            self.at += 1
        self.skip(flags)
        if self.s[self.at : self.at + 1] in ("*", "+", "?", "{"):
            raise self.refusal("stacked quantifiers")
        return Repeat(node, low, high, {"": GREEDY, "?": LAZY, "+": POSSESSIVE}[suffix])
