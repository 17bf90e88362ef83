"""Loops that ask their ``loop`` for nothing but its number run without it.

Jinja makes a `LoopContext` for a loop whose body mentions ``loop``: a Python object whose methods run before every
iteration. `count_loops` lets a loop that reads only `_COUNTS` of it number its items itself.

Why it changes nothing. ``enumerate(L)`` takes items of L when Jinja's object takes them, raises what ``iter(L)`` or the
items raise, and numbers them from 0 as the object does. A loop stays as it is if its ``loop`` occurs in any other way:
by itself, with another attribute, in a macro, in a test or an ``else`` that may have another ``loop``, or where the
template hands over what it has (``include``). The number has a name that does not occur in the template.
"""

from __future__ import annotations

from collections.abc import Iterable

import jinja2
from jinja2 import nodes
from jinja2.visitor import NodeTransformer

_COUNTED = "\0counted"
_COUNTS = frozenset({"index0", "index", "first"})
_DEFERRED = (nodes.Macro, nodes.CallBlock)
"""What may run when the number is another."""
_HAND_OVER = (
    *(nodes.Block, nodes.Include, nodes.Import, nodes.FromImport),
    *(nodes.ContextReference, nodes.DerivedContextReference),
)
"""What gets all names that there are."""


def count_loops(env: jinja2.Environment, tree: nodes.Template, taken: str) -> None:
    """Rewrites loops in ``tree``, which is to be compiled in ``env``. ``taken``: text that has all names in it."""
    if any(reference.name == "loop" for reference in tree.find_all(nodes.NSRef)):
        return  # what that writes to depends on which loops around it have an object
    env.filters[_COUNTED] = enumerate
    prefix = "counted"
    while prefix in taken:
        prefix += "_"
    for number, loop in enumerate(list(tree.find_all(nodes.For))):
        if loop.recursive or loop.test is not None or _mentions(loop.else_):
            continue
        if _counts(loop.body):
            name = f"{prefix}_{number}"
            loop.iter = nodes.Filter(loop.iter, _COUNTED, [], [], None, None)
            loop.target = nodes.Tuple([nodes.Name(name, "store"), loop.target], "store")
            loop.body = [_Numbered(name).visit(node) for node in loop.body]
            loop.set_lineno(loop.lineno)


def _mentions(roots: Iterable[nodes.Node]) -> bool:
    return any(
        (isinstance(root, nodes.Name) and root.name == "loop") or _mentions(root.iter_child_nodes()) for root in roots
    )


def _counts(roots: Iterable[nodes.Node]) -> int | None:
    """How often the loop with this body (or part of it) is asked for its number; None if for anything else."""
    found = 0
    for node in roots:
        if _is_count(node):
            found += 1
            continue
        inner: Iterable[nodes.Node] = node.iter_child_nodes()
        if isinstance(node, nodes.For):
            rest = [node.target, *node.else_, *([node.test] if node.test is not None else [])]
            if node.recursive or _mentions(rest):
                return None
            inner = [node.iter]  # in the body it is the inner loop's
        elif isinstance(node, nodes.Name):
            if node.name == "loop":
                return None
        elif isinstance(node, _HAND_OVER) or (isinstance(node, _DEFERRED) and _mentions([node])):
            return None
        more = _counts(inner)
        if more is None:
            return None
        found += more
    return found


def _is_count(node: nodes.Node) -> bool:
    return (
        isinstance(node, nodes.Getattr)
        and node.attr in _COUNTS
        and isinstance(node.node, nodes.Name)
        and node.node.name == "loop"
    )


class _Numbered(NodeTransformer):
    def __init__(self, name: str) -> None:
        self._name = name

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = self.visit(node.iter)
        return node

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:
        if not _is_count(node):
            return self.generic_visit(node)
        number = nodes.Name(self._name, "load")
        if node.attr == "index0":
            return number
        if node.attr == "index":
            return nodes.Add(number, nodes.Const(1))
        return nodes.Compare(number, [nodes.Operand("eq", nodes.Const(0))])
