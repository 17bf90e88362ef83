"""Templates that nobody would write: random programs of what folding knows, and of what it must not trust."""

from __future__ import annotations

import random

_LISTS = ("messages", "messages", "tail", "tools", "once")
_ONCE = (
    "messages|map(attribute='content')",
    "messages|selectattr('role', 'equalto', 'user')",
    "messages|rejectattr('content', 'none')",
    "messages|batch(2)",
    "messages",
)
"""What can be read a single time, most of it."""
_ATTRIBUTES = ("ns.a", "ns.b", "ns.f", "other.a")
_T = ("", "(tools or [])|length", "messages|length % 3", "messages[0].role == 'system'", "enable_thinking")
"""What ``t`` is, which changes from one request to the next; undefined where that is nothing."""
_TAIL = (
    "{% set tail = messages[1:] %}",
    "{% set tail = messages %}",
    "{% set tail = tools %}",
    "{% set tail = messages if t else tools %}",
    "{% if t %}{% set tail = messages %}{% else %}{% set tail = messages[1:] %}{% endif %}",
)


class RandomTemplate:
    """``source`` is made from the seed. It need not render without an error."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._nested_in = False
        self._depth, self._callable = 0, "g"
        parts = [
            "{% set ns = namespace(a=0, b='', f=false) %}{% set other = namespace(a=messages|length - 1) %}",
            f"{{% set t = {t} %}}" if (t := self._choice(_T)) else "",
            self._choice(_TAIL),
            self._choice(["", "{% set x = t %}", "{% if t %}{% set x = 'X' %}{% endif %}"]),
            f"{{% set once = {self._choice(_ONCE)} %}}",
            *(self._macro(name) for name in ("f", "g")),
        ]
        parts += [self._loop() for _ in range(self._random.randint(1, 3))]
        if self._random.random() < 0.05:
            parts.append(f"{{% autoescape true %}}{self._choice([self._loop(), self._output()])}{{% endautoescape %}}")
        parts += [self._output(), self._choice(["", "{% set x = 1 %}", "{% set y = 1 %}{{ y }}"])]
        self._random.shuffle(parts) if self._random.random() < 0.05 else None
        self.source = "".join(parts)

    def _choice(self, options: list[str] | tuple[str, ...]) -> str:
        return self._random.choice(options)

    def _macro(self, name: str) -> str:
        self._depth, self._callable = 2, "f"
        body = self._statements("p", 2, calls=name == "g", looped=False)
        self._depth, self._callable = 0, "g"
        made = f"{{% macro {name}(p, l=none) %}}{body}{{% endmacro %}}"
        if self._random.random() < 0.03:
            made = (
                f"{{% if t %}}{made}{{% else %}}{{% macro {name}(p, l=none) %}}{{{{ p }}}}{{% endmacro %}}{{% endif %}}"
            )
        return made

    def _loop(self) -> str:
        over = self._choice(
            (
                *("messages", "messages", "messages", "messages[::-1]", "messages|reverse", "tail", "tools or []", "t"),
                *("range(messages|length)", "range(messages|length - 1, -1, -1)", "range(1, messages|length)"),
                "range(other.a - 1)",
                "messages|selectattr('role', 'equalto', 'user')",
            )
        )
        item = self._choice(["messages", "caller", "tail"]) if self._random.random() < 0.05 else "m"
        return f"{{% for {item} in {over} %}}{self._statements(item, self._random.randint(1, 4))}{{% endfor %}}"

    def _statements(self, item: str, count: int, calls: bool = True, looped: bool = True) -> str:
        return "".join(self._statement(item, calls, looped) for _ in range(count))

    def _statement(self, item: str, calls: bool, looped: bool) -> str:
        self._depth += 1
        try:
            chance = self._random.random()
            if chance < 0.3 or self._depth > 4:
                return self._output(item, calls, looped)
            if chance < 0.55:
                test = self._test(item, looped)
                more = f"{{% else %}}{self._statement(item, calls, looped)}" if self._random.random() < 0.3 else ""
                return f"{{% if {test} %}}{self._statements(item, 1, calls, looped)}{more}{{% endif %}}"
            if chance < 0.75:
                target = self._choice(_ATTRIBUTES[:3])
                value = "true" if target == "ns.f" else self._value(item, looped)
                return f"{{% set {target} = {value} %}}"
            if chance < 0.81:
                return f"{{% set {self._choice(['x', 'y'])} = {self._value(item, looped)} %}}"
            if chance < 0.83:
                return f"{{% set once = {self._choice(_ONCE)} %}}"
            if chance < 0.88 and looped and not self._nested_in:
                return self._calls(item)
            if chance < 0.91 and not self._nested_in:
                return self._nested(item, looped)
            if chance < 0.93 and not self._nested_in:
                return self._looked_up(item)
            if looped and chance < 0.96:
                return (
                    f"{{% if {self._test(item, looped)} %}}{{% {self._choice(['break', 'continue'])} %}}{{% endif %}}"
                )
            return self._output(item, calls, looped)
        finally:
            self._depth -= 1

    def _calls(self, item: str) -> str:
        """What may be made of the item alone, or of a name that is."""
        values = (f"{item}.role", f"{item}.content ~ '!'", f"{item}.tool_calls|map(attribute='id')", "ns.b", "x", "t")
        text = "s if s is string else s|list|length"  # an iterator's own text tells where it is
        named = f"{{% set s = {self._choice(values)} %}}"
        if self._random.random() < 0.4:
            named = f"{{% if {self._test(item, True)} %}}{named}{{% endif %}}"
        shown = ("c|tojson", "c.id", text, "loop.index", "s|list|length", "loop.first", "f(c)", "y", "ns.a")
        inner = "".join(f"{{{{ {self._choice(shown)} }}}}" for _ in range(3))
        made = (
            f"{{% for c in {item}.tool_calls or [] %}}{inner}{self._choice(['', '{% set y = c.id %}'])}{{% endfor %}}"
        )
        if self._random.random() < 0.4:
            made = f"{{% if {self._test(item, True)} %}}{made}{{% endif %}}"
        return self._choice(["", named]) + made + self._choice(["", f"{{{{ {text} }}}}", "{{ s|list|length }}"])

    def _looked_up(self, item: str) -> str:
        """A search for a call, whose key the search itself may change."""
        key = self._choice([f"{item}.tool_call_id", f"{item}.tool_call_id", "ns.b", "x"])
        more = self._choice(["", "", "{% set ns.b = c.id %}", "{% set ns.b = n.tool_call_id %}", "{% set x = c.id %}"])
        found = f"{{% if c.id == {key} %}}{{{{ c.function.name }}}}{more}{{% endif %}}"
        over = self._choice([*_LISTS, "l"])
        return f"{{% for n in {over} %}}{{% for c in n.tool_calls or [] %}}{found}{{% endfor %}}{{% endfor %}}"

    def _nested(self, item: str, looped: bool) -> str:
        at = "loop.index0" if looped else "1"
        over = self._choice(
            (
                *(*_LISTS, f"messages[{at}:]", f"messages[:{at}]", "messages[-2:]", "messages[::2]", "[1, 2]"),
                *(f"tail[{at}:]", f"tools[:{at}]", "messages[ns.a:]", "l", f"range({at}, tail|length)"),
                *(f"range({at} + 1, messages|length)", f"range({at} - 1, -1, -1)", f"{item}.tool_calls or []"),
            )
        )
        self._nested_in = True
        inner = self._statements("n", 1, False, looped)
        self._nested_in = False
        guard = self._choice(["", "", "not ns.f", "not ns.f and n.role == 'user'", "loop.index0 < 2"])
        if guard:
            number = self._choice(["", "", "messages|length - 1 - loop.index0", "loop.index0 + t|length"])
            inner = (f"{{% set i = {number} %}}" if number else "") + f"{{% if {guard} %}}{inner}{{% endif %}}"
        return f"{{% for n in {over} %}}{inner}{{% endfor %}}"

    def _output(self, item: str = "messages[0]", calls: bool = False, looped: bool = False) -> str:
        if calls and self._random.random() < 0.25:
            given = self._choice(
                [f"f({item})", f"{self._callable}({item}, messages)", f"{self._callable}({item}, tail)", "f(t)"]
            )
            return f"{{{{ {given} }}}}"
        return f"{{{{ {self._value(item, looped)} }}}}"

    def _value(self, item: str, looped: bool) -> str:
        options = [
            f"{item}.content", f"{item}.role", f"{item}['role']", f"({item} | tojson)", "x", "y", "t", "eos_token",
            "ns.a", "ns.b", "ns.f", "other.a", "ns.b ~ '.'", "1", "'c'", "messages|length", "messages[0].role",
            "(messages[-1] or {}).content", "tools|length", "l[0]", "l|length", "(l or [])|length", "tail[0].content",
            "(once | list | length)", "once | join('.')", "l[1].content", "l[-1].role", "l[1:]|length",
        ]  # fmt: skip
        if looped:
            options += [
                "loop.index0", "loop.index", "loop.first", "loop.last", "loop.length", "loop.revindex0",
                "(loop.nextitem or {}).role", "(loop.previtem or {}).role", "messages[loop.index0 - 1].role",
                "(messages[loop.index0 + 1] or {}).content", "loop.cycle('p', 'q')", "loop.index0 + ns.a",
                "messages|length - 1 - loop.index0", "messages[loop.index0:loop.index0 + 2] | length",
                "tail[loop.index0:]|length", "tools[loop.index0:]|tojson", "messages[ns.b:]|length",
                "tail[loop.index0].role",
            ]  # fmt: skip
        return self._choice(options)

    def _test(self, item: str, looped: bool) -> str:
        options = [
            f"{item}.role == 'user'", f"{item}.role != 'assistant' and not ns.f", "ns.f", "not ns.f", "t", "x", "tools",
            f"{item}.tool_calls", f"{item}.content is string", "messages[0].role == 'system'", "ns.a == 1",
        ]  # fmt: skip
        if looped:
            options += ["loop.index0 > other.a", "loop.index0 <= t", "loop.last", "loop.first", "loop.index0 == ns.a",
                        "loop.index > messages|length - 2", f"{item} == messages[-1]"]  # fmt: skip
        return self._choice(options)
