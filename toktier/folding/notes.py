"""How a rewritten template calls what `functions` has, and which macros are given lists without reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import nodes

from toktier.folding.reasons import Kept
from toktier.folding.syntax import stored

ANY_LIST = -1
"""Number of the site for a macro's parameter: which list it is shows when the macro runs."""

Lists = Mapping[str, Mapping[str, bool]]
"""By macro, its parameters in order, and whether some caller gives one a list unread."""


class NotThisLoop(Exception):
    """This loop stays as it is."""

    def __init__(self, reason: Kept, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason = reason
        self.detail = detail


def noted(value: nodes.Node, function: str, *arguments: Any) -> nodes.Filter:
    """``value`` passed through a function of `tracker`; plain arguments become constants."""
    given = [one if isinstance(one, nodes.Expr) else nodes.Const(one) for one in arguments]
    return nodes.Filter(value, "\0" + function, given, [], None, None)


def list_parameters(tree: nodes.Template) -> dict[str, dict[str, bool]]:
    """The parameters of the macros with one definition. One is given a list unread if some call passes a name that is
    bound at the level of the template (or such a parameter), and the macro never assigns to it."""
    defined: dict[str, list[nodes.Macro]] = {}
    for macro in tree.find_all(nodes.Macro):
        defined.setdefault(macro.name, []).append(macro)
    single = {name: macros[0] for name, macros in defined.items() if len(macros) == 1}
    found = {name: {argument.name: False for argument in macro.args} for name, macro in single.items()}
    looped = {name for loop in tree.find_all(nodes.For) for name in stored([loop.target, *loop.body])}
    inside = {id(call) for macro in tree.find_all(nodes.Macro) for call in macro.find_all(nodes.Call)}

    def look(calls: Iterable[nodes.Call], is_list: Callable[[str], bool]) -> bool:
        more = False
        for call in calls:
            if not isinstance(call.node, nodes.Name) or call.node.name not in single:
                continue
            macro, known = single[call.node.name], found[call.node.name]
            given = [*zip(known, call.args, strict=False), *((pair.key, pair.value) for pair in call.kwargs)]
            for name, value in given:
                if isinstance(value, nodes.Name) and not known.get(name, True) and is_list(value.name):
                    known[name] = name not in stored(macro.body)
                    more = more or known[name]
        return more

    look((call for call in tree.find_all(nodes.Call) if id(call) not in inside), lambda name: name not in looped)
    more = True
    while more:
        more = False
        for name, macro in single.items():
            lists = {one for one, unread in found[name].items() if unread}
            taken = (looped | stored([*macro.args, *macro.body])) - lists
            more = look(macro.find_all(nodes.Call), _not_in(taken)) or more
    return found


def _not_in(names: set[str]) -> Callable[[str], bool]:
    return lambda name: name not in names
