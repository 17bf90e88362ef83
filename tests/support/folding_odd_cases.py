"""Like `folding_cases`: templates that an adversary wrote, each of which rendered otherwise than in full once."""

from __future__ import annotations

from tests.support.folding import TALK, assistant, calls, tool, user
from tests.support.folding_case import GROW, NS, Case, loop
from toktier.folding import Fallback, Unfolds

SYSTEM = {"role": "system", "content": "s"}
TAIL = (
    "{% if messages[0].role == 'system' %}{% set tail = messages[1:] %}"
    "{% else %}{% set tail = messages %}{% endif %}"
)  # fmt: skip
PARENTS = [user("a", id="1", p="2"), user("b", id="2", p="3"), user("c", id="3", p="9"), user("d", q="1")]
NAMED = (
    "{% macro name(id) %}{% for x in messages %}{% for c in x.tool_calls %}{% if c.id == id %}{{ c.function.name }}"
    "{% endif %}{% endfor %}{% endfor %}{% endmacro %}"
)
CALLED = [assistant("", tool_calls=calls("1", "2")), tool("x", tool_call_id="1")]

CASES = [
    # look-ups
    Case(
        "a look-up whose key moves on",
        NS
        + loop(
            "{% set ns.x = m.q %}{% for x in messages %}{% if x.id == ns.x %}{{ x.content }}{% set ns.x = x.p %}"
            "{% endif %}{% endfor %};"
        ),
        [PARENTS, [*PARENTS, user("e", q="2")], [PARENTS[0], user("B", id="2", p="3"), *PARENTS[2:]]],
    ),
    Case(
        "a look-up whose key a macro moves on",
        NS
        + "{% macro on(p) %}{% set ns.x = p %}{% endmacro %}"
        + loop(
            "{% set ns.x = m.q %}{% for x in messages %}{% if x.id == ns.x %}{{ x.content }}{{ on(x.p) }}"
            "{% endif %}{% endfor %};"
        ),
        [PARENTS, [*PARENTS, user("e", q="2")]],
    ),
    Case(
        "a look-up whose key an item changes",
        loop(
            "{% for id in [m.q] %}{% for x in messages %}{% if x.content == 'c' %}{% set id = '3' %}{% endif %}"
            "{% if x.id == id %}{{ x.content }}{% endif %}{% endfor %}{% endfor %};"
        ),
        [PARENTS, [*PARENTS, user("e", q="2")], PARENTS[1:]],
    ),
    Case(
        "a look-up whose key writes",
        NS
        + "{% macro id() %}{% set ns.x = ns.x + 1 %}1{% endmacro %}"
        + loop("{% for x in messages %}{% if x.id == id() %}{{ ns.x }}{% endif %}{% endfor %}:{{ ns.x }};"),
        [PARENTS, [*PARENTS, user("e", q="2")], PARENTS[1:]],
    ),
    Case(
        "a look-up whose key uses something up",
        "{% macro f(ids) %}{% for x in messages %}{% if x.id == ids|first %}{{ x.content }}{% endif %}{% endfor %}"
        "{{ ids|list|length }}{% endmacro %}" + loop("{{ f(['2', '1', '3']|map('string')) }};"),
        [PARENTS, [*PARENTS, user("e", q="2")], PARENTS[1:]],
    ),
    Case(
        "one look-up twice in an iteration",
        NAMED + loop("{{ name(m.tool_call_id) }}{{ name(m.tool_call_id) }}{{ loop.last }}"),
        [CALLED, [*CALLED, tool("y", tool_call_id="1")], [*CALLED, tool("y", tool_call_id="2"), user("z")]],
    ),
    Case(
        "a look-up in a list with two names",
        TAIL.replace("messages[1:]", "[]")
        + NAMED.replace("name(id)", "name(l, id)").replace("in messages", "in l")
        + loop("{{ messages[loop.index0].role }}{{ name(tail, m.tool_call_id) }};"),
        [[user("a"), *CALLED], [SYSTEM, *CALLED], [SYSTEM, *CALLED, CALLED[1]], [user("a"), *CALLED, CALLED[1]]],
    ),
    # lists
    Case(
        "a list that was undefined",
        "{% macro f(l) %}{% for x in l %}{{ x }}{% endfor %}{% endmacro %}" + loop("{{ f(u) }}{{ f(v) }};"),
        [(TALK[:3], given) for given in ({}, {"v": [1]}, {"u": [2]}, {})],
    ),
    Case(
        "a list with two names",
        TAIL
        + "{% macro g(l) %}{{ l[1].content }}{% endmacro %}"
        + loop("{{ messages[loop.index0].role }}{{ g(tail) }};"),
        [TALK, [SYSTEM, *TALK[1:]], TALK, [*TALK, user("h")]],
    ),
    Case(
        "as far as a macro reads a list with two names",
        TAIL
        + "{% macro g(l) %}{% for x in l %}{{ x.content }}{% if loop.index > 2 %}{% break %}{% endif %}{% endfor %}"
        + "{% endmacro %}"
        + loop("{{ messages[loop.index0].role }}{{ g(tail) }};"),
        [TALK[:5], [SYSTEM, *TALK[1:5]], TALK[:5], TALK],
        iterations=2,
    ),
    Case(
        "nothing with two names",
        "{% macro g(l) %}{{ l is none }}{% endmacro %}" + loop("{{ a[loop.index0] }}{{ g(b) }};"),
        [(TALK[:2], {"a": a, "b": b}) for a, b in ((None, None), (None, []), ([1], None), (None, None), ([1], []))],
    ),
    Case("a slice of nothing", loop("{{ tools[loop.index0:] }}"), [TALK[:1], (TALK[:1], {"tools": [1]}), TALK[:2]]),
    Case(
        "a loop over a slice of nothing",
        loop("{% for x in tools[loop.index0:] %}{{ x }}{% endfor %}"),
        [TALK[:1], (TALK[:1], {"tools": [1]}), TALK[:2]],
    ),
    Case(
        "a slice from something odd",
        NS + loop("{{ messages[ns.x:]|length }}{% set ns.x = m.content %}"),
        [TALK[:1], TALK[:2], [user(1), user(2)], [user(None), user(True), user(2)]],
    ),
    # loops that stop early
    Case(
        "what is skipped would have raised",
        "{% set ns = namespace(x=1) %}"
        + loop("{% set a = loop.index0 + t|length %}{% if not ns.x %}{% set ns.x = 1 %}X{% endif %}"),
        [(TALK[:2], {"t": t}) for t in ([], 5, "ab", None)],
    ),
    Case(
        "what is skipped at once would have raised",
        loop("{% set a = loop.index0 + t|length %}{% if loop.index0 < z %}X{% endif %}"),
        [(TALK[:2], {"t": t, "z": 0}) for t in ([], 5, "ab", None)],
    ),
    # names
    Case(
        "a name that is only assigned to at its own level",
        loop("{% for n in [1] %}{{ x is defined }}{% endfor %}{% set x = 1 %}{{ x }}"),
        [(TALK[:size], {"x": "given"}) for size in (1, 2, 3, 2)],
    ),
    Case(
        "a key that is only assigned to at its own level",
        loop(
            "{% for o in messages %}{% for c in o.tool_calls %}{% if c.id == x %}{{ c.id }}{% endif %}{% endfor %}"
            "{% endfor %}{% set x = 1 %}"
        ),
        [(CALLED[:size], {"x": "1"}) for size in (1, 2)],
    ),
    Case(
        "a key that a macro only assigns to at its own level",
        "{% macro f() %}{% for o in messages %}{% for c in o.tool_calls %}{% if c.id == x %}{{ c.id }}{% endif %}"
        "{% endfor %}{% endfor %}{% set x = 1 %}{% endmacro %}" + loop("{{ f() }}"),
        [(CALLED[:size], {"x": "1"}) for size in (1, 2)],
    ),
    Case(
        "a name that is read in a stretch, then assigned to",
        loop(
            "{% if loop.index0 > t %}!{% endif %}{% for c in m.tool_calls %}{{ c|tojson }}{% endfor %}{{ s }}"
            "{% set s = m.role %}"
        ),
        [(CALLED[:1], {"t": t, "s": s}) for t, s in ((0, "given"), (-1, "given"), (0, "other"))],
    ),
    Case(
        "a macro that depends",
        "{% if messages[0].role == 'system' %}{% macro f() %}A{% endmacro %}{% else %}{% macro f() %}B{% endmacro %}"
        "{% endif %}" + loop("{{ f() }}"),
        [TALK[:3], [SYSTEM, *TALK[1:3]]],
        unfolds=Unfolds.INNER_MACRO,
    ),
    Case(
        "a namespace by the name of loop",
        "{% set loop = namespace(index0=7) %}" + loop("{{ loop.index0 }}") + "{% set loop.a = 1 %}",
        GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "an item by the name of caller",
        "{% for caller in messages %}{{ caller.role }}{% endfor %}" + loop("{{ m }}"),
        GROW,
    ),
    Case(
        "an item by the name of caller, looked up",
        loop("{% for caller in messages %}{% if caller.id == m.p %}{{ caller.content }}{% endif %}{% endfor %};"),
        [PARENTS, PARENTS[:2], [*PARENTS, user("e", p="1")]],
    ),
    Case(
        "a block for the loop's own method",
        loop("{% if t %}{% call loop.cycle('a') %}x{% endcall %}{% endif %}{{ m.role }}"),
        [(TALK[:2], {"t": t}) for t in (0, 1, 0)],
        unfolds=Unfolds.NO_LOOP,
    ),
    Case(
        "an item by the name of its list",
        "{% set f = namespace(it=false) %}{% for messages in messages %}{% for x in messages[loop.index:] %}"
        "{% if x.role == 'user' %}{% set f.it = true %}{% endif %}{% endfor %}{{ f.it }}{% endfor %}",
        [[], TALK[:2], TALK[:3]],
    ),
    Case(
        "an item by the name of its list, backwards",
        "{% for messages in messages[::-1] %}{{ messages|length - 1 - loop.index0 }};{% endfor %}",
        [TALK[:2], TALK[:3], [user("a", id="x"), *TALK[:2]]],
    ),
    Case(
        "a range that ends below zero",
        "{% for i in range(n) %}{{ i }}{% endfor %};{% for i in range(2, n) %}{{ i }}{% endfor %};"
        "{% for i in range(n, 1, -1) %}{{ i }}{% endfor %}",
        [(TALK[:1], {"n": n}) for n in (-1, 3, -2, 0, -1, 5)],
    ),
    Case(
        "another range",
        "{% set range = dict %}{% for i in range([[5, 1], [1, 1], [3, 0]]) %}{{ i > t }}{% endfor %}",
        [(TALK[:1], {"t": t}) for t in (1, 2, 3, 0)],
        fallback=Fallback.SEQUENCE,
    ),
    Case(
        "a default that is another parameter",
        "{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}" + loop("{{ f(m.content) }}{{ loop.last }}"),
        GROW,
        iterations=5,
    ),
]
