"""Look-ups by identity: nested loops that search a list for the one item that belongs to this iteration.

``{% for x in messages %}{% for c in x.tool_calls %}{% if c.id == m.tool_call_id %}...`` reads the whole list in every
iteration, although it does something only where the IDs agree. `lookup` recognises such a loop and makes a *collector*
of it: the same body, down to the comparison, which puts down the other side of it instead of comparing. From what it
collects, item by item, an index is kept (`indexes`), and the loop runs over the items that the index names.

Why it is exact. A loop qualifies if, on the way to every comparison with the key, its body has only tests, loops and
assignments that depend on the item alone, and does nothing besides. On an item whose collected values do not hold the
key, the template evaluates just what the collector has evaluated, finds every comparison false, and does nothing. The
collector runs once on every item, so what would raise there raises (and the request is rendered in full). Values that
are not strings never equal a key, which is one. The key is asked for once, where the template asks for it with every
item, so it must stay what it is (`_stays`): it has no name in it that the loop assigns to, a loop that may write to a
namespace of the key's does not qualify, and asking does nothing by itself (a macro may write, a filter may take items
of an iterator). ``loop`` does not occur at the loop's own level, so that leaving items out does not show.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass

from jinja2 import nodes

from toktier.folding.allowed import FILTERS, HOISTED_FILTERS, HOISTED_TESTS, NAMING, SPECIAL_NAMES, TESTS
from toktier.folding.notes import noted
from toktier.folding.syntax import both, conjuncts, everywhere, is_blank, own, stored

_INNER = (
    *(
        nodes.Const,
        nodes.Name,
        nodes.Getattr,
        nodes.Getitem,
        nodes.And,
        nodes.Or,
        nodes.Not,
        nodes.Compare,
        nodes.Operand,
    ),
    *(nodes.Test, nodes.Filter, nodes.List, nodes.Tuple, nodes.CondExpr, nodes.Add, nodes.Concat),
)
_PURE = (FILTERS - NAMING.keys()) | TESTS


@dataclass(frozen=True, slots=True)
class Lookup:
    """``key``: what items are searched for. ``collector``: the body of a macro of ``target``, the loop's."""

    key: nodes.Expr
    target: str
    collector: list[nodes.Node]


class _NoLookup(Exception):
    pass


def lookup(loop: nodes.For, written: frozenset[str]) -> Lookup | None:
    """What the loop searches for, if it does nothing else. ``written``: names of written namespaces."""
    if not isinstance(loop.target, nodes.Name) or loop.test is not None or loop.else_ or loop.recursive:
        return None
    if loop.target.name in SPECIAL_NAMES:
        return None
    if _mentions_loop(loop.body) or any(own(loop.body, nodes.Break)):
        return None  # (a loop that breaks at its find reads no further anyway)
    finder = _Finder()
    try:
        body = finder.collected(loop.body, frozenset({loop.target.name}))
    except _NoLookup:
        return None
    if finder.key is None or not _stays(finder.key, stored(loop.body) | (written if _may_write(loop.body) else set())):
        return None
    return Lookup(copy.deepcopy(finder.key), loop.target.name, body)


def _stays(key: nodes.Expr, changing: frozenset[str]) -> bool:
    """Whether a key is the same all through the loop, however often it is asked for. ``changing``: names that may be
    something else in between."""
    for one in everywhere([key], nodes.Node):
        if not isinstance(one, _INNER) or (isinstance(one, nodes.Name) and one.name in changing):
            return False
        if isinstance(one, nodes.Filter) and one.name not in HOISTED_FILTERS:
            return False
        if isinstance(one, nodes.Test) and one.name not in HOISTED_TESTS:
            return False
        if isinstance(one, nodes.Operand) and one.op in ("in", "notin"):
            return False
    return True


def _may_write(body: Iterable[nodes.Node]) -> bool:
    """Whether it may write to a namespace: itself, or in a macro."""
    return any(isinstance(one, nodes.NSRef | nodes.Call) for one in everywhere(body, nodes.Node))


def _names(node: nodes.Node) -> Iterable[nodes.Name]:
    return everywhere([node], nodes.Name)


def _mentions_loop(body: Iterable[nodes.Node]) -> bool:
    """Whether ``loop`` of the loop with this body occurs."""
    for node in body:
        if isinstance(node, nodes.Name) and node.name == "loop":
            return True
        inner = [node.iter] if isinstance(node, nodes.For) else node.iter_child_nodes()
        if _mentions_loop(inner):
            return True
    return False


class _Finder:
    def __init__(self) -> None:
        self.key: nodes.Expr | None = None

    def collected(self, body: list[nodes.Node], inner: frozenset[str]) -> list[nodes.Node]:
        """``inner``: names that depend on the item alone."""
        out: list[nodes.Node] = []
        for node in body:
            if is_blank(node):
                continue
            if isinstance(node, nodes.Assign) and isinstance(node.target, nodes.Name) and _is_inner(node.node, inner):
                inner = inner | {node.target.name}
                out.append(copy.deepcopy(node))
            elif isinstance(node, nodes.If) and not node.elif_ and not node.else_:
                out.append(self._tested(node, inner))
            elif isinstance(node, nodes.For) and self._is_plain(node) and _is_inner(node.iter, inner):
                assert isinstance(node.target, nodes.Name)
                body = self.collected(node.body, inner | {node.target.name})
                out.append(nodes.For(copy.deepcopy(node.target), copy.deepcopy(node.iter), body, [], None, False))
            else:
                raise _NoLookup
        return out

    def _is_plain(self, node: nodes.For) -> bool:
        return isinstance(node.target, nodes.Name) and node.test is None and not node.else_ and not node.recursive

    def _tested(self, node: nodes.If, inner: frozenset[str]) -> nodes.Node:
        before: list[nodes.Expr] = []
        for test in conjuncts(node.test):
            value = self._compared(test, inner)
            if value is not None:
                found = nodes.ExprStmt(noted(copy.deepcopy(value), "collect"))
                return nodes.If(both(before), [found], [], []) if before else found
            if not _is_inner(test, inner):
                raise _NoLookup
            before.append(copy.deepcopy(test))
        return nodes.If(both(before), self.collected(node.body, inner), [], [])

    def _compared(self, test: nodes.Expr, inner: frozenset[str]) -> nodes.Expr | None:
        """The item's side where ``test`` compares it with the key."""
        if not isinstance(test, nodes.Compare) or len(test.ops) != 1 or test.ops[0].op != "eq":
            return None
        left, right = test.expr, test.ops[0].expr
        for value, key in ((left, right), (right, left)):
            names = {name.name for name in _names(key)}
            if names and not names & inner and _is_inner(value, inner) and any(_names(value)):
                if self.key is None:
                    self.key = key
                return value if repr(key) == repr(self.key) else None
        return None


def _is_inner(node: nodes.Node, inner: frozenset[str]) -> bool:
    """Made of names that depend on the item alone, without calls."""
    for one in everywhere([node], nodes.Node):
        if not isinstance(one, _INNER):
            return False
        if isinstance(one, nodes.Name) and one.name not in inner:
            return False
        if isinstance(one, nodes.Filter | nodes.Test) and one.name not in _PURE:
            return False
    return True
