"""The environment that chat templates run in, equal to the one in transformers' ``_cached_compile_jinja_template``.

Invariant: it is the immutable sandbox with ``trim_blocks`` and ``lstrip_blocks``, loop controls, the ``generation`` tag
(its body is kept), ``tojson`` without HTML escaping, ``raise_exception`` and ``strftime_now``. What the engine, a
little later, may print otherwise (the time, a random choice) is refused.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from toktier.errors import Unrenderable
from toktier.reasons import Bypass
from toktier.sandbox import Sandbox

_CLOCK_MARGIN = timedelta(seconds=30)
"""How far the engine's clock, at the time when it would have rendered, may be from ours."""

_LARGE = 20_000
"""Values that `json.dumps` writes in a few milliseconds."""

Clock = Callable[[], datetime]


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}body{% endgeneration %}``: marks the assistant's tokens for training; here only its body."""

    tags = {"generation"}  # noqa: RUF012 - Jinja reads this as a class attribute

    def parse(self, parser: Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_keep")
        # A call block, as in transformers: the body gets a scope of its own, so `set` inside does not leak out.
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def _keep(self, caller: Any) -> Any:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _plain_json() -> Callable[[Any], str]:
    """``json.dumps(value, ensure_ascii=False)`` with an encoder that is made once. It looks for no cycles: JSON has
    none, and the immutable sandbox lets a template make none but of namespaces, which are no JSON."""
    plain = json.JSONEncoder(ensure_ascii=False)
    if json.encoder.c_make_encoder is None:  # type: ignore[attr-defined]
        return plain.encode
    encode = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
        None, plain.default, json.encoder.encode_basestring, None, ": ", ", ", False, False, True
    )
    return lambda value: "".join(encode(value, 0))


_dumps = _plain_json()


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    plain = not (ensure_ascii or sort_keys) and indent is None and separators is None
    if plain and (_is_flat(value) or not _is_large(value)):
        return _dumps(value)
    options: Any = {"ensure_ascii": ensure_ascii, "indent": indent, "separators": separators, "sort_keys": sort_keys}
    if _is_large(value):  # `dumps` would keep the interpreter to itself
        return "".join(json.JSONEncoder(**options).iterencode(value))
    return json.dumps(value, **options)


def _is_flat(value: Any) -> bool:
    """Whether ``value`` is a mapping of few things, none of which holds others: most arguments of calls are."""
    if type(value) is not dict or len(value) > 64:
        return False
    for item in value.values():  # noqa: SIM110 - a generator takes twice the time
        if type(item) is dict or type(item) is list:
            return False
    return True


def _is_large(value: Any) -> bool:
    """Whether ``value`` holds more than `_LARGE` others."""
    left = _LARGE
    level = [value]
    while level:
        inner: list[Any] = []
        for container in level:
            items = container.values() if type(container) is dict else container if type(container) is list else ()
            left -= len(items)
            if left < 0:
                return True
            inner += [item for item in items if type(item) is dict or type(item) is list]
        level = inner
    return False


def _strftime(now: datetime, format: str) -> str:
    """Raises `Unrenderable` where the engine, a little later, may print something else."""
    text = now.strftime(format)
    if any((now + shift).strftime(format) != text for shift in (-_CLOCK_MARGIN, _CLOCK_MARGIN)):
        raise Unrenderable(Bypass.CLOCK, "strftime_now")
    return text


def _random(*_: object, **__: object) -> NoReturn:
    raise Unrenderable(Bypass.RANDOM, "random choice in the template")


def environment(clock: Clock | None = None) -> ImmutableSandboxedEnvironment:
    """A fresh one. ``clock`` tells the local time in the place of the real one."""
    env = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = lambda format: _strftime(clock() if clock else datetime.now(), format)
    env.globals["lipsum"] = env.filters["random"] = _random  # Jinja2's own
    return env
