"""Templates made to break folding, each with a session that shows it: every one must render as in full."""

from __future__ import annotations

from tests.support.folding import TALK, assistant, calls, tool, user
from tests.support.folding_case import COUNTS, GROW, NS, SCALARS, TOOLS, Case, loop
from toktier.folding import Fallback, Unfolds

_LATER = (
    "{% set p = namespace(found=false) %}{% for x in messages[loop.index:] %}"
    "{% if x.role == 'assistant' and 'tool_calls' not in x %}{% set p.found = true %}{% endif %}{% endfor %}"
)
_NAMES = (
    "{% for x in messages %}{% for c in x.tool_calls or [] %}{% if c.id == m.tool_call_id %}{{ c.function.name }}"
    "{% endif %}{% endfor %}{% endfor %}"
)

CASES = [
    # equality
    Case(
        "types and signs show in JSON",
        loop("{{ m | tojson }}"),
        [[user(x), assistant("z")] for x in SCALARS] + [[{"a": 1, "b": 2}], [{"b": 2, "a": 1}]],
    ),
    Case("values of arguments too", loop("{{ t | tojson }}"), [(TALK[:2], {"t": x}) for x in SCALARS]),
    # the loop object
    Case("index0 - 1 of the first is the last", loop("{{ messages[loop.index0 - 1].role }}{{ m.content }}"), GROW),
    Case("the next one", loop("{{ (messages[loop.index0 + 1] or {}).content }}"), GROW, iterations=4),
    Case("last", loop("{{ m.content }}{% if not loop.last %},{% endif %}"), GROW, iterations=4),
    Case(
        "last, backwards",
        "{% for m in messages[::-1] %}{{ m.content }}{{ loop.last }}{% endfor %}",
        GROW,
        iterations=3,
    ),
    Case("first, backwards", "{% for m in messages | reverse %}{{ loop.first }}{{ m.content }}{% endfor %}", GROW),
    Case("index, backwards", "{% for m in messages[::-1] %}{{ loop.index0 }}{{ loop.revindex }}{% endfor %}", GROW),
    Case("place, backwards", "{% for m in messages[::-1] %}{{ messages|length - 1 - loop.index0 }}{% endfor %}", GROW),
    Case("length", loop("{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}"), GROW),
    Case("neighbours", loop("{{ (loop.previtem or m).content }}{{ (loop.nextitem or m).content }}{{ m.role }}"), GROW),
    Case("neighbours, backwards", "{% for m in messages[::-1] %}{{ (loop.previtem or m).content }}{% endfor %}", GROW),
    Case("cycle", loop("{{ loop.cycle('x', 'y', m.content) }}"), GROW, iterations=3),
    Case("changed", loop("{% if loop.changed(m.role) %}*{% endif %}"), GROW, unfolds=Unfolds.NO_LOOP),
    Case("the loop as a value", loop("{{ loop }}"), GROW, unfolds=Unfolds.NO_LOOP),
    Case("nested loops have their own", loop("{% for x in [1, 2] %}{{ loop.index }}{{ loop.last }}{% endfor %}"), GROW),
    Case(
        "of the outer loop in a nested iterable",
        loop("{% for x in messages[loop.index0:] %}{{ x.content }}{% endfor %};"),
        [*GROW, [*TALK[:3], user("new"), *TALK[4:]]],
    ),
    Case(
        "a prefix",
        loop("{% for x in messages[:loop.index0] %}{{ x.content }}{% endfor %};"),
        [*GROW, [*TALK[:3], user("new"), *TALK[4:]], TALK[:7], [*TALK, user("h")]],
        iterations=1,
    ),
    Case("negative slices", loop("{% for x in messages[-2:] %}{{ x.content }}{% endfor %};"), GROW),
    Case("every other", loop("{% for x in messages[::2] %}{{ x.content }}{% endfor %};"), GROW),
    Case(
        "a slice as a value",
        loop("{{ messages[loop.index0:loop.index0 + 2] | map(attribute='content') | join }};"),
        [*GROW, [*TALK[:3], user("new"), *TALK[4:]]],
    ),
    Case(
        "as far as a nested loop gets",
        loop("{% for x in messages %}{% if x.role == m.role %}{{ x.content }}{% break %}{% endif %}{% endfor %}"),
        [*GROW, [*TALK, user("h")]],
        iterations=1,
    ),
    # thresholds
    Case(
        "a threshold moves",
        NS
        + loop("{% if m.role == 'user' %}{% set ns.x = loop.index0 %}{% endif %}")
        + loop("{% if m.role == 'assistant' %}{{ loop.index0 > ns.x }}{% endif %}{{ m.content }}"),
        [
            *GROW,
            TALK[:6],
            TALK[:7],
            [*TALK, assistant("h"), tool("i"), tool("j")],
            [*TALK, assistant("h"), tool("i"), user("j")],
        ],
        iterations=3,
    ),
    Case(
        "a threshold of another type",
        loop("{{ loop.index0 == t }}"),
        [(TALK[:3], {"t": t}) for t in (0, True, 1, 1.0, "1")],
    ),
    Case(
        "an offset",
        loop("{{ loop.index + 1 > t }}{{ t <= loop.index0 - 1 }}"),
        [(TALK, {"t": t}) for t in (3, 4, 1, 7, 0, -1, 2)],
    ),
    Case(
        "over a range",
        "{% for i in range(s, messages|length) %}{{ i < t }}{{ messages[i].content }}{% endfor %}",
        [(TALK, {"t": t, "s": s}) for t, s in ((3, 0), (4, 0), (4, 1), (2, 1), (6, 1))],
    ),
    Case(
        "a range backwards",
        (
            "{% for i in range(messages|length - 1, -1, -1) %}{{ messages[i].content }}{{ messages[i - 1].role }}"
            "{% endfor %}"
        ),
        GROW,
    ),
    # what changes by itself
    Case("a joiner", "{% set j = joiner(',') %}" + loop("{{ j() }}{{ m.content }}"), GROW, fallback=Fallback.STATEFUL),
    Case(
        "a cycler",
        "{% set c = cycler('x', 'y') %}" + loop("{{ c.next() }}{{ m.content }}"),
        GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a cycler's current",
        "{% set c = cycler('x', 'y') %}" + loop("{{ c.current }}{% if m.role == 'user' %}{{ c.next() }}{% endif %}"),
        [*GROW, [assistant("A"), *TALK[1:]]],
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a cycler's method",
        "{% set c = cycler('x', 'y') %}{% set n = c.next %}" + loop("{{ n() }}{{ m.content }}"),
        GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a cycler in a list",
        "{% set l = [cycler('x', 'y')] %}"
        + loop("{{ l[0].current }}{% if m.role == 'user' %}{{ l[loop.index0 * 0].next() }}{% endif %}"),
        [*GROW, [assistant("A"), *TALK[1:]]],
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a generator",
        "{% set g = messages|map(attribute='content') %}" + loop("{{ g|first }}"),
        GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "a generator in a list",
        "{% set g = [messages|map(attribute='content')] %}" + loop("{{ g[0]|first }}"),
        GROW,
        fallback=Fallback.STATEFUL,
    ),
    Case(
        "over a generator",
        "{% for m in messages|selectattr('role', 'equalto', 'user') %}{{ m.content }}{% endfor %}",
        GROW,
        iterations=2,
    ),
    Case(
        "over part of a generator",
        "{% set g = messages|map(attribute='content') %}{% for m in g %}{{ m }}{% break %}{% endfor %}{{ g|list }}",
        GROW,
        fallback=Fallback.SEQUENCE,
    ),
    Case("identity", loop("{{ m is sameas messages[-1] }}"), GROW, unfolds=Unfolds.IDENTITY),
    Case(
        "identity by name",
        loop("{{ [m]|select('sameas', messages[0])|list|length }}"),
        GROW,
        unfolds=Unfolds.IDENTITY,
    ),
    Case(
        "identity by a variable name",
        loop("{{ [m]|select(t, messages[0])|list|length }}"),
        [(x, {"t": "sameas"}) for x in GROW],
        unfolds=Unfolds.IDENTITY,
    ),
    Case("the clock outside", "{{ strftime_now('%Y') }}" + loop("{{ m.content }}"), GROW, iterations=3),
    Case("the clock inside", loop("{{ strftime_now('%Y') }}{{ m.content }}"), GROW),
    # breaks
    Case(
        "a break",
        loop("{% if m.content == 'd' %}{% break %}{% endif %}{{ m.content }}"),
        [*GROW, [*TALK[:3], user("x"), *TALK[4:]], TALK, TALK[:2]],
    ),
    Case(
        "a break backwards",
        NS
        + (
            "{% for m in messages[::-1] %}{% if m.role == 'user' %}{% set ns.x = loop.revindex0 %}"
            "{% break %}{% endif %}{% endfor %}{{ ns.x }}"
        ),
        [*GROW, TALK[:6], TALK[:5], [assistant("A")], [*TALK, tool("x"), tool("y")]],
    ),
    Case("continue", loop("{% if m.role == 'user' %}{% continue %}{% endif %}{{ m.content }}"), GROW, iterations=3),
    Case(
        "a search that is done",
        loop(
            "{% set p = namespace(r='', found=false) %}{% for j in range(loop.index0 - 1, -1, -1) %}"
            "{% if not p.found %}{% if messages[j].role != 'tool' %}{% set p.r = messages[j].role %}"
            "{% set p.found = true %}{% endif %}{% endif %}{% endfor %}{{ m.role }}<{{ p.r }};"
        ),
        [
            [user("a"), tool("x"), tool("y"), assistant("b")],
            [assistant("a"), tool("x"), tool("y"), assistant("b")],
            [assistant("a"), user("x"), tool("y"), assistant("b")],
        ],
    ),
    Case(
        "a search ahead",
        loop(
            "{% set p = namespace(r='') %}{% for j in range(loop.index, messages|length) %}"
            "{% if not p.r %}{% if messages[j].role != m.role %}{% set p.r = messages[j].content %}"
            "{% endif %}{% endif %}{% endfor %}{{ p.r }};"
        ),
        [*GROW, [*TALK, user("h")], [*TALK, user("h"), user("i")]],
        iterations=3,
    ),
    Case(
        "a search ahead, the other way round",
        loop(
            "{% set p = namespace(r='') %}{% for j in range(loop.index, messages|length) %}{% if p.r %}"
            "{% elif messages[j].role != m.role %}{% set p.r = messages[j].content %}{% endif %}{% endfor %}{{ p.r }};"
        ),
        [*GROW, [*TALK, user("h")], [*TALK, user("h"), user("i")]],
        iterations=3,
    ),
    Case(
        "is there one later",
        loop(_LATER + "{% if m.role == 'assistant' %}{{ p.found }}{% endif %};"),
        [*GROW, TALK[:6], [*TALK, user("h")], [*TALK, *TOOLS], TALK[:5], [*TALK[:4], tool("x")], [*TALK, user("h")]],
    ),
    Case(
        "is there no later one",
        loop(_LATER + "{% if m.role == 'assistant' %}{{ p.found }}{% endif %};"),
        [TALK[:6], [*TALK[:6], *TOOLS[1:]], [*TALK[:6], *TOOLS[1:], *TOOLS[1:]]],
        iterations=7,
    ),
    Case(
        "later ones that are no mappings",
        loop(_LATER + "{{ p.found }};"),
        [TALK[:2], [user("a"), 5], [user("a"), assistant("b"), 5]],
        fallback=Fallback.SEQUENCE,
    ),
    Case(
        "the last user, backwards",
        (
            "{% set ns = namespace(open=true, last=messages|length - 1) %}"
            "{% for m in messages[::-1] %}{% set i = messages|length - 1 - loop.index0 %}"
            "{% if ns.open and m.role == 'user' %}{% set ns.open = false %}{% set ns.last = i %}"
            "{% endif %}{% endfor %}"
        )
        + loop("{{ loop.index0 > ns.last }}"),
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
        loop(
            "{% set at = loop.index0 %}{% set a = namespace(v=-1) %}{% for p in messages %}"
            "{% if p.role == 'assistant' and loop.index0 < at %}{% set a.v = loop.index0 %}"
            "{% endif %}{% endfor %}{{ a.v }}"
        ),
        [*GROW, [*TALK, user("h")]],
        iterations=1,
    ),
    # errors
    Case(
        "raises",
        loop("{% if m.content == 'd' %}{{ raise_exception('no ' ~ m.content) }}{% endif %}{{ m.role }}"),
        [TALK[:3], TALK[:4], TALK[:3], TALK[:2]],
    ),
    Case(
        "not a list",
        "{% for m in t %}{{ m }}{% endfor %}",
        [(TALK, {"t": t}) for t in ([1, 2], "ab", {"a": 1}, [1, 2, 3], None, 3, [])],
    ),
    Case("undefined", "{% for m in t %}{{ m }}{% endfor %}{{ messages|length }}", GROW),
    # look-ups
    Case(
        "calls by their ID",
        loop(f"{{% if m.tool_call_id %}}{_NAMES}{{% endif %}};"),
        [TOOLS[:3], TOOLS, [*TOOLS, user("b")], [*TOOLS, assistant("", tool_calls=calls("1"))]],
        iterations=2,
    ),
    Case(
        "other calls",
        loop(f"{{% if m.tool_call_id %}}{_NAMES}{{% endif %}};"),
        [TOOLS, [*TOOLS, assistant("", tool_calls=calls("3", "4"))], [*TOOLS, assistant("", tool_calls=calls("3"))]],
        iterations=1,
    ),
    Case(
        "calls that change their ID",
        loop(f"{{% if m.tool_call_id %}}{_NAMES}{{% endif %}};"),
        [TOOLS, [TOOLS[0], assistant("", tool_calls=calls("2", "1", "1")), *TOOLS[2:]], TOOLS[:2], TOOLS, TOOLS[1:]],
    ),
    Case(
        "keys that are not strings",
        loop(f"{{% if m.role == 'tool' %}}{_NAMES}{{% endif %}};"),
        [
            [
                assistant("", tool_calls=[{"id": x, "function": {"name": "f"}} for x in (1, None, "1", True)]),
                tool("x", **key),
            ]
            for key in ({}, {"tool_call_id": 1}, {"tool_call_id": None}, {"tool_call_id": "1"}, {"tool_call_id": 1.0})
        ],
    ),
    Case(
        "by a macro",
        "{% macro name(messages, key) %}{% for x in messages %}{% if x.role == 'assistant' and x.tool_calls %}"
        ""
        "{% for c in x.tool_calls %}{% if c.id == key %}{{ c.function.name }}{% endif %}"
        "{% endfor %}{% endif %}{% endfor %}{% endmacro %}"
        + loop("{% if m.tool_call_id %}{{ name(messages, m.tool_call_id) }}{% endif %};"),
        [TOOLS[:3], TOOLS, [*TOOLS, user("b")], [*TOOLS, assistant("", tool_calls=calls("5"))]],
        iterations=1,
    ),
    Case(
        "an item that raises",
        loop("{% for x in messages %}{% if x.a.b == m.tool_call_id %}!{% endif %}{% endfor %};"),
        [[tool("x", a={"b": "1"}, tool_call_id="1")], [tool("x", a={"b": "1"}, tool_call_id="1"), user("b")]],
    ),
    Case(
        "a counter beside it",
        NS + loop("{% for x in messages %}{% if x.role == m.role %}{{ ns.x }}{% endif %}" + COUNTS + "{% endfor %};"),
        GROW,
    ),
    Case(
        "the loop's number beside it",
        loop("{% for x in messages %}{% if x.role == m.role %}{{ loop.index }}{% endif %}{% endfor %};"),
        GROW,
    ),
]
