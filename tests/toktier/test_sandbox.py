from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from jinja2.runtime import LoopContext, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Namespace

from toktier.sandbox import Sandbox

OURS, THEIRS = Sandbox(), ImmutableSandboxedEnvironment()


class Strange(str):
    """Not the plain type."""

    __slots__ = ()


class Odd(dict):  # type: ignore[type-arg]
    def __missing__(self, key: str) -> str:
        return f"made {key}"


def _loop() -> LoopContext:
    loop = LoopContext(["a", {}.values, "c"], Undefined)
    next(loop)
    return loop


VALUES: list[Callable[[], Any]] = [
    lambda: {"role": "user", "items": 1, "_x": 2, "__class__": 3, "get": 4, "format": 5, "none": None},
    dict,
    lambda: "text {0}",
    lambda: Strange("text"),
    lambda: Odd(role=1),
    lambda: Namespace(role="x", items=[1], _x=2, format="x".format, f=len, none=None, keys={}.keys),
    lambda: [1, 2],
    lambda: (1, 2),
    lambda: 5,
    lambda: None,
    lambda: Undefined(name="u"),
    lambda: Cycler(1, 2),
    lambda: len,
    _loop,
]
_NAMES = """
role items get keys format format_map append update setdefault pop split strip upper join _x __class__ __len__
__globals__ gi_frame index index0 first last length revindex revindex0 depth depth0 previtem nextitem cycle changed
none f absent current
"""
NAMES = _NAMES.split()


def _seen(read: Callable[[], Any]) -> tuple[str, str]:
    """What a template could tell of it."""
    try:
        value = read()
    except Exception as error:
        return type(error).__name__, str(error)
    if isinstance(value, Undefined):
        with pytest.raises(Exception) as raised:
            value.x  # noqa: B018
        return "undefined", f"{type(raised.value).__name__}: {raised.value}".split(" object at ")[0]
    if callable(value):
        return "callable", getattr(value, "__name__", type(value).__name__)
    return type(value).__name__, repr(value)


@pytest.mark.parametrize("make", VALUES, ids=lambda make: type(make()).__name__)
def test_attributes_and_items_are_jinjas_own(make: Callable[[], Any]) -> None:
    for name in NAMES:
        assert _seen(lambda name=name: OURS.getattr(make(), name)) == _seen(
            lambda name=name: THEIRS.getattr(make(), name)
        )
        assert _seen(lambda name=name: OURS.getitem(make(), name)) == _seen(
            lambda name=name: THEIRS.getitem(make(), name)
        )
    for argument in (0, -1, 7, 1.0, None, slice(0, 1), (1,), Strange("role")):
        assert _seen(lambda a=argument: OURS.getitem(make(), a)) == _seen(lambda a=argument: THEIRS.getitem(make(), a))


CALLS = [
    "{{ 'a,b'.split(',') }}",
    "{{ 'a,b'.split(sep=',') }}",
    "{{ 'a'.split(1) }}",
    "{{ 'a'.strip(none) }}{{ 'a'.join(['b', 'c']) }}",
    "{{ 'a {}'.format(1) }}{{ '{a}'.format(a=1) }}{{ '{0.__class__}'.format(1) }}",
    "{{ ','.join(g) }}",
    "{{ 'a'.join(n) }}",
    "{% for x in 'ab' %}{% set y = x %}{{ x.upper() }}{{ y.replace('a', 'b') }}{% endfor %}",
    "{{ d.get('a') }}{{ d.items() | list }}{{ d.update({}) }}",
    "{{ [].append(1) }}",
    "{{ ''.absent() }}",
    "{{ 'a'.strip(_block_vars=1) }}",
    "{% macro f() %}{{ caller().strip() }}{% endmacro %}{% call f() %} x {% endcall %}",
    "{{ range(3) | list }}{{ dict(a=1) }}{{ namespace(a=1).a }}{{ cycler(1).next() }}",
]


@pytest.mark.parametrize("source", CALLS)
def test_calls_are_jinjas_own(source: str) -> None:
    def render(env: ImmutableSandboxedEnvironment) -> str:
        return env.from_string(source).render(d={"a": 1}, n=None, g=(str(x) for x in range(2)))

    assert _seen(lambda: render(OURS)) == _seen(lambda: render(THEIRS))


WRITTEN = [
    "{{ x.role }}{{ x['role'] }}{{ x.none }}{{ x['none'] is none }}",
    "{{ x.items }}|{{ x['items'] }}|{{ x['get'] }}|{{ x._x }}|{{ x['__class__'] }}",
    "{{ x.absent is defined }}{{ x.absent }}{{ x['absent'] }}{{ x.absent.more }}",
    "{{ x.role.absent.more }}",
    "{{ x['a b']['c'].d }}",
    "{{ x.role.strip('u') }}{{ x.role.split('s')[-1].upper() }}{{ x.role.center(9) }}",
    "{{ x.role.strip('u', 'v') }}",
    "{{ x.role.split('') }}",
    "{{ x.absent.strip() }}",
    "{{ x.n.strip('a') }}",
    "{{ x.role.format(1) }}{{ x.role.absent() }}",
    "{{ x.inner.role.strip('r') ~ x.inner.strip.upper() }}",
    "{% macro f(a, b=x.role.strip('u')) %}{{ a.role.upper() }}{{ b }}{{ caller().strip() }}{% endmacro %}"
    "{% call f(x) %} {{ x.role.upper() }} {% endcall %}",
    "{% for y in x.inner.list if y.role.startswith('a') %}{{ loop.index }}{{ y.role.upper() }}{% endfor %}",
    "{% for y in x.inner.list %}{% set z = y.role.upper() %}{{ z }}{% endfor %}{{ z }}",
    "{% set ns = namespace(a=x) %}{{ ns.a.role.upper() }}{% set ns.b = x.inner.role %}{{ ns['b'] }}",
    "{% set ns = namespace(a=1, items=2, f=''.upper, _b=3) %}{% set ns.c = x.role %}"
    "{{ ns.a }}{{ ns.items }}{{ ns.f() }}{{ ns._b }}{{ ns.c }}{{ ns.d is defined }}{{ ns.d }}{{ ns.d.e }}",
    "{% macro f(ns) %}{{ ns.role }}{% endmacro %}{% set ns = namespace() %}{% set ns.role = 1 %}{{ f(x) }}{{ f(ns) }}",
    "{{ 'abc'.upper() }}{{ ('a' ~ x.role).title() }}{{ (x.absent or x.role).lower() }}",
    "{{ x['role'].replace('\\n', '') }}{{ x.role.replace('u', '\"') }}{{ x.role.zfill(7) }}",
    "{{ x.inner.list | map(attribute='role') | join('-') }}",
    "{{ x.role is defined }}{{ x.absent is undefined }}{{ x.none is none }}{{ x.n is not none and x.n is string }}",
    "{{ y is defined }}{{ x.absent.more is defined }}",
    "{{ (x.role or 1) is string }}{{ 'a' is string }}{{ 1 is defined }}{{ not x.role is string }}{{ x.items is none }}",
]


@pytest.mark.parametrize("source", WRITTEN)
def test_what_is_written_into_templates_gives_what_jinja_gives(source: str) -> None:
    inner = {"role": "r r", "strip": "s", "list": [{"role": "ab"}, {"role": "cd"}, {"role": "ae"}]}
    data = {"role": "us er", "items": 1, "get": 2, "_x": 3, "__class__": 4, "none": None, "n": 5, "inner": inner}
    for x in (data, {}, "text", None, Namespace(role="us er", inner=inner), Odd(role="us er"), [data]):
        assert _seen(lambda x=x: OURS.from_string(source).render(x=x)) == _seen(
            lambda x=x: THEIRS.from_string(source).render(x=x)
        ), x
