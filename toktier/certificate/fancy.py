r"""Split patterns as tiktoken reads them: the fancy-regex crate, which hands what is regular to the regex crate.

Readings that differ from `oniguruma` (each is a test against tiktoken):
- ``x{n,m}+`` is possessive and ``x{n}?`` is lazy, like the other quantifiers;
- ``a(?i)b|c`` is ``a(?i:b)|(?i:c)``: an isolated option holds to the end of the group; alternatives stay as they are;
- an isolated option in a group other than ``(?:...)`` also holds behind that group (a slip of fancy-regex): refused;
- options are ``i`` and ``s`` (``.`` matches a line feed); case is ignored by simple folding, one character for one, so
  that no atom or run of atoms matches other than one code point each (``Atom.unfolded`` is None);
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


class FancyParser(Parser):
    """See the module."""

    flags = "is"
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

    def quantified(self, node: Node) -> Node:
        q = self.quantifier()
        if q is None:
            return node
        if isinstance(node, Look):
            raise self.refusal("quantified lookahead or anchor")
        low, high, suffix, _ = q
        if not suffix and self.s.startswith("+", self.at):  # the base reads no + after an interval
            suffix = "+"
            self.at += 1
        if self.s[self.at : self.at + 1] in ("*", "+", "?", "{"):
            raise self.refusal("stacked quantifiers")
        return Repeat(node, low, high, {"": GREEDY, "?": LAZY, "+": POSSESSIVE}[suffix])
