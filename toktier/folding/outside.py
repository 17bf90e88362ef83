"""Which expressions of a body are made of what is bound outside of it alone.

Such an expression can be evaluated before the loop as well as in it. It has the same value all through the loop, since
nothing in the body assigns to its names or writes the attributes in it; and evaluating it consumes no iterator and
writes nothing, since it has operators, attributes, items and a few filters and tests in it, and no call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jinja2 import nodes

from toktier.folding.allowed import HOISTED_FILTERS, HOISTED_TESTS, SPECIAL_NAMES

_OPERATORS = (nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod, nodes.And, nodes.Or)


@dataclass(frozen=True, slots=True)
class Outside:
    """Of one body or macro."""

    stored: frozenset[str]
    """Names that it binds somewhere."""
    macros: frozenset[str]
    written: frozenset[str]
    """Names of namespaces that the template writes to."""
    carried: frozenset[tuple[str, str]]
    """(namespace, attribute) that the loop may write; in a macro, that any loop or macro may."""
    own: bool
    """A loop's body, which has a ``loop`` of its own."""

    def holds(self, node: Any, bound: frozenset[str]) -> bool:
        """Whether ``node`` can be evaluated outside as well. ``bound``: names bound around it, inside."""

        def free(one: Any) -> bool:
            return one is None or self.holds(one, bound)

        match node:
            case nodes.TemplateData():
                return False
            case nodes.Const():
                return True
            case nodes.Name():
                return self.is_free(node, bound)
            case nodes.Getattr() if self.is_attribute(node):
                name = node.node.name  # type: ignore[attr-defined]
                return name not in self.stored | bound and (name, node.attr) not in self.carried
            case nodes.Getitem() if self.is_attribute(node):
                return False
            case nodes.Getattr():
                return free(node.node)
            case nodes.Getitem():
                part = node.arg
                if isinstance(part, nodes.Slice):
                    return free(node.node) and all(map(free, (part.start, part.stop, part.step)))
                return free(node.node) and free(part)
            case nodes.Not() | nodes.Neg():
                return free(node.node)
            case nodes.Concat():
                return all(map(free, node.nodes))
            case nodes.Compare():
                return free(node.expr) and all(x.op not in ("in", "notin") and free(x.expr) for x in node.ops)
            case nodes.Filter():
                plain = node.node is not None and not node.kwargs and not node.dyn_args and not node.dyn_kwargs
                return plain and node.name in HOISTED_FILTERS and free(node.node) and all(map(free, node.args))
            case nodes.Test():
                plain = not node.kwargs and not node.dyn_args and not node.dyn_kwargs
                return plain and node.name in HOISTED_TESTS and free(node.node) and all(map(free, node.args))
            case _:
                return isinstance(node, _OPERATORS) and free(node.left) and free(node.right)

    def is_free(self, node: nodes.Name, bound: frozenset[str]) -> bool:
        taken = bound | self.stored | self.macros | self.written | SPECIAL_NAMES
        return node.ctx == "load" and node.name not in taken and not (self.own and node.name == "loop")

    def is_attribute(self, node: nodes.Node) -> bool:
        """``name.attribute`` of a namespace that is written."""
        return (
            isinstance(node, nodes.Getattr | nodes.Getitem)
            and isinstance(node.node, nodes.Name)
            and node.node.name in self.written
        )
