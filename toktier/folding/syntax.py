"""Small questions about Jinja's syntax trees."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from jinja2 import nodes

T = TypeVar("T", bound=nodes.Node)


def everywhere(roots: Iterable[nodes.Node], kind: type[T]) -> Iterator[T]:
    """All nodes of a kind in ``roots``, the roots themselves included."""
    for root in roots:
        if isinstance(root, kind):
            yield root
        yield from root.find_all(kind)


def stored(roots: Iterable[nodes.Node]) -> frozenset[str]:
    """Every name that is bound somewhere in ``roots``: assigned, unpacked to, a loop's target, a parameter."""
    return frozenset(name.name for name in everywhere(roots, nodes.Name) if name.ctx != "load")


def integer(node: nodes.Node | None) -> int | None:
    """The value of an integer literal, or None."""
    if isinstance(node, nodes.Const) and type(node.value) is int:
        return node.value
    if isinstance(node, nodes.Neg):
        value = integer(node.node)
        return None if value is None else -value
    return None


def shifted(node: nodes.Node, base: Callable[[nodes.Node], int | None]) -> int | None:
    """c where ``node`` is B + c for a B that ``base`` knows (as B = its answer); else None."""
    known = base(node)
    if known is not None:
        return known
    if isinstance(node, nodes.Add | nodes.Sub):
        left, constant = shifted(node.left, base), integer(node.right)
        if left is not None and constant is not None:
            return left + constant if isinstance(node, nodes.Add) else left - constant
    if isinstance(node, nodes.Add):
        right, constant = shifted(node.right, base), integer(node.left)
        if right is not None and constant is not None:
            return right + constant
    return None


def attribute_of(node: nodes.Node | None, name: str) -> str | None:
    """The attribute where ``node`` is ``name.attribute`` (or ``name['attribute']``); else None."""
    if isinstance(node, nodes.Getattr) and is_name(node.node, name):
        return node.attr
    if isinstance(node, nodes.Getitem) and is_name(node.node, name) and isinstance(node.arg, nodes.Const):
        return node.arg.value if isinstance(node.arg.value, str) else None
    return None


def is_name(node: nodes.Node | None, name: str) -> bool:
    return isinstance(node, nodes.Name) and node.name == name


def length_of(node: nodes.Node | None) -> nodes.Expr | None:
    """X where ``node`` is ``X | length``."""
    if isinstance(node, nodes.Filter) and node.name in ("length", "count") and not node.args and not node.kwargs:
        return node.node
    return None


def backwards(node: nodes.Node) -> nodes.Expr | None:
    """X where ``node`` is ``X[::-1]`` or ``X | reverse``."""
    if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
        part = node.arg
        if part.start is None and part.stop is None and part.step is not None and integer(part.step) == -1:
            return node.node
    if isinstance(node, nodes.Filter) and node.name == "reverse" and not node.args and not node.kwargs:
        return node.node
    return None


def range_arguments(node: nodes.Node) -> list[nodes.Expr] | None:
    """The arguments where ``node`` is a call of ``range`` with positional arguments only."""
    if (
        isinstance(node, nodes.Call)
        and is_name(node.node, "range")
        and not node.kwargs
        and node.dyn_args is None
        and node.dyn_kwargs is None
        and 1 <= len(node.args) <= 3
    ):
        return node.args
    return None


def conjuncts(test: nodes.Node) -> list[nodes.Expr]:
    """``a and b and c`` as [a, b, c]."""
    if isinstance(test, nodes.And):
        return [*conjuncts(test.left), *conjuncts(test.right)]
    assert isinstance(test, nodes.Expr)
    return [test]


def both(parts: list[nodes.Expr]) -> nodes.Expr:
    """The reverse of `conjuncts`, for at least one part."""
    made = parts[0]
    for part in parts[1:]:
        made = nodes.And(made, part)
    return made


def own(body: Iterable[nodes.Node], kind: type[T]) -> Iterator[T]:
    """The `Break` or `Continue` nodes that belong to the loop whose body this is."""
    for node in body:
        if isinstance(node, kind):
            yield node
        elif not isinstance(node, nodes.For | nodes.Macro | nodes.CallBlock):
            yield from own(node.iter_child_nodes(), kind)


def is_blank(node: nodes.Node) -> bool:
    """Output of nothing."""
    return isinstance(node, nodes.Output) and all(isinstance(x, nodes.TemplateData) and not x.data for x in node.nodes)


def described(node: nodes.Node) -> str:
    """Roughly the source of an expression, for people."""
    match node:
        case nodes.Name():
            return node.name
        case nodes.Const():
            return repr(node.value)
        case nodes.Getattr():
            return f"{described(node.node)}.{node.attr}"
        case nodes.Slice():
            parts = [node.start, node.stop] + ([node.step] if node.step is not None else [])
            return ":".join("" if part is None else described(part) for part in parts)
        case nodes.Getitem():
            return f"{described(node.node)}[{described(node.arg)}]"
        case nodes.Filter():
            inner = "" if node.node is None else described(node.node)
            given = f"({', '.join(map(described, node.args))})" if node.args else ""
            return f"{inner} | {node.name}{given}"
        case nodes.Call():
            return f"{described(node.node)}({', '.join(map(described, node.args))})"
        case nodes.Neg():
            return f"-{described(node.node)}"
        case nodes.Not():
            return f"not {described(node.node)}"
        case nodes.BinExpr():
            return f"{described(node.left)} {node.operator} {described(node.right)}"
        case nodes.Compare():
            signs = {"eq": "==", "ne": "!=", "gt": ">", "gteq": ">=", "lt": "<", "lteq": "<=", "notin": "not in"}
            rest = " ".join(f"{signs.get(part.op, part.op)} {described(part.expr)}" for part in node.ops)
            return f"{described(node.expr)} {rest}"
        case nodes.Test():
            return f"{described(node.node)} is {node.name}"
        case nodes.Tuple() | nodes.List():
            return f"({', '.join(map(described, node.items))})"
        case _:
            return f"<{type(node).__name__.lower()}>"
