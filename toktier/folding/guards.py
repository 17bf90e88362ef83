"""Loops that stop doing anything at some point get a ``break`` there, so that what they read has an end.

``{% for x in L %}{% if not found.it and ... %}...{% endif %}{% endfor %}``: once ``found.it`` is set, every further
iteration does nothing. The template still runs them all; the folded one must not, or each of them counts as a reader
of the whole list.

Why it is exact. A loop qualifies if its body is some quiet assignments to plain names and one ``if`` without ``else``,
whose test is a conjunction with a *guard* in it (or one that does nothing where a flag is set, whatever its ``else``
does). Take an iteration in which the guard is false.

1. It does nothing: the test is false, and names bound in a loop's body end with the iteration.
2. So do all later ones. A guard is ``ns.flag`` or ``not ns.flag`` of a namespace (only the skipped part could write to
   it), or ``loop.index0 < E`` with E bound outside the loop (it only falls).
3. Nothing that is skipped could have raised. What is evaluated before the guard is *quiet* on the items of the
   request's own list ``messages``, which are plain data, or it is arithmetic of integers: the iteration's number, and
   lengths of what surely has one (that list, and what the loop runs over). The guard itself has just been evaluated.
4. Nobody else sees how far the loop came: what it runs over is a value that can be read again (`_Lists`), no iterator
   such as ``messages|map(...)`` gives, in which a loop that stops leaves items to the next reader, and errors unraised.
"""

from __future__ import annotations

from collections import Counter

from jinja2 import nodes

from toktier.folding.syntax import attribute_of, conjuncts, integer, is_blank, is_name, length_of, own, stored

_KINDS = frozenset({"defined", "undefined", "none", "string", "mapping", "number", "boolean", "true", "false"})


def add_breaks(tree: nodes.Template, written: frozenset[str]) -> None:
    """Puts a ``break`` into every loop that qualifies. ``written``: names of written namespaces."""
    lists = _Lists(tree)
    for loop in list(tree.find_all(nodes.For)):
        guard = _guard(loop, written, lists.own("messages")) if lists.hold(loop.iter) else None
        if guard is not None:
            stop = nodes.If(nodes.Not(guard), [nodes.Break()], [], [])
            stop.set_lineno(loop.lineno)
            loop.body.insert(0, stop)


class _Lists:
    """Which expressions surely give something that can be read again and again (or nothing, or an error at once).

    What a template is given is plain data. So a name does that to which nothing else is ever bound in the template.
    """

    def __init__(self, tree: nodes.Template) -> None:
        bound = [name.name for name in tree.find_all(nodes.Name) if name.ctx != "load"]
        self._bound = Counter(bound)
        self._values: dict[str, list[nodes.Node]] = {name: [] for name in bound}
        for part in tree.find_all(nodes.Assign):
            if isinstance(part.target, nodes.Name):
                self._values[part.target.name].append(part.node)

    def own(self, name: str) -> bool:
        """Whether the name always means what the template was given."""
        return not self._bound[name]

    def hold(self, node: nodes.Node, asked: frozenset[str] = frozenset()) -> bool:
        """``asked``: names whose values are being asked for."""
        match node:
            case nodes.Name():
                return node.name != "loop" and (node.name in asked or self._holds(node.name, asked | {node.name}))
            case nodes.Getitem(arg=nodes.Slice()):
                return self.hold(node.node, asked)
            case nodes.Call():
                return is_name(node.node, "range") and self.own("range")
            case nodes.Filter():
                return node.name == "list"
            case nodes.CondExpr():
                return self.hold(node.expr1, asked) and (node.expr2 is None or self.hold(node.expr2, asked))
            case nodes.Add():
                return self.hold(node.left, asked) and self.hold(node.right, asked)
            case nodes.List() | nodes.Tuple():
                return True
            case _:
                return False

    def _holds(self, name: str, asked: frozenset[str]) -> bool:
        values = self._values.get(name, [])
        return len(values) == self._bound[name] and all(self.hold(value, asked) for value in values)


def _guard(loop: nodes.For, written: frozenset[str], messages: bool) -> nodes.Expr | None:
    """A copy of the guard, if the loop qualifies. ``messages``: the name always means the request's own list."""
    if not isinstance(loop.target, nodes.Name) or loop.test is not None or loop.else_ or loop.recursive:
        return None
    body = [part for part in loop.body if not is_blank(part)]
    if not body or not isinstance(body[-1], nodes.If):
        return None
    if any(own(loop.body, nodes.Break)) or any(own(loop.body, nodes.Continue)):
        return None
    inside = stored(loop.body) | {loop.target.name}
    sized = {loop.iter.name} if isinstance(loop.iter, nodes.Name) else set()
    sized = (sized | {"messages"} if messages else sized) - inside
    for part in body[:-1]:
        if not (isinstance(part, nodes.Assign) and isinstance(part.target, nodes.Name) and _steady(part.node, sized)):
            return None
    last = body[-1]
    assert isinstance(last.test, nodes.Expr)
    if all(map(is_blank, last.body)):  # {% if found.it %}{% elif ... %}: the same, the other way round
        return nodes.Not(_copy(last.test)) if _is_flag(last.test, inside, written) else None
    if last.elif_ or last.else_:
        return None
    for test in conjuncts(last.test):
        if _is_guard(test, inside, written):
            return _copy(test)
        if not (messages and is_name(loop.iter, "messages") and quiet(test, loop.target.name)):
            return None
    return None


def _is_guard(test: nodes.Expr, inside: frozenset[str], written: frozenset[str]) -> bool:
    if _is_flag(test.node if isinstance(test, nodes.Not) else test, inside, written):
        return True
    if isinstance(test, nodes.Compare) and len(test.ops) == 1 and test.ops[0].op in ("lt", "lteq"):
        bound = test.ops[0].expr
        counts = attribute_of(test.expr, "loop") in ("index0", "index")
        return counts and isinstance(bound, nodes.Name) and bound.name not in inside | {"loop"}
    return False


def _is_flag(test: nodes.Expr, inside: frozenset[str], written: frozenset[str]) -> bool:
    return isinstance(test, nodes.Getattr) and isinstance(test.node, nodes.Name) and test.node.name in written - inside


def _copy(test: nodes.Expr) -> nodes.Expr:
    """Of a guard: there are few shapes."""
    if isinstance(test, nodes.Not):
        return nodes.Not(_copy(test.node))
    if isinstance(test, nodes.Compare):
        operand = test.ops[0]
        return nodes.Compare(_copy(test.expr), [nodes.Operand(operand.op, _copy(operand.expr))])
    if isinstance(test, nodes.Getattr):
        return nodes.Getattr(_copy(test.node), test.attr, "load")
    if isinstance(test, nodes.Getitem):
        return nodes.Getitem(_copy(test.node), nodes.Const(test.arg.as_const()), "load")
    assert isinstance(test, nodes.Name)
    return nodes.Name(test.name, "load")


def _steady(node: nodes.Node, sized: set[str]) -> bool:
    """Integer arithmetic of the iteration's number and of lengths of what ``sized`` names."""
    if integer(node) is not None or attribute_of(node, "loop") in ("index0", "index", "revindex0", "revindex"):
        return True
    if isinstance(node, nodes.Add | nodes.Sub):
        return _steady(node.left, sized) and _steady(node.right, sized)
    over = length_of(node)
    return isinstance(over, nodes.Name) and over.name in sized


def quiet(node: nodes.Expr, item: str) -> bool:
    """Cannot raise where the name ``item`` holds plain data, and depends on nothing else.

    A key of a value that has no such key is undefined, which compares with anything and is false; only reaching into
    the undefined raises, so ``item.key`` is quiet and ``item.key.key`` is not.
    """
    match node:
        case nodes.Const():
            return True
        case nodes.Name():
            return node.name == item
        case nodes.Getattr():
            return is_name(node.node, item)
        case nodes.Getitem():
            return is_name(node.node, item) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str)
        case nodes.And() | nodes.Or():
            return quiet(node.left, item) and quiet(node.right, item)
        case nodes.Not():
            return quiet(node.node, item)
        case nodes.Compare():
            return all(part.op in ("eq", "ne") and quiet(part.expr, item) for part in node.ops) and quiet(
                node.expr, item
            )
        case nodes.Test():
            return node.name in _KINDS and not node.args and quiet(node.node, item)
        case _:
            return False
