"""What a folded loop may contain, and what no folded template may contain at all.

A loop's body is folded only if everything in it is on a list here: a construct, filter or test that is not listed keeps
its loop an ordinary loop. The lists hold what is a function of its operands alone (or raises). What depends on anything
else (the clock, chance, the identity of objects) is not listed, whatever it is called.

What a template as a whole must not have (`check`), and why:

1. *Inclusion, import, inheritance, blocks*: the code that runs is not in the tree.
2. ``sameas`` of anything but a constant: objects are reused between requests, so identity may change.
3. *Macros inside macros, loops, blocks and conditions*, a macro that is *used as a value*, or whose name is also
   assigned to: then the macros that a body can call are not those that it names, or not the same in every request.
4. *A written namespace with a second name*, or with one that means something else in a loop or a macro. Every name that
   ``{% set name.attribute = ... %}`` is ever applied to must get its value from ``{% set name = namespace(...) %}`` and
   from nothing else, and be used as ``name.attribute`` only. So no other name, container, parameter or loop variable
   ever holds that object, and the writes that a body can do are those that it (or a macro that it names) spells out.
"""

from __future__ import annotations

from jinja2 import nodes

from toktier.folding.reasons import Unfolds


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


FILTERS = _names(
    "abs attr batch capitalize center count d default dictsort e escape filesizeformat first float forceescape format "
    "groupby indent int items join last length list lower map max min pprint reject rejectattr replace reverse round "
    "safe select selectattr slice sort string striptags sum title tojson trim truncate unique upper urlencode urlize "
    "wordcount wordwrap xmlattr"
)
"""All of Jinja2's own filters but ``random``. Each reads its operands only. (Ours is ``tojson``.)"""

TESTS = _names(
    "!= < <= == > >= boolean callable defined divisibleby eq equalto escaped even false filter float ge greaterthan gt "
    "in integer iterable le lessthan lower lt mapping ne none number odd sequence string test true undefined upper"
)
"""All of Jinja2's own tests but ``sameas``."""

NAMING = {"map": FILTERS, "select": TESTS, "reject": TESTS, "selectattr": TESTS, "rejectattr": TESTS}
"""Filters that take the name of a filter or a test, which must then be a constant on the list."""

STATEMENTS = (
    nodes.Output,
    nodes.For,
    nodes.If,
    nodes.Assign,
    nodes.AssignBlock,
    nodes.CallBlock,
    nodes.FilterBlock,
    nodes.With,
    nodes.Break,
    nodes.Continue,
    nodes.ExprStmt,
)

EXPRESSIONS = (
    nodes.BinExpr,
    nodes.UnaryExpr,
    nodes.Name,
    nodes.NSRef,
    nodes.Const,
    nodes.TemplateData,
    nodes.Tuple,
    nodes.List,
    nodes.Dict,
    nodes.CondExpr,
    nodes.Filter,
    nodes.Test,
    nodes.Call,
    nodes.Getitem,
    nodes.Getattr,
    nodes.Slice,
    nodes.Concat,
    nodes.Compare,
)

PARTS = (nodes.Pair, nodes.Keyword, nodes.Operand)

HOISTED_FILTERS = frozenset({"length", "count", "default", "d", "trim", "lower", "upper"})
"""Filters that an expression may have that is also evaluated before the loop: they consume no iterator."""

HOISTED_TESTS = TESTS - {"in", "divisibleby", "filter", "test", "callable", "escaped", "iterable"}

SPECIAL_NAMES = frozenset({"varargs", "kwargs", "caller", "self", "super"})
"""Names that mean something else in a macro than in a loop."""


class NotFolded(Exception):
    """The whole template cannot be folded."""

    def __init__(self, reason: Unfolds, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail


def check(tree: nodes.Template) -> frozenset[str]:
    """The names of the namespaces that are written. Raises `NotFolded`."""
    for node in tree.find_all((nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block)):
        raise NotFolded(Unfolds.INHERITANCE, f"line {node.lineno}")
    for test in tree.find_all(nodes.Test):
        if test.name == "sameas" and not all(isinstance(value, nodes.Const) for value in test.args):
            raise NotFolded(Unfolds.IDENTITY, f"line {test.lineno}")
    for constant in tree.find_all(nodes.Const):
        if constant.value == "sameas":
            raise NotFolded(Unfolds.IDENTITY, f"line {constant.lineno}")
    for naming in tree.find_all(nodes.Filter):
        # The name of a test may come from anywhere: then it may be `sameas`.
        if naming.name in ("select", "reject", "selectattr", "rejectattr"):
            names = naming.args[(0 if naming.name in ("select", "reject") else 1) :][:1]
            if naming.dyn_args is not None or not all(isinstance(name, nodes.Const) for name in names):
                raise NotFolded(Unfolds.IDENTITY, f"line {naming.lineno}")
    _check_macros(tree)
    return _check_namespaces(tree)


def _check_macros(tree: nodes.Template) -> None:
    blocks = (nodes.With, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Scope)
    for node in tree.find_all((*blocks, nodes.Macro, nodes.For, nodes.If)):
        for macro in node.find_all(nodes.Macro):
            raise NotFolded(Unfolds.INNER_MACRO, f"{macro.name}, line {macro.lineno}")
    names = {macro.name for macro in tree.find_all(nodes.Macro)}
    called = {id(call.node) for call in tree.find_all(nodes.Call)}
    for name in tree.find_all(nodes.Name):
        if name.name in names and not (name.ctx == "load" and id(name) in called):
            raise NotFolded(Unfolds.MACRO_AS_VALUE, f"{name.name}, line {name.lineno}")


def _check_namespaces(tree: nodes.Template) -> frozenset[str]:
    written = frozenset(reference.name for reference in tree.find_all(nodes.NSRef))
    allowed: set[int] = set()
    uses: list[nodes.Getattr | nodes.Getitem] = [*tree.find_all(nodes.Getattr), *tree.find_all(nodes.Getitem)]
    for use in uses:
        if isinstance(use.node, nodes.Name) and (isinstance(use, nodes.Getattr) or _is_text(use.arg)):
            allowed.add(id(use.node))
    for assign in tree.find_all(nodes.Assign):
        made = assign.node
        if isinstance(made, nodes.Call) and isinstance(made.node, nodes.Name) and made.node.name == "namespace":
            allowed.add(id(assign.target))
    for name in tree.find_all(nodes.Name):
        if name.name in written and id(name) not in allowed:
            raise NotFolded(Unfolds.SHARED_NAMESPACE, f"{name.name}, line {name.lineno}")
    for odd in sorted(written & (SPECIAL_NAMES | {"loop"})):
        raise NotFolded(Unfolds.SHARED_NAMESPACE, odd)
    if written and "namespace" in {name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"}:
        raise NotFolded(Unfolds.SHARED_NAMESPACE, "namespace is assigned to")
    return written


def _is_text(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Const) and isinstance(node.value, str)
