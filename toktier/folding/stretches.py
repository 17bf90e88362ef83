"""Stretches of a body that are made of the item alone: while the item stays, they print what they printed.

An iteration that runs again because something else changed (a new user's turn moves a threshold past hundreds of
messages) takes the text of these stretches out of what it printed before; where they lie in it is kept
(`Record.starts`). ``{% if message.tool_calls %}{% for call in message.tool_calls %}...`` is one in most templates, and
the dearest part of a body.

Why it is exact. A run of statements is a stretch if all of this holds; then what it prints is a function of the item.

1. Its expressions are made of the item, constants, names that it binds itself, and *steady* names: names that the body
   assigns to, on its own level, nothing but such expressions, under conditions that are such expressions. Assignments
   in other branches of an ``if`` that the stretch is in do not count, since they are not made before it; neither do
   conditions under which the stretch itself is reached. Whatever else a body may read has been passed through a
   function that notes it, and none of these qualifies; so have outer values of the names in it, with any change of
   which everything runs anew (and nothing is taken from before).
2. Nothing in it outlives it but what it prints: it assigns no attribute, and no name but in its own loops. Nor does it
   use up anything: a steady name never holds an iterator (`_holds_values`). It gets a scope of its own; names of the
   body's that it reads are read before it as well, since where a scope assigns to a name, what the name is before that
   depends on whether it was read.
3. Filters, tests, operators and methods are functions of their operands (`allowed`); a macro that is called must be
   made of its arguments alone.

An item is what it was if it is the same object (`state`, invariant 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jinja2 import nodes

from toktier.folding.allowed import FILTERS, TESTS
from toktier.folding.notes import noted
from toktier.folding.syntax import everywhere, stored

_PARTS = (
    *(nodes.Const, nodes.TemplateData, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.BinExpr, nodes.UnaryExpr),
    *(nodes.Compare, nodes.Operand, nodes.CondExpr, nodes.Concat, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair),
    nodes.Keyword,
)
_OF_VALUES = frozenset({"length", "count", "default", "d", "trim", "lower", "upper", "tojson", "string", "replace"})
"""Filters that give no iterator."""
_DEAR = frozenset({"tojson", "indent", "replace", "join"})

Branch = tuple[nodes.If, int, tuple[nodes.Node, ...]]
"""An ``if``, which of its branches, and the tests that lead to it."""
Path = tuple[Branch, ...]
Assignment = tuple[frozenset[str], nodes.Node | None, Path]
"""The names, the value where it is an expression of a single name, and the branches that it is in."""


def keep_stretches(loop: nodes.For, macros: frozenset[str], name: str) -> int:
    """Has the stretches of a rewritten loop's body kept; how many there are. ``macros``: those that are made of their
    arguments alone. ``name``: of a variable that is free."""
    assert isinstance(loop.target, nodes.Name)
    if loop.target.name in stored(loop.body):
        return 0
    finder = _Finder(loop.body, loop.target.name, macros, name)
    finder.statements(loop.body, ())
    if finder.count:
        # Else Jinja looks it up in every iteration.
        loop.body.insert(0, nodes.Assign(nodes.Name(name, "store"), nodes.Const(None)).set_lineno(loop.lineno))
    return finder.count


class _Finder:
    def __init__(self, body: Sequence[nodes.Node], item: str, macros: frozenset[str], name: str) -> None:
        self.count = 0
        self._macros = macros
        self._name = name
        self._assigned = stored(body)
        self._names = self._assigned | {item}
        self._assignments = list(_assignments(body, ()))
        self._steady = self._names

    def _steady_at(self, path: Path) -> frozenset[str]:
        """The names that are steady for what is in the branches of ``path``."""
        self._steady = self._names
        before: frozenset[str] | None = None
        while before != self._steady:
            before = self._steady
            for names, value, where in self._assignments:
                conditions = _conditions(where, path)
                if conditions is not None:
                    steady = value is not None and self._holds_values(value) and all(map(self._is_pure, conditions))
                    self._steady -= frozenset() if steady else names
        return self._steady

    # --- the body --------------------------------------------------------------------------------------------------

    def statements(self, body: list[nodes.Node], path: Path) -> None:
        """Replaces the stretches in ``body``, which is in the branches of ``path``."""
        steady = self._steady_at(path)
        out: list[nodes.Node] = []
        stretch: list[nodes.Node] = []
        for node in body:
            self._steady = steady
            if self._prints(node, frozenset(), looped=False):
                stretch.append(node)
                continue
            out += self._kept(stretch)
            stretch = []
            if isinstance(node, nodes.If):
                for branch, inner in _branches(node):
                    self.statements(inner, (*path, branch))
            out.append(node)
        body[:] = [*out, *self._kept(stretch)]

    def _kept(self, stretch: list[nodes.Node]) -> list[nodes.Node]:
        loops = next(everywhere(stretch, nodes.For), None)
        if loops is None and all(one.name not in _DEAR for one in everywhere(stretch, nodes.Filter)):
            return stretch
        number, self.count = self.count, self.count + 1
        known = nodes.Assign(nodes.Name(self._name, "store"), noted(nodes.Const(None), "recall", number))
        run = nodes.FilterBlock(stretch, nodes.Filter(None, "\0remember", [nodes.Const(number)], [], None, None))
        shown = nodes.Output([nodes.Name(self._name, "load")])
        unknown = nodes.Test(nodes.Name(self._name, "load"), "none", [], [], None, None)
        names = [nodes.Name(one, "load") for one in sorted(_loaded(stretch) & self._assigned)]
        read = [nodes.ExprStmt(nodes.Tuple(names, "load"))] if names else []
        made: list[nodes.Node] = [*read, known, nodes.If(unknown, [run], [], [shown])]
        for one in (*made, run, shown):
            one.set_lineno(stretch[0].lineno)
        return made

    def _prints(self, node: nodes.Node, bound: frozenset[str], looped: bool) -> bool:
        """Whether a statement prints a function of the item, and does nothing else. ``looped``: in a loop of the
        stretch's own, whose names end with it."""

        def pure(part: nodes.Node | None) -> bool:
            return part is None or self._is_pure(part, bound)

        def all_print(body: Sequence[nodes.Node], more: frozenset[str] = frozenset(), inner: bool = looped) -> bool:
            return all(self._prints(one, bound | more, inner) for one in body)

        match node:
            case nodes.Output():
                return all(map(pure, node.nodes))
            case nodes.If():
                return pure(node.test) and all_print(node.body) and all_print(node.elif_) and all_print(node.else_)
            case nodes.For():
                targets = stored([node.target])
                if node.recursive or not pure(node.iter) or not all_print(node.else_):
                    return False
                test = node.test is None or self._is_pure(node.test, bound | targets)
                return test and all_print(node.body, targets | {"loop"}, True)
            case nodes.Assign():
                return looped and isinstance(node.target, nodes.Name) and pure(node.node)
            case nodes.Break() | nodes.Continue():
                return looped
            case _:
                return False

    # --- expressions -----------------------------------------------------------------------------------------------

    def _is_pure(self, node: nodes.Node, bound: frozenset[str] = frozenset()) -> bool:
        match node:
            case nodes.Name():
                return node.ctx == "load" and (node.name in bound or node.name in self._steady)
            case nodes.Filter():
                known = node.name in FILTERS and node.node is not None
            case nodes.Test():
                known = node.name in TESTS
            case nodes.Call():
                callee = node.node
                if isinstance(callee, nodes.Name) and callee.name in self._macros:
                    return _is_plain(node) and all(self._is_pure(one, bound) for one in (*node.args, *node.kwargs))
                known = isinstance(callee, nodes.Getattr)
            case _:
                known = isinstance(node, _PARTS)
        return known and _is_plain(node) and all(self._is_pure(one, bound) for one in node.iter_child_nodes())

    def _holds_values(self, node: nodes.Node) -> bool:
        """Pure, and never an iterator that somebody may use up."""
        filters = everywhere([node], nodes.Filter)
        calls = everywhere([node], nodes.Call)
        return (
            self._is_pure(node)
            and all(one.name in _OF_VALUES for one in filters)
            and all(isinstance(one.node, nodes.Getattr) for one in calls)
        )


def _loaded(stretch: Sequence[nodes.Node]) -> frozenset[str]:
    """The names that it reads in the scope in which it stands: not inside of its loops."""
    names: frozenset[str] = frozenset()
    for node in stretch:
        match node:
            case nodes.For():
                names |= _loaded([node.iter])
            case nodes.If():
                names |= _loaded([node.test, *node.body, *node.elif_, *node.else_])
            case _:
                names |= {one.name for one in everywhere([node], nodes.Name)}
    return names


def _is_plain(node: nodes.Node) -> bool:
    return getattr(node, "dyn_args", None) is None and getattr(node, "dyn_kwargs", None) is None


def _branches(node: nodes.If) -> Iterator[tuple[Branch, list[nodes.Node]]]:
    tests = (node.test, *(one.test for one in node.elif_))
    for at, body in enumerate((node.body, *(one.body for one in node.elif_), node.else_)):
        yield (node, at, tests[: at + 1]), body


def _assignments(body: Sequence[nodes.Node], path: Path) -> Iterator[Assignment]:
    """To names of the body's own level: what loops and blocks assign inside ends with them."""
    for node in body:
        if isinstance(node, nodes.Assign):
            yield stored([node.target]), node.node if isinstance(node.target, nodes.Name) else None, path
        elif isinstance(node, nodes.AssignBlock):
            yield stored([node.target]), None, path
        elif isinstance(node, nodes.If):
            for branch, inner in _branches(node):
                yield from _assignments(inner, (*path, branch))


def _conditions(where: Path, path: Path) -> list[nodes.Node] | None:
    """Under which what is in the branches ``where`` is reached, besides those of ``path``; None where one of the two
    is not reached if the other is."""
    common = 0
    for (one, branch, _), (other, other_branch, _) in zip(where, path, strict=False):
        if one is not other:
            break
        if branch != other_branch:
            return None
        common += 1
    return [test for _, _, tests in where[common:] for test in tests]


def macros_of_arguments(parts: dict[str, tuple[Sequence[nodes.Macro], frozenset[str]]]) -> frozenset[str]:
    """Of rewritten macros, those that are made of their arguments alone. ``parts``: their definitions, and the macros
    that they call."""
    good = {
        name
        for name, (macros, _) in parts.items()
        if not any(one.name.startswith("\0") for one in everywhere(macros, nodes.Filter))
        and next(everywhere(macros, nodes.NSRef), None) is None
    }
    before: set[str] | None = None
    while before != good:
        before = set(good)
        good = {name for name in good if parts[name][1] <= good}
    return frozenset(good)
