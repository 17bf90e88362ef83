"""Rewrites the body of a loop (or of a macro) so that it tells what it reads.

The body stays what it is: every expression is evaluated where and when the template evaluates it, with the same value.
Only, what comes from outside the iteration passes through a function of `tracker` that notes it. These functions are
filters whose names no template can write (they begin with a zero byte).

Where an expression may come from:

1. The item, names bound in the body, constants: nothing to note. They are a function of the item and of what is noted.
2. ``loop``: its attributes become filters that note which neighbours they depend on (`_OF_LOOP`).
3. Names bound outside: the largest expression made of them alone is noted with its value (`VALUE`), unless it is a list
   of which only positions are read (`LIST`), or a number that the iteration's own number is compared with
   (`THRESHOLD`).
4. Attributes of namespaces that the loop itself writes: part of the state that is carried between iterations.
5. A name that the body assigns to may be read before it is assigned to: then it has its outer value (`OUTER`).
6. A macro's parameters come from its caller, where they were noted; except that a list is passed on unread, and noted
   in the macro when it is read there (`Lists`).

Whatever is none of these raises `NotThisLoop`. What an expression may be made of stands in `allowed`.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import nodes

from toktier.folding.allowed import EXPRESSIONS, FILTERS, NAMING, PARTS, SPECIAL_NAMES, STATEMENTS, TESTS
from toktier.folding.notes import ANY_LIST, Lists, NotThisLoop, noted
from toktier.folding.outside import Outside
from toktier.folding.reasons import Kept
from toktier.folding.scans import lookup
from toktier.folding.sites import Part, Read, Sites
from toktier.folding.syntax import (
    attribute_of,
    described,
    everywhere,
    integer,
    is_name,
    length_of,
    range_arguments,
    shifted,
    stored,
)

_OF_LOOP = frozenset(
    {"index0", "index", "first", "last", "length", "revindex", "revindex0", "previtem", "nextitem", "depth", "depth0"}
)
_ORDERS = frozenset({"lt", "lteq", "gt", "gteq", "eq", "ne"})


class Rewriter:
    """For one body or macro. ``part`` fills up as it goes."""

    def __init__(
        self,
        sites: Sites,
        macros: frozenset[str],
        written: frozenset[str],
        lists: Lists,
        *,
        body: Sequence[nodes.Node],
        carried: frozenset[tuple[str, str]],
        own: bool,
        parameters: frozenset[str] = frozenset(),
        functions: frozenset[str] = frozenset(),
    ) -> None:
        """``macros``, ``written``, ``carried``, ``own``: as in `Outside`. ``parameters``: those of this macro that may
        be given a list unread. ``functions``: every filter and test that exists; others raise when they are reached."""
        self.part = Part()
        self._outside = Outside(stored(body), macros, written, carried, own)
        self._sites = sites
        self._lists = lists
        self._parameters = parameters
        self._functions = functions
        self._target: str | None = None
        self._ranged = False
        self._reversed: nodes.Expr | None = None
        self._backwards = False

    # --- entries ---------------------------------------------------------------------------------------------------

    def loop(self, loop: nodes.For, over: nodes.Expr | None) -> None:
        """Rewrites the body of ``loop`` in place. ``over``: X of a loop over ``X[::-1]``, else None."""
        assert isinstance(loop.target, nodes.Name)
        if loop.target.name in SPECIAL_NAMES:
            raise NotThisLoop(Kept.SPECIAL_NAME, loop.target.name)
        self._target = loop.target.name
        self._ranged = range_arguments(loop.iter) is not None and loop.target.name not in self._outside.stored
        self._backwards = over is not None
        self._reversed = None if is_name(over, self._target) else over
        self._body(loop.body, frozenset({loop.target.name}))

    def macro(self, macro: nodes.Macro) -> None:
        """Rewrites a macro in place."""
        bound = frozenset(argument.name for argument in macro.args)
        macro.defaults = [self._expr(value, bound) for value in macro.defaults]
        self._body(macro.body, bound | {"varargs", "kwargs", "caller"})

    # --- statements ------------------------------------------------------------------------------------------------

    def _body(self, body: list[nodes.Node], bound: frozenset[str]) -> None:
        for node in body:
            self._statement(node, bound)

    def _statement(self, node: nodes.Node, bound: frozenset[str]) -> None:
        if not isinstance(node, STATEMENTS):
            raise NotThisLoop(Kept.SYNTAX, type(node).__name__)
        if isinstance(node, nodes.Output):
            node.nodes = [self._expr(one, bound) for one in node.nodes]
        elif isinstance(node, nodes.ExprStmt):
            node.node = self._expr(node.node, bound)
        elif isinstance(node, nodes.Assign):
            node.node = self._expr(node.node, bound)
            self._assigned(node.target)
        elif isinstance(node, nodes.AssignBlock):
            if node.filter is not None:
                node.filter = self._filter(node.filter, bound)
            self._assigned(node.target)
            self._body(node.body, bound)
        elif isinstance(node, nodes.If):
            node.test = self._expr(node.test, bound)
            for branch in (node.body, node.elif_, node.else_):
                self._body(branch, bound)  # type: ignore[arg-type]
        elif isinstance(node, nodes.With):
            node.values = [self._expr(value, bound) for value in node.values]
            self._body(node.body, bound | stored(node.targets))
        elif isinstance(node, nodes.FilterBlock):
            node.filter = self._filter(node.filter, bound)
            self._body(node.body, bound)
        elif isinstance(node, nodes.CallBlock):
            call = self._call(node.call, bound)
            if not isinstance(call, nodes.Call):
                raise NotThisLoop(Kept.LOOP_OBJECT, "a block for loop.cycle")
            node.call = call
            inside = bound | {argument.name for argument in node.args}
            node.defaults = [self._expr(value, inside) for value in node.defaults]
            self._body(node.body, inside)
        elif isinstance(node, nodes.For):
            self._nested(node, bound)

    def _assigned(self, target: nodes.Node) -> None:
        for reference in everywhere([target], nodes.NSRef):
            self.part.writes.add((reference.name, reference.attr))

    def _nested(self, node: nodes.For, bound: frozenset[str]) -> None:
        if node.recursive:
            raise NotThisLoop(Kept.RECURSIVE, f"line {node.lineno}")
        rest = [*([node.test] if node.test is not None else []), *node.else_]
        if self._outside.own and "loop" not in bound and any(x.name == "loop" for x in everywhere(rest, nodes.Name)):
            raise NotThisLoop(Kept.LOOP_OBJECT, f"line {node.lineno}")
        node.iter = self._looked_up(node, bound) or self._iterated(node.iter, bound)
        inside = bound | stored([node.target]) | {"loop"}
        if node.test is not None:
            node.test = self._expr(node.test, bound | stored([node.target]))
        self._body(node.body, inside)
        self._body(node.else_, bound)

    def _looked_up(self, node: nodes.For, bound: frozenset[str]) -> nodes.Expr | None:
        """The iterable of a nested loop that searches a list for a key."""
        site = self._list(node.iter, bound)
        found = None if site is None else lookup(node, self._outside.written)
        if found is None:
            return None
        # The key is evaluated in another scope than before.
        if any(name.name in self._outside.stored - bound for name in everywhere([found.key], nodes.Name)):
            return None
        number = len(self._sites.lookups)
        self._sites.lookups.append(found)
        self.part.lookups.add(number)
        return noted(node.iter, "look_up", site, number, self._expr(copy.deepcopy(found.key), bound))

    def _iterated(self, node: nodes.Node, bound: frozenset[str]) -> nodes.Expr:
        """The iterable of a nested loop: lists are read as far as the loop gets."""
        site = self._list(node, bound)
        if site is not None:
            return noted(node, "iterate", site)
        if isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice):
            site = self._list(node.node, bound)
            if site is not None:
                return noted(node.node, "iterate_slice", site, *self._slice(node.arg, bound))
        given = range_arguments(node)
        if given and len(given) <= 2 and isinstance(node, nodes.Call):
            over = length_of(given[-1])
            site = None if over is None else self._list(over, bound)
            if over is not None and site is not None:
                start = self._expr(given[0], bound) if len(given) == 2 else nodes.Const(0)
                return noted(over, "iterate_range", site, self._expr(node.node, bound), start)
        return self._expr(node, bound)  # type: ignore[no-any-return]

    def _slice(self, part: nodes.Slice, bound: frozenset[str]) -> list[nodes.Expr]:
        ends = (part.start, part.stop, part.step)
        return [nodes.Const(None) if end is None else self._expr(end, bound) for end in ends]

    def _list(self, node: nodes.Node | None, bound: frozenset[str]) -> int | None:
        """The site of a name that may hold a list of which positions are read."""
        if not isinstance(node, nodes.Name):
            return None
        if node.name in self._parameters and node.name in bound:
            return ANY_LIST
        return self._site(Read.LIST, node) if self._outside.holds(node, bound) else None

    # --- expressions -----------------------------------------------------------------------------------------------

    def _site(self, read: Read, node: nodes.Expr, offset: int = 0) -> int:
        attribute = None
        if (
            isinstance(node, nodes.Getattr)
            and isinstance(node.node, nodes.Name)
            and node.node.name in self._outside.written
        ):
            attribute = (node.node.name, node.attr)
            self.part.reads.add(attribute)
        number = self._sites.add(read, copy.deepcopy(node), offset, attribute)
        self.part.sites.add(number)
        return number

    def _expr(self, node: Any, bound: frozenset[str]) -> Any:
        if self._outside.holds(node, bound):
            if next(everywhere([node], nodes.Name), None) is None:
                return node
            return noted(node, "value", self._site(Read.VALUE, node))
        if self._outside.is_attribute(node):
            return self._carried_read(node)
        if not isinstance(node, EXPRESSIONS + PARTS):
            raise NotThisLoop(Kept.SYNTAX, type(node).__name__)
        if isinstance(node, nodes.Name):
            return self._name(node, bound)
        number = self._of_loop(node, bound)
        if number is not None:
            return number
        if isinstance(node, nodes.Call):
            return self._call(node, bound)
        if isinstance(node, nodes.Filter):
            return self._filter(node, bound)
        if isinstance(node, nodes.Test) and node.name in self._functions - TESTS:
            raise NotThisLoop(Kept.TEST, node.name)
        if isinstance(node, nodes.Getitem):
            return self._item(node, bound)
        if isinstance(node, nodes.Compare) and self._compared(node, bound):
            return node
        self._children(node, bound)
        return node

    def _children(self, node: nodes.Node, bound: frozenset[str]) -> None:
        for field, value in list(node.iter_fields()):
            if isinstance(value, nodes.Node):
                setattr(node, field, self._expr(value, bound))
            elif isinstance(value, list):
                setattr(node, field, [self._expr(x, bound) if isinstance(x, nodes.Node) else x for x in value])

    def _name(self, node: nodes.Name, bound: frozenset[str]) -> nodes.Expr:
        if node.name in bound:
            return noted(node, "whole") if node.name in self._parameters else node
        if self._outside.own and node.name == "loop":
            raise NotThisLoop(Kept.LOOP_OBJECT, "the loop object itself")
        if node.name in SPECIAL_NAMES:
            raise NotThisLoop(Kept.SPECIAL_NAME, node.name)
        assert node.name in self._outside.stored, node.name  # any other name is hoisted
        self._site(Read.OUTER, nodes.Name(node.name, "load"))
        return node

    def _carried_read(self, node: Any) -> nodes.Expr:
        name = node.node.name
        attribute = node.attr if isinstance(node, nodes.Getattr) else node.arg.value
        self.part.reads.add((name, attribute))
        if name in self._outside.stored:
            self._site(Read.OUTER, nodes.Name(name, "load"))
            return node  # type: ignore[no-any-return]
        if self._outside.own and (name, attribute) in self._outside.carried:
            return node  # type: ignore[no-any-return]
        # In a macro it is carried in loops that write to it, and a value in others: the plan of a loop tells.
        place = nodes.Getattr(nodes.Name(name, "load"), attribute, "load")
        return noted(node, "value", self._site(Read.VALUE, place))

    def _of_loop(self, node: nodes.Node, bound: frozenset[str]) -> nodes.Expr | None:
        """``loop.attribute`` of the folded loop, and the length less its number, which is ``loop.revindex0``."""
        if not self._outside.own or "loop" in bound:
            return None
        attribute = attribute_of(node, "loop")
        if attribute is not None:
            if attribute not in _OF_LOOP:
                raise NotThisLoop(Kept.LOOP_OBJECT, f"loop.{attribute}")
            return noted(nodes.Const(None), f"loop_{attribute}")
        if self._is_place(node):
            return noted(nodes.Const(None), "loop_revindex0")
        return None

    def _is_place(self, node: nodes.Node) -> bool:
        """In a loop over ``X[::-1]``: ``(X | length - 1) - loop.index0`` and its like."""
        over = self._reversed
        if not isinstance(node, nodes.Sub) or not isinstance(over, nodes.Name) or over.name in self._outside.stored:
            return False

        def length(one: nodes.Node) -> bool:
            inner = length_of(one)
            return inner is not None and is_name(inner, over.name)

        left, right = node.left, node.right
        if attribute_of(right, "loop") == "index":
            return length(left)
        if attribute_of(right, "loop") == "index0":
            return isinstance(left, nodes.Sub) and length(left.left) and integer(left.right) == 1
        if integer(right) == 1 and isinstance(left, nodes.Sub):
            return length(left.left) and attribute_of(left.right, "loop") == "index0"
        return False

    def _call(self, node: nodes.Call, bound: frozenset[str]) -> nodes.Expr:
        callee = node.node
        unread: Mapping[str, bool] = {}
        names: list[str] = []
        if isinstance(callee, nodes.ExtensionAttribute):
            if not (callee.identifier.endswith("._GenerationTag") and callee.name == "_keep"):
                raise NotThisLoop(Kept.SYNTAX, callee.identifier)
        elif isinstance(callee, nodes.Name) and callee.name in self._outside.macros and callee.name not in bound:
            self.part.calls.add(callee.name)
            unread = self._lists.get(callee.name, {})
            names = list(unread)
        elif self._outside.own and "loop" not in bound and attribute_of(callee, "loop") is not None:
            if attribute_of(callee, "loop") != "cycle" or node.kwargs or node.dyn_args or node.dyn_kwargs:
                raise NotThisLoop(Kept.LOOP_OBJECT, "a method of loop")
            given = [self._expr(value, bound) for value in node.args]
            return noted(nodes.Const(None), "loop_cycle", *given)
        elif isinstance(callee, nodes.Getattr) and not self._outside.is_attribute(callee):
            callee.node = self._expr(callee.node, bound)  # its method: not a value by itself
        else:
            node.node = self._expr(callee, bound)
        for place, value in enumerate(node.args):
            node.args[place] = self._argument(value, bound, place < len(names) and unread[names[place]])
        for pair in node.kwargs:
            pair.value = self._argument(pair.value, bound, unread.get(pair.key, False))
        if node.dyn_args is not None:
            node.dyn_args = self._expr(node.dyn_args, bound)
        if node.dyn_kwargs is not None:
            node.dyn_kwargs = self._expr(node.dyn_kwargs, bound)
        return node

    def _argument(self, value: nodes.Expr, bound: frozenset[str], unread: bool) -> nodes.Expr:
        if unread and self._list(value, bound) is not None:
            return value
        return self._expr(value, bound)  # type: ignore[no-any-return]

    def _filter(self, node: nodes.Filter, bound: frozenset[str]) -> nodes.Filter:
        if node.name in self._functions - FILTERS:
            raise NotThisLoop(Kept.FILTER, node.name)
        if node.name in NAMING:
            place = 0 if node.name in ("map", "select", "reject") else 1
            for name in node.args[place : place + 1]:
                if not isinstance(name, nodes.Const) or name.value not in NAMING[node.name]:
                    raise NotThisLoop(Kept.FILTER, f"{node.name}({described(name)})")
            if node.dyn_args is not None or node.dyn_kwargs is not None:
                raise NotThisLoop(Kept.FILTER, f"{node.name}(*...)")
        over = length_of(node)
        if over is not None and isinstance(over, nodes.Name) and over.name in self._parameters & bound:
            return noted(over, "length")
        self._children(node, bound)
        return node

    def _item(self, node: nodes.Getitem, bound: frozenset[str]) -> nodes.Expr:
        site = self._list(node.node, bound)
        if site is None:
            self._children(node, bound)
            return node
        if isinstance(node.arg, nodes.Slice):
            return noted(node.node, "slice", site, *self._slice(node.arg, bound))
        return noted(node.node, "item", site, self._expr(node.arg, bound))

    def _compared(self, node: nodes.Compare, bound: frozenset[str]) -> bool:
        """Rewrites ``number <op> value``; False where it is something else."""
        if len(node.ops) != 1 or node.ops[0].op not in _ORDERS:
            return False
        (operand,) = node.ops
        for number, value in ((node.expr, operand.expr), (operand.expr, node.expr)):
            offset = shifted(number, lambda one: self._number(one, bound))
            if offset is None or not self._outside.holds(value, bound):
                continue
            if next(everywhere([value], nodes.Name), None) is None:
                continue
            plain = noted(value, "threshold", self._site(Read.THRESHOLD, value, offset))
            counted = self._expr(number, bound)
            if number is node.expr:
                node.expr, operand.expr = counted, plain
            else:
                node.expr, operand.expr = plain, counted
            return True
        return False

    def _number(self, node: nodes.Node, bound: frozenset[str]) -> int | None:
        """c where ``node`` is p + c, for the iteration's place p counted from the start of what it runs over."""
        if not self._outside.own:
            return None
        if self._ranged:
            return 0 if self._target is not None and is_name(node, self._target) else None
        if "loop" in bound:
            return None
        attribute = attribute_of(node, "loop")
        known = {"revindex0": 0, "revindex": 1} if self._backwards else {"index0": 0, "index": 1}
        if attribute is not None:
            return known.get(attribute)
        return 0 if self._is_place(node) else None
