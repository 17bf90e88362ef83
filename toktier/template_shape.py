"""What a chat template reads, found in its syntax tree: free variables, content format, roles and keys it names.

vLLM decides three things by looking at the template (``vllm/renderers/hf.py``), so TokTier must decide them alike:

1. *Which keyword arguments pass*: the free variables (``_resolve_chat_template_kwargs``, Jinja's own analysis).
2. *Content format* (``_detect_content_format``): ``openai`` (content stays a list of parts) when some loop runs over
   the content of a message, else ``string``. A loop counts when it runs over
   a. ``M.content`` / ``M['content']`` of a message variable M, or
   b. a macro parameter that is given such content in some call, inside that macro, or
   c. the bare name ``content``, outside any macro.
   Message variables are the targets of loops over ``messages`` or a name assigned from it. Filters, tests and slices
   around an access are looked through.
3. *Developer role* (``_detect_developer_role_support``): whether the source quotes the word.

Where the analysis itself fails (a loop or assignment that unpacks a tuple), vLLM takes ``string``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import jinja2
import jinja2.meta
from jinja2 import nodes

ContentFormat = Literal["string", "openai"]


@dataclass(frozen=True, slots=True)
class TemplateShape:
    variables: frozenset[str]
    content_format: ContentFormat
    names_developer: bool
    constants: frozenset[str]
    """Every attribute name and string constant: an upper bound of the message keys that it can name."""
    content_loop_names: frozenset[str]
    """Names X such that some loop runs over ``X.content``; SGLang's own content-format rule asks for three of them."""
    dumps_messages: bool
    """Prints, filters or iterates a whole message (``message | tojson``), so that every key shows."""


class _Unpacks(Exception):
    """A target is not a plain name; vLLM's analysis gives up here."""


def shape_of(env: jinja2.Environment, source: str) -> TemplateShape:
    """Raises ``jinja2.TemplateSyntaxError`` when the source does not parse."""
    tree = env.parse(source)
    variables = frozenset(jinja2.meta.find_undeclared_variables(tree))
    try:
        content_format: ContentFormat = "openai" if _loops_over_content(tree) else "string"
    except _Unpacks:
        content_format = "string"
    constants = {node.attr for node in tree.find_all(nodes.Getattr)}
    constants |= {node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str)}
    return TemplateShape(
        variables=variables,
        content_format=content_format,
        names_developer='"developer"' in source or "'developer'" in source,
        constants=frozenset(constants),
        content_loop_names=frozenset(_content_loop_names(tree)),
        dumps_messages=_dumps_messages(tree),
    )


def _plain_name(target: nodes.Node) -> str:
    if not isinstance(target, nodes.Name):
        raise _Unpacks
    return target.name


def _read(node: nodes.Node | None, key: str | None = None) -> str | None:
    """The variable that ``node`` is (or is the ``key`` of), looked at through filters, tests and slices."""
    while isinstance(node, nodes.Filter | nodes.Test) or (
        isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    ):
        node = node.node
    if key is not None:
        if isinstance(node, nodes.Getitem):
            if not (isinstance(node.arg, nodes.Const) and node.arg.value == key):
                return None
        elif not (isinstance(node, nodes.Getattr) and node.attr == key):
            return None
        node = node.node
    return node.name if isinstance(node, nodes.Name) and node.ctx == "load" else None


def _content_loop_names(tree: nodes.Template) -> set[str]:
    return {name for loop in tree.find_all(nodes.For) if (name := _read(loop.iter, "content"))}


def _aliases_of_messages(tree: nodes.Template) -> list[str]:
    found = ["messages"]
    queue = deque(found)
    while queue:
        name = queue.popleft()
        for assign in tree.find_all(nodes.Assign):
            if _read(assign.node) == name:
                target = _plain_name(assign.target)
                if target not in found:
                    found.append(target)
                    queue.append(target)
    return found


def _message_variables(tree: nodes.Template) -> list[str]:
    lists = _aliases_of_messages(tree)
    return [_plain_name(loop.target) for loop in tree.find_all(nodes.For) if _read(loop.iter) in lists]


_KEEPS_MESSAGES_APART = frozenset(
    {"batch", "count", "first", "last", "length", "list", "map", "rejectattr", "reverse", "selectattr", "slice", "sort"}
)
"""Filters of a list of messages that show no message by themselves."""


def _whole_message_names(tree: nodes.Template, lists: set[str]) -> set[str]:
    """Names that may hold a whole message: loop targets, items taken by index, macro parameters given one. By name
    only, so over-approximated."""
    single = set(_message_variables(tree))
    macros = {macro.name: [argument.name for argument in macro.args] for macro in tree.find_all(nodes.Macro)}

    def is_message(node: nodes.Node | None) -> bool:
        if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Slice):
            return isinstance(node.node, nodes.Name) and node.node.name in lists
        if isinstance(node, nodes.Filter) and node.name in ("first", "last"):
            return isinstance(node.node, nodes.Name) and node.node.name in lists
        return isinstance(node, nodes.Name) and node.name in single

    size = -1
    while size < len(single):
        size = len(single)
        for assign in tree.find_all(nodes.Assign):
            if is_message(assign.node) and isinstance(assign.target, nodes.Name):
                single.add(assign.target.name)
        for call in tree.find_all(nodes.Call):
            names = macros.get(call.node.name, []) if isinstance(call.node, nodes.Name) else []
            single.update(name for name, value in zip(names, call.args, strict=False) if is_message(value))
            single.update(pair.key for pair in call.kwargs if is_message(pair.value) and pair.key in names)
    return single


def _dumps_messages(tree: nodes.Template) -> bool:
    try:
        lists = set(_aliases_of_messages(tree))
        single = _whole_message_names(tree, lists)
    except _Unpacks:
        return True

    def whole(node: nodes.Node | None) -> bool:
        return isinstance(node, nodes.Name) and node.ctx == "load" and node.name in lists | single

    for node in tree.find_all((nodes.Output, nodes.Concat, nodes.Filter, nodes.Call, nodes.For)):
        if isinstance(node, nodes.Output | nodes.Concat):
            shown = any(whole(part) for part in node.nodes)
        elif isinstance(node, nodes.Filter):
            shown = whole(node.node) and not (
                isinstance(node.node, nodes.Name) and node.node.name in lists and node.name in _KEEPS_MESSAGES_APART
            )
        elif isinstance(node, nodes.For):
            shown = isinstance(node.iter, nodes.Name) and node.iter.name in single - lists
        else:
            method = node.node if isinstance(node, nodes.Call) else None
            shown = (
                isinstance(method, nodes.Getattr) and method.attr in ("items", "keys", "values") and whole(method.node)
            )
        if shown:
            return True
    return False


def _content_parameters(tree: nodes.Template, macro: nodes.Macro, messages: list[str]) -> set[str]:
    """The parameters of ``macro`` that some call gives a message's content."""
    names = [argument.name for argument in macro.args]

    def is_content(value: nodes.Expr) -> bool:
        return _read(value, "content") in messages

    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if not (isinstance(call.node, nodes.Name) and call.node.name == macro.name):
            continue
        found.update(name for name, value in zip(names, call.args, strict=False) if is_content(value))
        found.update(pair.key for pair in call.kwargs if pair.key in names and is_content(pair.value))
    return found


def _loops_over_content(tree: nodes.Template) -> bool:
    return next(_content_loops(tree), None) is not None


def _content_loops(tree: nodes.Template) -> Iterator[nodes.For]:
    messages = _message_variables(tree)
    inside: set[int] = set()
    parameters: dict[int, set[str]] = {}
    for macro in tree.find_all(nodes.Macro):
        given = _content_parameters(tree, macro, messages)
        for loop in macro.find_all(nodes.For):
            inside.add(id(loop))
            if given:
                parameters[id(loop)] = given
    for loop in tree.find_all(nodes.For):
        over = loop.iter.name if isinstance(loop.iter, nodes.Name) else None
        if (
            _read(loop.iter, "content") in messages
            or over in parameters.get(id(loop), ())
            or (over == "content" and id(loop) not in inside)
        ):
            _plain_name(loop.target)
            yield loop
