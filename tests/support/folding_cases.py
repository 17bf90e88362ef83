"""Templates made to break folding, each with a session that shows it: every one must render as in full.

``iterations`` is what the last request may run at most, where folding is to have an effect; ``fallback`` what must have
been said of it where it must not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.support.folding import TALK, assistant, calls, prefixes, tool, user
from toktier.folding import Fallback, Unfolds

Request = Any

_SCALARS = (0.0, -0.0, 0, False, 1, True, 1.0, "1")


@dataclass(frozen=True)
class Case:
    name: str
    source: str
    requests: list[Request]
    iterations: int | None = None
    fallback: Fallback | None = None
    unfolds: Unfolds | None = None


def _loop(body: str, before: str = "", after: str = "") -> str:
    return before + "{% for m in messages %}" + body + "{% endfor %}" + after


_COUNTS = "{% set ns.x = ns.x + 1 %}"
_NS = "{% set ns = namespace(x=0) %}"
_F = "{% macro f() %}" + _COUNTS + "{% endmacro %}"
_GROW = prefixes(2, 3, 5, 4, 7)
_TOOLS = [
    user("a"),
    assistant("", tool_calls=calls("1", "2")),
    tool("x", tool_call_id="1"),
    tool("y", tool_call_id="2"),
]

CASES = [
    # equality
    Case(
        "types and signs show in JSON",
        _loop("{{ m | tojson }}"),
        [[user(x), assistant("z")] for x in _SCALARS] + [[{"a": 1, "b": 2}], [{"b": 2, "a": 1}]],
    ),
    Case("values of arguments too", _loop("{{ t | tojson }}"), [(TALK[:2], {"t": x}) for x in _SCALARS]),
    # the loop object
    Case("index0 - 1 of the first is the last", _loop("{{ messages[loop.index0 - 1].role }}{{ m.content }}"), _GROW),
    Case("the next one", _loop("{{ (messages[loop.index0 + 1] or {}).content }}"), _GROW, iterations=4),
    Case("last", _loop("{{ m.content }}{% if not loop.last %},{% endif %}"), _GROW, iterations=4),
    Case(
        "last, backwards",
        "{% for m in messages[::-1] %}{{ m.content }}{{ loop.last }}{% endfor %}",
        _GROW,
        iterations=3,
    ),
    Case("first, backwards", "{% for m in messages | reverse %}{{ loop.first }}{{ m.content }}{% endfor %}", _GROW),
    Case("index, backwards", "{% for m in messages[::-1] %}{{ loop.index0 }}{{ loop.revindex }}{% endfor %}", _GROW),
    Case("place, backwards", "{% for m in messages[::-1] %}{{ messages|length - 1 - loop.index0 }}{% endfor %}", _GROW),
    Case("length", _loop("{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}"), _GROW),
    Case(
        "neighbours", _loop("{{ (loop.previtem or m).content }}{{ (loop.nextitem or m).content }}{{ m.role }}"), _GROW
    ),
    Case("neighbours, backwards", "{% for m in messages[::-1] %}{{ (loop.previtem or m).content }}{% endfor %}", _GROW),
    Case("cycle", _loop("{{ loop.cycle('x', 'y', m.content) }}"), _GROW, iterations=3),
    Case("changed", _loop("{% if loop.changed(m.role) %}*{% endif %}"), _GROW, unfolds=Unfolds.NO_LOOP),
    Case("the loop as a value", _loop("{{ loop }}"), _GROW, unfolds=Unfolds.NO_LOOP),
    Case(
        "nested loops have their own", _loop("{% for x in [1, 2] %}{{ loop.index }}{{ loop.last }}{% endfor %}"), _GROW
    ),
    Case(
        "of the outer loop in a nested iterable",
        _loop("{% for x in messages[loop.index0:] %}{{ x.content }}{% endfor %};"),
        [*_GROW, TALK[:3] + [user("new")] + TALK[4:]],
    ),
    Case(
        "a prefix",
        _loop("{% for x in messages[:loop.index0] %}{{ x.content }}{% endfor %};"),
        [*_GROW, TALK[:3] + [user("new")] + TALK[4:], TALK[:7], [*TALK, user("h")]],
        iterations=1,
    ),
    Case("negative slices", _loop("{% for x in messages[-2:] %}{{ x.content }}{% endfor %};"), _GROW),
    Case("every other", _loop("{% for x in messages[::2] %}{{ x.content }}{% endfor %};"), _GROW),
    Case(
        "a slice as a value",
        _loop("{{ messages[loop.index0:loop.index0 + 2] | map(attribute='content') | join }};"),
        [*_GROW, TALK[:3] + [user("new")] + TALK[4:]],
    ),
    Case(
        "as far as a nested loop gets",
        _loop("{% for x in messages %}{% if x.role == m.role %}{{ x.content }}{% break %}{% endif %}{% endfor %}"),
        [*_GROW, [*TALK, user("h")]],
        iterations=1,
    ),
    # thresholds
    Case(
        "a threshold moves",
        _NS
        + _loop("{% if m.role == 'user' %}{% set ns.x = loop.index0 %}{% endif %}")
        + _loop("{% if m.role == 'assistant' %}{{ loop.index0 > ns.x }}{% endif %}{{ m.content }}"),
        [
            *_GROW,
            TALK[:6],
            TALK[:7],
            [*TALK, assistant("h"), tool("i"), tool("j")],
            [*TALK, assistant("h"), tool("i"), user("j")],
        ],
        iterations=3,
    ),
    Case(
        "a threshold of another type",
        _loop("{{ loop.index0 == t }}"),
        [(TALK[:3], {"t": t}) for t in (0, True, 1, 1.0, "1")],
    ),
    Case(
        "an offset",
        _loop("{{ loop.index + 1 > t }}{{ t <= loop.index0 - 1 }}"),
        [(TALK, {"t": t}) for t in (3, 4, 1, 7, 0, -1, 2)],
    ),
    Case(
        "over a range",
        "{% for i in range(s, messages|length) %}{{ i < t }}{{ messages[i].content }}{% endfor %}",
        [(TALK, {"t": t, "s": s}) for t, s in ((3, 0), (4, 0), (4, 1), (2, 1), (6, 1))],
    ),
    Case(
        "a range backwards",
        "{% for i in range(messages|length - 1, -1, -1) %}{{ messages[i].content }}{{ messages[i - 1].role }}{% endfor %}",
        _GROW,
    ),
    # names
    Case(
        "a name with an outer value",
        "{% set c = 'O' ~ (messages|length) %}"
        + _loop("{% if m.role == 'user' %}{% set c = m.content %}{% endif %}{{ c }}"),
        _GROW,
    ),
    Case(
        "assigned below", _loop("{{ x }}", after="{% set x = 1 %}{{ x }}"), [(TALK[:2], {"x": 5}), (TALK[:3], {"x": 6})]
    ),
    Case(
        "read before it is assigned",
        _loop("{{ c }}{% set c = 1 %}{{ c }}"),
        [(TALK[:2], {"c": 5}), (TALK[:3], {"c": 6})],
    ),
    Case(
        "assigned in one branch",
        _loop("{% if m.role == 'user' %}{% set c = 1 %}{% endif %}{{ c }}"),
        [(TALK[:2], {"c": 5}), (TALK[:3], {"c": 6})],
    ),
    Case(
        "the item's name outside",
        _loop("{{ m.content }}", after="{{ m }}"),
        [(TALK[:2], {"m": 5}), (TALK[:3], {"m": 6})],
    ),
    Case(
        "messages below the loop",
        _loop("{{ m.content }}", after="{% set messages = messages[1:] %}") + _loop("{{ m.role }}"),
        _GROW,
    ),
    Case(
        "the body's name is a macro's free name",
        "{% macro f() %}{{ c }}{% endmacro %}" + _loop("{% set c = m.content %}{{ f() }}"),
        [(TALK[:2], {"c": 5}), (TALK[:3], {"c": 6})],
    ),
    Case(
        "unread branches raise nothing",
        _loop("{% if t is defined %}{{ t.a.b }}{% endif %}{{ m.content }}"),
        [(TALK[:2], {}), (TALK[:3], {})],
        iterations=1,
    ),
    # namespaces
    Case("carried", _NS + _loop(_COUNTS + "{{ ns.x }}", after="{{ ns.x }}"), _GROW, iterations=3),
    Case(
        "carried and edited",
        _NS + _loop("{% if m.role == 'user' %}" + _COUNTS + "{% endif %}{{ ns.x }}"),
        [TALK, [assistant("A"), *TALK[1:]], TALK, TALK[:2] + [user("x"), *TALK[3:]]],
    ),
    Case("written by a macro", _F + _NS + _loop("{{ f() }}{{ ns.x }}", after="{{ ns.x }}"), _GROW),
    Case(
        "written by a macro of a macro",
        _F + "{% macro g() %}{{ f() }}{% endmacro %}" + _NS + _loop("{{ g() }}{{ ns.x }}"),
        _GROW,
    ),
    Case(
        "read by a macro",
        "{% macro f() %}{{ ns.x }}{% endmacro %}" + _NS + _loop(_COUNTS + "{{ f() }}"),
        [*_GROW, TALK[1:]],
    ),
    Case(
        "none written over none",
        "{% set ns = namespace(x=none) %}{% if t %}{% set ns.x = 'T' %}{% endif %}"
        + _loop("{% if m.role == 'assistant' %}{% set ns.x = none %}{% endif %}", after="{{ ns.x }}"),
        [
            (TALK[:5], {}),
            (TALK[:5], {"t": 1}),
            (TALK[:1], {"t": 1}),
            (TALK[:5], {}),
            (TALK[:3] + [user("q")], {"t": 1}),
        ],
    ),
    Case(
        "the last of several writers",
        _NS + _loop("{% if m.role == 'user' %}{% set ns.x = m.content %}{% endif %}", after="{{ ns.x }}"),
        [TALK, TALK[:4] + [assistant("E"), *TALK[5:]], TALK[:6], TALK[:4] + [assistant("E")], TALK[:3]],
    ),
    Case(
        "a writer that stops writing",
        _NS + _loop("{% if m.role == 'user' %}{% set ns.x = m.content %}{% endif %}", after="{{ ns.x }}"),
        [TALK[:3], TALK[:2] + [assistant("C")], TALK[:2] + [assistant("C"), assistant("D")]],
    ),
    Case(
        "a local namespace",
        _loop("{% set p = namespace(x=0, y=m.role) %}{% set p.x = p.x + 1 %}{{ p.x }}{{ p.y }}"),
        _GROW,
        iterations=3,
    ),
    Case(
        "a local one shadows an outer one",
        "{% set p = namespace(x=t, y=t) %}"
        + _loop(
            "{% if m.role == 'user' %}{% set p = namespace(x=0, y=0) %}{% endif %}{% set p.x = p.x + 1 %}{{ p.x }}{{ p.y }}"
        ),
        [(TALK[:3], {"t": 1}), (TALK[:4], {"t": 1}), (TALK[:4], {"t": 2})],
    ),
    Case(
        "an attribute that did not exist",
        "{% set ns = namespace() %}"
        + _loop(
            "{{ ns.x }}{% if m.role == 'assistant' %}{% set ns.x = m.content %}{% endif %}",
            after="{{ ns.x is defined }}",
        ),
        [*_GROW, TALK[:1], TALK],
    ),
    Case(
        "an alias that is read",
        _NS + "{% set b = ns %}" + _loop(_COUNTS + "{{ b.x }}"),
        _GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "an alias that is written",
        "{% set b = namespace(x=0) %}{% set ns = b %}" + _loop(_COUNTS + "{{ b.x }}"),
        _GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "a parameter",
        "{% macro f(n) %}{% set n.x = n.x + 1 %}{% endmacro %}" + _NS + _loop("{{ f(ns) }}{{ ns.x }}"),
        _GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "in a list",
        "{% set l = [namespace(x=0)] %}" + _loop("{% for ns in l %}" + _COUNTS + "{{ ns.x }}{% endfor %}"),
        _GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "a large state",
        "{% set ns = namespace(x='') %}" + _loop("{% set ns.x = ns.x ~ m.content %}", after="{{ ns.x }}"),
        [[user("x" * 3000)], [user("x" * 3000), user("y" * 3000)]],
        fallback=Fallback.STATE,
    ),
    # macros
    Case(
        "a macro's free name",
        "{% macro f(m) %}{{ t }}{{ m.role }}{% endmacro %}" + _loop("{{ f(m) }}"),
        [(TALK, {"t": t}) for t in (1, True, 1, 2)],
    ),
    Case(
        "a macro with another name",
        _F + "{% set g = f %}" + _NS + _loop("{{ g() }}{{ ns.x }}"),
        _GROW,
        unfolds=Unfolds.MACRO_AS_VALUE,
    ),
    Case(
        "a macro in a list",
        _F + "{% set g = [f] %}" + _NS + _loop("{% for h in g %}{{ h() }}{% endfor %}{{ ns.x }}"),
        _GROW,
        unfolds=Unfolds.MACRO_AS_VALUE,
    ),
    Case(
        "a macro in a namespace",
        _F + "{% set h = namespace(f=f) %}" + _NS + _loop("{{ h.f() }}{{ ns.x }}"),
        _GROW,
        unfolds=Unfolds.MACRO_AS_VALUE,
    ),
    Case(
        "a macro in a loop",
        _loop("{% macro f() %}{{ m.content }}{% endmacro %}{{ f() }}"),
        _GROW,
        unfolds=Unfolds.INNER_MACRO,
    ),
    Case(
        "a list given to a macro",
        "{% macro f(l, i) %}{{ (l[i + 1] or {}).content }}{{ l|length }}{% endmacro %}"
        + _loop("{{ f(messages, loop.index0) }}"),
        [*_GROW, TALK[:3] + [user("new")] + TALK[4:]],
    ),
    Case(
        "a list given on",
        "{% macro g(k) %}{% for x in k %}{{ x.content }}{% endfor %}{% endmacro %}{% macro f(l) %}{{ g(l) }}{% endmacro %}"
        + _loop("{{ f(messages) }}"),
        [*_GROW, TALK[:3] + [user("new")] + TALK[4:]],
    ),
    Case(
        "another list given to it",
        "{% macro f(l) %}{% for x in l %}{{ x }}{% endfor %}{% endmacro %}" + _loop("{{ f(m.content) }}{{ f(l=u) }}"),
        [(TALK[:3], {"u": [1]}), (TALK[:3], {"u": [1, 2]}), (TALK[:4], {"u": None})],
    ),
    Case(
        "a call block",
        "{% macro f() %}<{{ caller(1) }}>{% endmacro %}"
        + _loop("{% call(x) f() %}{{ m.content }}{{ loop.last }}{{ x }}{% endcall %}"),
        _GROW,
        iterations=4,
    ),
    # what changes by itself
    Case(
        "a joiner", "{% set j = joiner(',') %}" + _loop("{{ j() }}{{ m.content }}"), _GROW, fallback=Fallback.STATEFUL
    ),
    Case(
        "a cycler",
        "{% set c = cycler('x', 'y') %}" + _loop("{{ c.next() }}{{ m.content }}"),
        _GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a cycler's current",
        "{% set c = cycler('x', 'y') %}" + _loop("{{ c.current }}{% if m.role == 'user' %}{{ c.next() }}{% endif %}"),
        [*_GROW, [assistant("A"), *TALK[1:]]],
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a cycler's method",
        "{% set c = cycler('x', 'y') %}{% set n = c.next %}" + _loop("{{ n() }}{{ m.content }}"),
        _GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a cycler in a list",
        "{% set l = [cycler('x', 'y')] %}" + _loop("{{ l[loop.index0 - loop.index0].next() }}{{ l[0].current }}"),
        [*_GROW, [assistant("A"), *TALK[1:]]],
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a generator",
        "{% set g = messages|map(attribute='content') %}" + _loop("{{ g|first }}"),
        _GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a generator in a list",
        "{% set g = [messages|map(attribute='content')] %}" + _loop("{{ g[0]|first }}"),
        _GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "over a generator",
        "{% for m in messages|selectattr('role', 'equalto', 'user') %}{{ m.content }}{% endfor %}",
        _GROW,
        iterations=2,
    ),
    Case(
        "over part of a generator",
        "{% set g = messages|map(attribute='content') %}{% for m in g %}{{ m }}{% break %}{% endfor %}{{ g|list }}",
        _GROW,
        fallback=Fallback.SEQUENCE,
    ),
    Case("identity", _loop("{{ m is sameas messages[-1] }}"), _GROW, unfolds=Unfolds.IDENTITY),
    Case(
        "identity by name",
        _loop("{{ [m]|select('sameas', messages[0])|list|length }}"),
        _GROW,
        unfolds=Unfolds.IDENTITY,
    ),
    Case(
        "identity by a variable name",
        _loop("{{ [m]|select(t, messages[0])|list|length }}"),
        [(x, {"t": "sameas"}) for x in _GROW],
        unfolds=Unfolds.IDENTITY,
    ),
    Case("the clock outside", "{{ strftime_now('%Y') }}" + _loop("{{ m.content }}"), _GROW, iterations=3),
    Case("the clock inside", _loop("{{ strftime_now('%Y') }}{{ m.content }}"), _GROW),
    # breaks
    Case(
        "a break",
        _loop("{% if m.content == 'd' %}{% break %}{% endif %}{{ m.content }}"),
        [*_GROW, TALK[:3] + [user("x"), *TALK[4:]], TALK, TALK[:2]],
    ),
    Case(
        "a break backwards",
        _NS
        + "{% for m in messages[::-1] %}{% if m.role == 'user' %}{% set ns.x = loop.revindex0 %}{% break %}{% endif %}{% endfor %}{{ ns.x }}",
        [*_GROW, TALK[:6], TALK[:5], [assistant("A")], [*TALK, tool("x"), tool("y")]],
    ),
    Case("continue", _loop("{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}"), _GROW, iterations=3),
    Case(
        "a search that is done",
        _loop(
            "{% set p = namespace(r='', found=false) %}{% for j in range(loop.index0 - 1, -1, -1) %}{% if not p.found %}{% if messages[j].role != 'tool' %}{% set p.r = messages[j].role %}{% set p.found = true %}{% endif %}{% endif %}{% endfor %}{{ m.role }}<{{ p.r }};"
        ),
        [
            [user("a"), tool("x"), tool("y"), assistant("b")],
            [assistant("a"), tool("x"), tool("y"), assistant("b")],
            [assistant("a"), user("x"), tool("y"), assistant("b")],
        ],
    ),
    Case(
        "a search ahead",
        _loop(
            "{% set p = namespace(r='') %}{% for j in range(loop.index, messages|length) %}{% if not p.r %}{% if messages[j].role != m.role %}{% set p.r = messages[j].content %}{% endif %}{% endif %}{% endfor %}{{ p.r }};"
        ),
        [*_GROW, [*TALK, user("h")], [*TALK, user("h"), user("i")]],
        iterations=3,
    ),
    Case(
        "the last user, backwards",
        "{% set ns = namespace(open=true, last=messages|length - 1) %}{% for m in messages[::-1] %}{% set i = messages|length - 1 - loop.index0 %}{% if ns.open and m.role == 'user' %}{% set ns.open = false %}{% set ns.last = i %}{% endif %}{% endfor %}"
        + _loop("{{ loop.index0 > ns.last }}"),
        [
            TALK[:1],
            TALK[:2],
            TALK[:2] + [tool("x")] * 3,
            TALK[:2] + [tool("x")] * 4,
            TALK[:3],
            TALK[:2],
            [assistant("x")],
        ],
    ),
    Case(
        "guarded by a number",
        _loop(
            "{% set at = loop.index0 %}{% set a = namespace(v=-1) %}{% for p in messages %}{% if p.role == 'assistant' and loop.index0 < at %}{% set a.v = loop.index0 %}{% endif %}{% endfor %}{{ a.v }}"
        ),
        [*_GROW, [*TALK, user("h")]],
        iterations=1,
    ),
    # errors
    Case(
        "raises",
        _loop("{% if m.content == 'd' %}{{ raise_exception('no ' ~ m.content) }}{% endif %}{{ m.role }}"),
        [TALK[:3], TALK[:4], TALK[:3], TALK[:2]],
    ),
    Case(
        "not a list",
        "{% for m in t %}{{ m }}{% endfor %}",
        [(TALK, {"t": t}) for t in ([1, 2], "ab", {"a": 1}, [1, 2, 3], None, 3, [])],
    ),
    Case("undefined", "{% for m in t %}{{ m }}{% endfor %}{{ messages|length }}", _GROW),
    Case(
        "calls by their ID",
        _loop(
            "{% if m.tool_call_id %}{% for x in messages %}{% for c in x.tool_calls or [] %}{% if c.id == m.tool_call_id %}{{ c.function.name }}{% endif %}{% endfor %}{% endfor %}{% endif %};"
        ),
        [_TOOLS[:3], _TOOLS, [*_TOOLS, user("b")], [*_TOOLS, assistant("", tool_calls=calls("1"))]],
    ),
]
