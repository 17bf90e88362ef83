"""Loops that ask whether something comes later: "is there a final answer after this message?".

``{% for x in L[loop.index:] %}{% if P(x) %}{% set ns.found = true %}{% endif %}{% endfor %}`` inside
``{% for m in L %}`` reads all that follows, in every iteration. The answer is whether the last item that satisfies P
lies at or after the slice's start. So one loop backwards over L, before, finds the place of that item, and the search
becomes a comparison of the iteration's number with it: a threshold.

Why it is exact. Only constants are assigned, so it does not matter how often. P is quiet (`guards.quiet`): it looks at
keys of x alone and cannot raise where x is a mapping, which is made sure of; so it does not matter on which items it is
evaluated, nor when.
"""

from __future__ import annotations

import copy

from jinja2 import nodes

from toktier.folding.guards import quiet
from toktier.folding.notes import noted
from toktier.folding.syntax import attribute_of, integer, is_blank, is_name, shifted, stored


def searches(loop: nodes.For, name: str) -> list[nodes.Node]:
    """Rewrites the searches in the body of ``loop`` in place; what must run before the loop. ``name`` begins the names
    of the namespaces that hold the places."""
    if not isinstance(loop.iter, nodes.Name) or not isinstance(loop.target, nodes.Name) or loop.test is not None:
        return []
    if loop.iter.name in stored([loop.target, *loop.body]):
        return []
    before: list[nodes.Node] = []
    _look(loop.body, loop.iter.name, name, before)
    return before


def _look(body: list[nodes.Node], over: str, name: str, before: list[nodes.Node]) -> None:
    for at, node in enumerate(body):
        if isinstance(node, nodes.If):
            for branch in (node.body, *([one.body for one in node.elif_]), node.else_):
                _look(branch, over, name, before)
        elif isinstance(node, nodes.For):
            start = _start(node, over)
            inner = [one for one in node.body if not is_blank(one)]
            if start is not None and len(inner) == 1 and _is_search(inner[0], node):
                assert isinstance(inner[0], nodes.If)
                place = f"{name}_{len(before)}"
                before += _pre_pass(node, inner[0].test, over, place)
                number = nodes.Add(nodes.Getattr(nodes.Name("loop", "load"), "index0", "load"), nodes.Const(start))
                last = nodes.Getattr(nodes.Name(place, "load"), "v", "load")
                test = nodes.Compare(number, [nodes.Operand("lteq", last)])
                body[at] = nodes.If(test, inner[0].body, [], []).set_lineno(node.lineno)


def _start(node: nodes.For, over: str) -> int | None:
    """c of a loop over ``over[loop.index0 + c:]``, not negative."""
    if not isinstance(node.target, nodes.Name) or node.test is not None or node.else_ or node.recursive:
        return None
    part = node.iter
    if not (isinstance(part, nodes.Getitem) and is_name(part.node, over) and isinstance(part.arg, nodes.Slice)):
        return None
    if part.arg.start is None or part.arg.stop is not None or integer(part.arg.step or nodes.Const(1)) != 1:
        return None
    start = shifted(part.arg.start, lambda one: {"index0": 0, "index": 1}.get(attribute_of(one, "loop") or ""))
    return start if start is not None and start >= 0 else None


def _is_search(node: nodes.Node, loop: nodes.For) -> bool:
    assert isinstance(loop.target, nodes.Name)
    if not isinstance(node, nodes.If) or node.elif_ or node.else_:
        return False
    constant = all(
        isinstance(one, nodes.Assign) and isinstance(one.target, nodes.NSRef) and isinstance(one.node, nodes.Const)
        for one in node.body
        if not is_blank(one)
    )
    return constant and _is_quiet(node.test, loop.target.name)


def _is_quiet(test: nodes.Node, item: str) -> bool:
    if isinstance(test, nodes.And | nodes.Or):
        return _is_quiet(test.left, item) and _is_quiet(test.right, item)
    if isinstance(test, nodes.Not):
        return _is_quiet(test.node, item)
    if isinstance(test, nodes.Compare) and len(test.ops) == 1 and test.ops[0].op in ("in", "notin"):
        return (
            isinstance(test.expr, nodes.Const) and isinstance(test.expr.value, str) and is_name(test.ops[0].expr, item)
        )
    assert isinstance(test, nodes.Expr)
    return quiet(test, item)


def _pre_pass(node: nodes.For, test: nodes.Node, over: str, place: str) -> list[nodes.Node]:
    """``place.v``: the last place of ``over`` that satisfies the test, or -1."""

    def attribute(name: str) -> nodes.Expr:
        return nodes.Getattr(nodes.Name(place, "load"), name, "load")

    values = [nodes.Keyword("v", nodes.Const(-1)), nodes.Keyword("open", nodes.Const(True))]
    made = nodes.Call(nodes.Name("namespace", "load"), [], values, None, None)
    found = [
        nodes.Assign(nodes.NSRef(place, "open"), nodes.Const(False)),
        nodes.Assign(nodes.NSRef(place, "v"), nodes.Getattr(nodes.Name("loop", "load"), "revindex0", "load")),
    ]
    done = nodes.If(nodes.Not(attribute("open")), [nodes.Break()], [], [])
    items = noted(nodes.Name(over, "load"), "mappings")
    back = nodes.Getitem(items, nodes.Slice(None, None, nodes.Const(-1)), "load")
    search = nodes.For(
        copy.deepcopy(node.target), back, [done, nodes.If(copy.deepcopy(test), [*found], [], [])], [], None, False
    )
    out: list[nodes.Node] = [nodes.Assign(nodes.Name(place, "store"), made), search]
    return [one.set_lineno(node.lineno) for one in out]
