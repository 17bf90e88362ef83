"""Like `folding_cases`: names, namespaces and macros."""

from __future__ import annotations

from tests.support.folding import TALK, assistant, calls, user
from tests.support.folding_case import COUNTS, GROW, NS, Case, F, loop
from toktier.folding import Fallback, Unfolds

USERS = [[user(letter) for letter in letters] for letters in ("ab", "abcd", "abcde", "axcde")]
ONCE = "{% set users = messages|selectattr('role', 'equalto', 'user') %}"
FLAG = "{% set f = namespace(it=false) %}"
FIRST = "{% for u in users %}{% if not f.it %}{% set f.it = true %}{{ u.content }}{% endif %}{% endfor %}"
REST = "|{{ users|map(attribute='content')|join(',') }}"
PLAIN = loop("{{ m.role }}")
CALLED = "{% for c in m.tool_calls %}{{ c.id }}{% endfor %}"
AGE = "{% if loop.index0 > t %}new{% endif %}"
CALLING = [[assistant("a", tool_calls=calls(*names))] for names in ("xy", "yz")]
NS_X = "{{ ns.x|length }}{{ ns.x[-3:] }}"
LONG_TALK = [one | {"content": one["content"] * 5000} for one in TALK]

CASES = [
    # stretches of the item alone
    Case(
        "a stretch that an item has not",
        loop("{% if loop.index0 > t %}" + CALLED + "{% endif %}{{ m.content * 9 }}"),
        [(CALLING[0], {"t": -1}), (CALLING[1], {"t": 5}), (CALLING[1], {"t": -1})],
    ),
    Case(
        "a stretch of another item",
        loop(AGE + CALLED),
        [(CALLING[0], {"t": -1}), (CALLING[1], {"t": -1}), (CALLING[0], {"t": 5})],
    ),
    Case(
        "a stretch with a name of the moment",
        loop(AGE + "{% set s = t %}{% for c in m.tool_calls %}{{ s }}{% endfor %}"),
        [(CALLING[0], {"t": t}) for t in (-1, 3, -2)],
    ),
    Case(
        "a stretch that uses something up",
        loop(
            "{% set g = m.tool_calls|map(attribute='id') %}"
            + AGE
            + "{% for c in g %}{{ c }}{% endfor %}{{ g|list|length + t }}"
        ),
        [(CALLING[0], {"t": t}) for t in (-1, 3, -2)],
    ),
    Case(
        "a stretch with an outer value",
        loop(AGE + "{% for c in m.tool_calls %}{{ y }}{% set y = c.id %}{% endfor %}"),
        [(CALLING[0], {"t": t, "y": y}) for t, y in ((-1, 1), (3, 1), (3, 2), (-1, 2), (5, 3))],
    ),
    # loops that could stop, over what can be read a single time: the rest of it is not there for whoever reads on
    Case("read to its end in an iteration", loop(FLAG + ONCE + FIRST + REST), USERS),
    Case(
        "read to its end in a block", PLAIN + FLAG + ONCE + "{% set x %}" + FIRST + "{% endset %}{{ x }}" + REST, USERS
    ),
    Case(
        "read to its end in a filter",
        PLAIN + FLAG + ONCE + "{% filter upper %}" + FIRST + "{% endfilter %}" + REST,
        USERS,
    ),
    Case(
        "read to its end in a macro",
        FLAG + "{% macro g(users) %}" + FIRST + "{% endmacro %}" + PLAIN + ONCE + "{{ g(users) }}" + REST,
        USERS,
    ),
    Case("batches", loop(FLAG + "{% set users = messages|batch(1) %}" + FIRST + "{{ users|list|length }}"), USERS),
    Case(
        "an error behind the end of a loop",
        loop(
            FLAG + "{% for n in messages|map(attribute='content')|map('first') %}"
            "{% if not f.it %}{% set f.it = true %}{{ n }}{% endif %}{% endfor %}"
        ),
        [*USERS[:2], [*USERS[1], assistant(5)]],
    ),
    Case(
        "all that match, not the first ones",
        loop("{% for x in messages %}{% if x.role == m.role %}{{ x.content }}{% endif %}{% endfor %};"),
        GROW,
    ),
    Case("a list may be left early", loop(FLAG + "{% set users = messages[1:] %}" + FIRST + REST), USERS),
    # names
    Case(
        "a name with an outer value",
        "{% set c = 'O' ~ (messages|length) %}"
        + loop("{% if m.role == 'user' %}{% set c = m.content %}{% endif %}{{ c }}"),
        GROW,
    ),
    Case(
        "assigned below", loop("{{ x }}", after="{% set x = 1 %}{{ x }}"), [(TALK[:2], {"x": 5}), (TALK[:3], {"x": 6})]
    ),
    Case(
        "read before it is assigned",
        loop("{{ c }}{% set c = 1 %}{{ c }}"),
        [(TALK[:2], {"c": 5}), (TALK[:3], {"c": 6})],
    ),
    Case(
        "assigned in one branch",
        loop("{% if m.role == 'user' %}{% set c = 1 %}{% endif %}{{ c }}"),
        [(TALK[:2], {"c": 5}), (TALK[:3], {"c": 6})],
    ),
    Case(
        "the item's name outside",
        loop("{{ m.content }}", after="{{ m }}"),
        [(TALK[:2], {"m": 5}), (TALK[:3], {"m": 6})],
    ),
    Case(
        "messages below the loop",
        loop("{{ m.content }}", after="{% set messages = messages[1:] %}") + loop("{{ m.role }}"),
        GROW,
    ),
    Case(
        "the body's name is a macro's free name",
        "{% macro f() %}{{ c }}{% endmacro %}" + loop("{% set c = m.content %}{{ f() }}"),
        [(TALK[:2], {"c": 5}), (TALK[:3], {"c": 6})],
    ),
    Case(
        "unread branches raise nothing",
        loop("{% if t is defined %}{{ t.a.b }}{% endif %}{{ m.content }}"),
        [(TALK[:2], {}), (TALK[:3], {})],
        iterations=1,
    ),
    # namespaces
    Case("carried", NS + loop(COUNTS + "{{ ns.x }}", after="{{ ns.x }}"), GROW, iterations=3),
    Case(
        "carried and edited",
        NS + loop("{% if m.role == 'user' %}" + COUNTS + "{% endif %}{{ ns.x }}"),
        [TALK, [assistant("A"), *TALK[1:]], TALK, [*TALK[:2], user("x"), *TALK[3:]]],
    ),
    Case(
        "carried, in an expression",
        NS + loop("{% if m.role == 'user' %}{% set ns.x = m.content %}{% endif %}{{ ns.x ~ '!' }}"),
        [TALK, [user("A"), *TALK[1:]], [assistant("A"), *TALK[1:]]],
    ),
    Case("written by a macro", F + NS + loop("{{ f() }}{{ ns.x }}", after="{{ ns.x }}"), GROW),
    Case(
        "written by a macro of a macro",
        F + "{% macro g() %}{{ f() }}{% endmacro %}" + NS + loop("{{ g() }}{{ ns.x }}"),
        GROW,
    ),
    Case(
        "read by a macro",
        "{% macro f() %}{{ ns.x }}{% endmacro %}" + NS + loop(COUNTS + "{{ f() }}"),
        [*GROW, TALK[1:]],
    ),
    Case(
        "none written over none",
        "{% set ns = namespace(x=none) %}{% if t %}{% set ns.x = 'T' %}{% endif %}"
        + loop("{% if m.role == 'assistant' %}{% set ns.x = none %}{% endif %}", after="{{ ns.x }}"),
        [
            (TALK[:5], {}),
            (TALK[:5], {"t": 1}),
            (TALK[:1], {"t": 1}),
            (TALK[:5], {}),
            ([*TALK[:3], user("q")], {"t": 1}),
        ],
    ),
    Case(
        "the last of several writers",
        NS + loop("{% if m.role == 'user' %}{% set ns.x = m.content %}{% endif %}", after="{{ ns.x }}"),
        [TALK, [*TALK[:4], assistant("E"), *TALK[5:]], TALK[:6], [*TALK[:4], assistant("E")], TALK[:3]],
    ),
    Case(
        "a writer that stops writing",
        NS + loop("{% if m.role == 'user' %}{% set ns.x = m.content %}{% endif %}", after="{{ ns.x }}"),
        [TALK[:3], [*TALK[:2], assistant("C")], [*TALK[:2], assistant("C"), assistant("D")]],
    ),
    Case(
        "a local namespace",
        loop("{% set p = namespace(x=0, y=m.role) %}{% set p.x = p.x + 1 %}{{ p.x }}{{ p.y }}"),
        GROW,
        iterations=3,
    ),
    Case(
        "a local one shadows an outer one",
        "{% set p = namespace(x=t, y=t) %}"
        + loop(
            "{% if m.role == 'user' %}{% set p = namespace(x=0, y=0) %}{% endif %}"
            "{% set p.x = p.x + 1 %}{{ p.x }}{{ p.y }}"
        ),
        [(TALK[:3], {"t": 1}), (TALK[:4], {"t": 1}), (TALK[:4], {"t": 2})],
    ),
    Case(
        "an attribute that did not exist",
        "{% set ns = namespace() %}"
        + loop(
            "{{ ns.x }}{% if m.role == 'assistant' %}{% set ns.x = m.content %}{% endif %}",
            after="{{ ns.x is defined }}",
        ),
        [*GROW, TALK[:1], TALK],
    ),
    Case(
        "an alias that is read",
        NS + "{% set b = ns %}" + loop("{{ b.x }}{% set ns.x = m.content %}"),
        GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "an alias that is written",
        "{% set b = namespace(x=0) %}{% set ns = b %}" + loop("{{ b.x }}{% set ns.x = m.content %}"),
        GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "a parameter",
        "{% macro f(n) %}{% set n.x = n.x + 1 %}{% endmacro %}" + NS + loop("{{ f(ns) }}{{ ns.x }}"),
        GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "in a list",
        "{% set l = [namespace(x=0)] %}" + loop("{% for ns in l %}" + COUNTS + "{{ ns.x }}{% endfor %}"),
        GROW,
        unfolds=Unfolds.SHARED_NAMESPACE,
    ),
    Case(
        "a large state",
        "{% set ns = namespace(x='') %}"
        + loop("{% if m.role == 'user' %}{% set ns.x = ns.x ~ m.content %}{% endif %}{{ ns.x|length }};", after=NS_X),
        [LONG_TALK[:size] for size in (3, 5, 4, 6, 6, 2, 7)] + [[user("a" * 5000), *LONG_TALK[1:]], LONG_TALK],
    ),
    Case(
        "a system prompt in a namespace",
        "{% set ns = namespace(x='', n=0) %}"
        + loop(
            "{% set ns.n = ns.n + 1 %}{% if m.role == 'system' %}{% set ns.x = ns.x ~ m.content %}{% endif %}",
            after=NS_X,
        )
        + loop("{{ m.role }}"),
        [[{"role": "system", "content": "s" * 20_000}, *TALK[:size]] for size in (2, 3, 5, 4, 7)],
        iterations=6,
    ),
    Case(
        "too much left behind",
        "{% set ns = namespace(x='') %}" + loop("{% set ns.x = m.content %}", after=NS_X),
        [[user("x" * 100_000)], [user("x" * 100_000), user("y" * 100_000)]],
        fallback=Fallback.STATE,
    ),
    # macros
    Case(
        "a macro's free name",
        "{% macro f(m) %}{{ t }}{{ m.role }}{% endmacro %}" + loop("{{ f(m) }}"),
        [(TALK, {"t": t}) for t in (1, True, 1, 2)],
    ),
    Case(
        "a macro with another name",
        F + "{% set g = f %}" + NS + loop("{% if m.role == 'user' %}{{ g() }}{% endif %}{{ ns.x }}"),
        [*GROW, [assistant("A"), *TALK[1:]]],
        unfolds=Unfolds.MACRO_AS_VALUE,
    ),
    Case(
        "a macro in a list",
        F + "{% set g = [f] %}" + NS + loop("{% for h in g %}{{ h() }}{% endfor %}{{ ns.x }}"),
        GROW,
        unfolds=Unfolds.MACRO_AS_VALUE,
    ),
    Case(
        "a macro in a namespace",
        F + "{% set h = namespace(f=f) %}" + NS + loop("{{ h.f() }}{{ ns.x }}"),
        GROW,
        unfolds=Unfolds.MACRO_AS_VALUE,
    ),
    Case(
        "a macro in a loop",
        loop("{% macro f() %}{{ m.content }}{% endmacro %}{{ f() }}"),
        GROW,
        unfolds=Unfolds.INNER_MACRO,
    ),
    Case(
        "a list given to a macro",
        "{% macro f(l, i) %}{{ (l[i + 1] or {}).content }}{{ l|length }}{% endmacro %}"
        + loop("{{ f(messages, loop.index0) }}"),
        [*GROW, [*TALK[:3], user("new"), *TALK[4:]]],
    ),
    Case(
        "a list given on",
        (
            "{% macro g(k) %}{% for x in k %}{{ x.content }}{% endfor %}{% endmacro %}"
            "{% macro f(l) %}{{ g(l) }}{% endmacro %}"
        )
        + loop("{{ f(messages) }}"),
        [*GROW, [*TALK[:3], user("new"), *TALK[4:]]],
    ),
    Case(
        "another list given to it",
        "{% macro f(l) %}{% for x in l %}{{ x }}{% endfor %}{% endmacro %}" + loop("{{ f(m.content) }}{{ f(l=u) }}"),
        [(TALK[:3], {"u": [1]}), (TALK[:3], {"u": [1, 2]}), (TALK[:4], {"u": None})],
    ),
    Case(
        "a call block",
        "{% macro f() %}<{{ caller(1) }}>{% endmacro %}"
        + loop("{% call(x) f() %}{{ m.content }}{{ loop.last }}{{ x }}{% endcall %}"),
        GROW,
        iterations=4,
    ),
]
