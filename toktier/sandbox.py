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
"""

from __future__ import annotations

from types import BuiltinMethodType
from typing import Any

from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_OF_DICT = frozenset(dir(dict))
_METHODS_OF_STR = frozenset(name for name in dir(str) if not name.startswith("_")) - {"format", "format_map"}
_OF_LOOP = frozenset({"index0", "index", "first", "last", "length", "revindex", "revindex0", "depth", "depth0"})
_PLAIN = frozenset({str, int, float, bool, type(None), list, dict})
_MISSING = object()
_own = object.__getattribute__


class Sandbox(ImmutableSandboxedEnvironment):
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
