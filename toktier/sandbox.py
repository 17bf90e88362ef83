"""Jinja's immutable sandbox, with short ways to what it answers for plain data.

Every attribute that a template reads goes through the sandbox, which tries the attribute, the item, and whether either
is safe: a microsecond or three, several times a message. For a mapping, a string, a namespace or a loop the answer is
known beforehand.

Invariant: `getattr`, `getitem` and `call` return what `ImmutableSandboxedEnvironment` returns, or raise what it raises.
Where each short way leaves off, the long one begins. Why they agree (the code is jinja2's `sandbox.py`):

1. A ``dict`` has no attribute of the name, so the sandbox takes the item; where there is none either, undefined.
2. A public method of ``str`` is safe; ``format`` and ``format_map`` are wrapped, so they go the long way.
3. A `Namespace` gives its attributes by name and has no items. Values with a name of their own go the long way.
4. The counting attributes of a `LoopContext` are public and give numbers and truth values.
5. A bound method of ``str`` is safe to call, takes no context, and does not raise `StopIteration` by itself: given
   only plain arguments, it does not raise it at all.
6. `_Generator` writes some of these ways into the compiled template itself: ``x.name`` of a ``dict`` that has the key,
   ``x['name']`` likewise, attributes of namespaces that the template writes, a method of a ``str`` called with
   constants, the counting attributes of ``loop``, and tests.
   Everything else it leaves to the environment, with the value that it has evaluated. Its two names are assigned and
   used within one expression, after the expressions inside it are done, so that they may be nested.
"""

from __future__ import annotations

from types import BuiltinMethodType
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame, optimizeconst
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.tests import TESTS
from jinja2.utils import Namespace

_OF_DICT = frozenset(dir(dict))
_METHODS_OF_STR = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}
_OF_LOOP = frozenset({"index0", "index", "first", "last", "length", "revindex", "revindex0", "depth", "depth0"})
_PLAIN = frozenset({str, int, float, bool, type(None), list, dict})
_TESTS = {
    "defined": "(not isinstance(X, Undefined))",
    "undefined": "isinstance(X, Undefined)",
    "none": "((X) is None)",
    "string": "isinstance(X, str)",
}
"""What Jinja's own tests of these names give."""
_HELD, _FOUND = "_held", "_found"
"""Names in compiled templates: those that a template writes get a prefix."""
_MISSING = object()
_own = object.__getattribute__


class _Generator(CodeGenerator):
    _spaces: frozenset[str] = frozenset()
    """Names that are written as namespaces."""

    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        self._spaces = frozenset(reference.name for reference in node.find_all(nodes.NSRef))
        super().visit_Template(node, frame)

    @optimizeconst
    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        if node.attr in _OF_DICT:
            super().visit_Getattr(node, frame)
        elif isinstance(node.node, nodes.Name) and node.node.name == "loop" and node.attr in _OF_LOOP:
            self.write(f"({_HELD}.{node.attr} if type({_HELD} := ")
            self.visit(node.node, frame)
            self.write(f") is LoopContext else environment.getattr({_HELD}, {node.attr!r}))")
        elif isinstance(node.node, nodes.Name) and node.node.name in self._spaces and not node.attr.startswith("_"):
            attributes = f"object.__getattribute__({_HELD}, '_Namespace__attrs')"
            self.write(f"({_FOUND} if type({_HELD} := ")
            self.visit(node.node, frame)
            self.write(f") is Namespace and type({_FOUND} := {attributes}.get({node.attr!r}, missing))")
            self.write(f" in environment.plain_types else environment.getattr({_HELD}, {node.attr!r}))")
        else:
            self._of_dict(node, frame, node.attr, "getattr")

    @optimizeconst
    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Const) and type(node.arg.value) is str:
            self._of_dict(node, frame, node.arg.value, "getitem")
        else:
            super().visit_Getitem(node, frame)

    @optimizeconst
    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        method = node.node
        if (
            not isinstance(method, nodes.Getattr)
            or method.attr not in _METHODS_OF_STR
            or forward_caller
            or node.kwargs
            or node.dyn_args is not None
            or node.dyn_kwargs is not None
            or not all(isinstance(one, nodes.Const) and type(one.value) in (str, int) for one in node.args)
        ):
            super().visit_Call(node, frame, forward_caller=forward_caller)
            return
        given = ", ".join(repr(one.value) for one in node.args if isinstance(one, nodes.Const))
        more = [*([given] if given else []), *(f"{name}={name}" for name in self._of_frame(frame))]
        self.write(f"({_HELD}.{method.attr}({given}) if type({_HELD} := ")
        self.visit(method.node, frame)
        self.write(f") is str else environment.call(context, environment.getattr({_HELD}, {method.attr!r})")
        self.write("".join(f", {one}" for one in more) + "))")

    @optimizeconst
    def visit_Test(self, node: nodes.Test, frame: Frame) -> None:
        form = _TESTS.get(node.name) if self.environment.tests.get(node.name) is TESTS.get(node.name) else None
        if form is None or node.args or node.kwargs or node.dyn_args is not None or node.dyn_kwargs is not None:
            super().visit_Test(node, frame)
            return
        before, after = form.split("X")
        self.write(before)
        self.visit(node.node, frame)
        self.write(after)

    def _of_dict(self, node: nodes.Getattr | nodes.Getitem, frame: Frame, name: str, otherwise: str) -> None:
        self.write(f"({_FOUND} if type({_HELD} := ")
        self.visit(node.node, frame)
        self.write(f") is dict and ({_FOUND} := {_HELD}.get({name!r}, missing)) is not missing")
        self.write(f" else environment.{otherwise}({_HELD}, {name!r}))")

    @staticmethod
    def _of_frame(frame: Frame) -> list[str]:
        """What Jinja hands to every call."""
        return [*(["_loop_vars"] if frame.loop_frame else []), *(["_block_vars"] if frame.block_frame else [])]


class Sandbox(ImmutableSandboxedEnvironment):
    code_generator_class = _Generator
    plain_types = _PLAIN

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            if attribute not in _OF_DICT:
                value = obj.get(attribute, _MISSING)
                return self.undefined(obj=obj, name=attribute) if value is _MISSING else value
        elif kind is str:
            if attribute in _METHODS_OF_STR:
                return getattr(obj, attribute)
        elif kind is Namespace:
            value = _own(obj, "_Namespace__attrs").get(attribute, _MISSING)
            if type(value) in _PLAIN and not attribute.startswith("_"):
                return value
        elif kind is LoopContext and attribute in _OF_LOOP:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if type(obj) is dict and type(argument) is str and argument not in _OF_DICT:
            value = obj.get(argument, _MISSING)
            return self.undefined(obj=obj, name=argument) if value is _MISSING else value
        return super().getitem(obj, argument)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # Keywords of the template may have any name, so these have names that it cannot write.
        if type(__obj) is BuiltinMethodType and type(__obj.__self__) is str and _are_plain(args):
            kwargs.pop("_block_vars", None)
            kwargs.pop("_loop_vars", None)
            if not kwargs:
                return __obj(*args)
            kwargs = dict(kwargs)
        return super().call(__context, __obj, *args, **kwargs)


def _are_plain(args: tuple[Any, ...]) -> bool:
    return all(type(one) in (str, int) or one is None for one in args)
