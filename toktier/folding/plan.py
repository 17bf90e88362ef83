"""From a template's source to the same template with its loops folded.

Every loop at the level of the template (inside nothing but ``if``) that can be folded is replaced by

    {{ ITERABLE | take(K) }}                               evaluated where the template evaluates it
    a scope of its own:
        {% macro body(TARGET) %}REWRITTEN BODY{% endmacro %}
        {{ body | hold(K) }}
    another one:
        {{ none | fold(K, (SITES ...), (NAMESPACES ...)) }}

and the rest of the template stays. Jinja's own compiler then does what it always does about scopes, closures, undefined
names, white space and errors.

Why that changes nothing. (1) The iterable is evaluated at its place, in its scope. (2) A loop's body and a macro's body
are both scopes of their own right under the template's: a name that is only read is looked up outside, a name that is
assigned to starts, in both, as what it is outside or as undefined. ``loop`` is rewritten away, and names that mean
something else in a macro keep the loop as it is. (3) The sites are evaluated in a scope of their own, so that no name
is looked up at the level of the template, nor around the body, that was not looked up there before: where a template
reads a name in a loop and assigns to it further down, a look-up before that would make the argument of that name
visible. In the body itself each name stays in the scope in which it is first read or assigned to. (4) A site is
evaluated before the loop only if some kept iteration has evaluated it, in its own place.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import jinja2
from jinja2 import nodes

from toktier.folding.allowed import NotFolded, check
from toktier.folding.guards import add_breaks
from toktier.folding.notes import NotThisLoop, list_parameters, noted
from toktier.folding.reasons import Kept, Unfolds
from toktier.folding.rewrite import Rewriter
from toktier.folding.sites import Part, Read, Site, Sites
from toktier.folding.stretches import keep_stretches, macros_of_arguments
from toktier.folding.suffixes import searches
from toktier.folding.syntax import backwards, described, own, range_arguments

BITS = 62
"""Sites of one loop that are told apart. More than that share one, which only makes more iterations run again."""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """A folded loop. ``bits`` and ``slots`` are by the number of a site; a carried attribute has bit 0."""

    number: int
    line: int
    over: str
    sites: tuple[Site, ...]
    bits: dict[int, int]
    slots: dict[int, int]
    """Of `Read.LIST`: from 1; slot 0 is what the loop runs over."""
    namespaces: tuple[str, ...]
    attributes: tuple[tuple[str, str], ...]
    """That the body may write."""
    read: frozenset[tuple[str, str]]
    """Those of them that it may read."""
    lookups: tuple[int, ...]
    """Numbers of `Program.keys`."""
    stretches: int
    """How many the body has (see `stretches`)."""
    backwards: bool
    ranged: bool
    breaks: bool


@dataclass(frozen=True, slots=True)
class KeptLoop:
    """A loop that stays as it is."""

    line: int
    over: str
    reason: Kept
    detail: str


@dataclass(frozen=True, slots=True)
class Program:
    """A template with its loops folded. ``tree`` needs an environment with those of `functions` and `state`."""

    tree: nodes.Template
    loops: tuple[LoopPlan, ...]
    kept: tuple[KeptLoop, ...]
    names: frozenset[str]
    """Of the macros that are bodies, and of the targets of loops that run once in them."""
    keys: tuple[str, ...]
    """What each look-up searches for, for people."""


def program(env: jinja2.Environment, source: str) -> Program:
    """Raises `NotFolded`, and ``jinja2.TemplateSyntaxError`` as Jinja does."""
    return _Folder(env, source).run()


class _Folder:
    def __init__(self, env: jinja2.Environment, source: str) -> None:
        self._tree = tree = env.parse(source)
        self._functions = frozenset(env.filters) | frozenset(env.tests)
        self._written = check(tree)
        add_breaks(tree, self._written)
        self._macros: dict[str, list[nodes.Macro]] = {}
        for macro in tree.find_all(nodes.Macro):
            self._macros.setdefault(macro.name, []).append(macro)
        self._lists = list_parameters(tree)
        self._sites = Sites()
        self._effects = {name: _effects(macros) for name, macros in self._macros.items()}
        self._parts: dict[str, Part | NotThisLoop] = {}
        self._of_arguments: frozenset[str] = frozenset()
        self._loops: list[LoopPlan] = []
        self._kept: list[KeptLoop] = []
        self._prefix = "fold"
        while self._prefix in source:
            self._prefix += "_"

    def run(self) -> Program:
        inner: list[nodes.Node] = [*self._tree.find_all(nodes.For), *self._tree.find_all(nodes.Macro)]
        carried = frozenset((one.name, one.attr) for node in inner for one in node.find_all(nodes.NSRef))
        for name, macros in self._macros.items():
            self._parts[name] = self._macro(name, macros, carried)
        known = {name: part for name, part in self._parts.items() if isinstance(part, Part)}
        self._of_arguments = macros_of_arguments(
            {name: (self._macros[name], frozenset(part.calls)) for name, part in known.items()}
        )
        self._tree.body = self._statements(self._tree.body)
        if not self._loops:
            raise NotFolded(Unfolds.NO_LOOP)
        for number, found in enumerate(self._sites.lookups):
            target = nodes.Name(found.target, "param")
            collector = nodes.Macro(self._collector(number), [target], [], found.collector)
            self._tree.body.insert(0, collector.set_lineno(1))
        names = frozenset(f"{self._prefix}_{one}" for one in ("once", *(plan.number for plan in self._loops)))
        keys = tuple(described(found.key) for found in self._sites.lookups)
        return Program(self._tree, tuple(self._loops), tuple(self._kept), names, keys)

    def _macro(self, name: str, macros: list[nodes.Macro], carried: frozenset[tuple[str, str]]) -> Part | NotThisLoop:
        """Rewrites all definitions of a macro in place, or none of them."""
        whole = Part()
        lists = frozenset(one for one, unread in self._lists.get(name, {}).items() if unread)
        made: list[nodes.Macro] = []
        for macro in macros:
            new = copy.deepcopy(macro)
            rewriter = self._rewriter(new.body, carried, own=False, parameters=lists)
            try:
                rewriter.macro(new)
            except NotThisLoop as reason:
                return reason
            made.append(new)
            whole.add(rewriter.part)
        for macro, new in zip(macros, made, strict=True):
            macro.body, macro.defaults = new.body, new.defaults
        return whole

    def _rewriter(
        self,
        body: Sequence[nodes.Node],
        carried: frozenset[tuple[str, str]],
        *,
        own: bool,
        parameters: frozenset[str] = frozenset(),
    ) -> Rewriter:
        macros = frozenset(self._macros)
        return Rewriter(
            self._sites,
            macros,
            self._written,
            self._lists,
            body=body,
            carried=carried,
            own=own,
            parameters=parameters,
            functions=self._functions,
        )

    def _statements(self, body: list[nodes.Node]) -> list[nodes.Node]:
        out: list[nodes.Node] = []
        for node in body:
            if isinstance(node, nodes.For):
                for one in [*self._searches(node), node]:
                    out += self._loop(one) if isinstance(one, nodes.For) else [one]
                continue
            if isinstance(node, nodes.If):
                node.body = self._statements(node.body)
                node.elif_ = self._statements(node.elif_)  # type: ignore[assignment,arg-type]
                node.else_ = self._statements(node.else_)
            out.append(node)
        return out

    def _searches(self, node: nodes.For) -> list[nodes.Node]:
        before = searches(node, f"{self._prefix}_last_{len(self._loops)}")
        self._written |= {one.target.name for one in before if isinstance(one, nodes.Assign)}  # type: ignore[attr-defined]
        return before

    def _loop(self, node: nodes.For) -> list[nodes.Node]:
        try:
            return self._folded(copy.deepcopy(node))
        except NotThisLoop as kept:
            self._kept.append(KeptLoop(node.lineno, described(node.iter), kept.reason, kept.detail))
            return [node]

    def _folded(self, node: nodes.For) -> list[nodes.Node]:
        if node.test is not None:
            raise NotThisLoop(Kept.FILTERED)
        if node.else_:
            raise NotThisLoop(Kept.ELSE)
        if node.recursive:
            raise NotThisLoop(Kept.RECURSIVE)
        if not isinstance(node.target, nodes.Name):
            raise NotThisLoop(Kept.UNPACKS)
        over = described(node.iter)
        reversed_of = backwards(node.iter)
        ranged = range_arguments(node.iter) is not None
        breaks = any(own(node.body, nodes.Break))
        writes, _ = self._reached([node])
        rewriter = self._rewriter(node.body, frozenset(writes), own=True)
        rewriter.loop(node, reversed_of)
        part = self._with_macros(rewriter.part)
        stretches = 0
        if part.reads & part.writes or any(self._sites.all[one].read is Read.THRESHOLD for one in part.sites):
            # One change makes many iterations run again, of items that stay.
            stretches = keep_stretches(node, self._of_arguments, f"{self._prefix}_text")
        plan = self._plan(len(self._loops), node.lineno, over, part, reversed_of is not None, ranged, breaks, stretches)
        out = self._emitted(node, plan, reversed_of or node.iter)
        self._loops.append(plan)
        return out

    def _reached(self, roots: Sequence[nodes.Node]) -> tuple[set[tuple[str, str]], set[str]]:
        """What a body may write, in the macros that it can call too, and these macros."""
        writes, todo = _effects(roots)
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name in seen or name not in self._effects:
                continue
            seen.add(name)
            more, calls = self._effects[name]
            writes |= more
            todo |= calls
        return writes, seen

    def _with_macros(self, part: Part) -> Part:
        whole = Part()
        whole.add(part)
        todo = set(part.calls)
        seen: set[str] = set()
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            reached = self._parts[name]
            if isinstance(reached, NotThisLoop):
                raise NotThisLoop(reached.reason, f"in macro {name}: {reached.detail}")
            whole.add(reached)
            todo |= reached.calls
        return whole

    def _plan(
        self, number: int, line: int, over: str, part: Part, backwards: bool, ranged: bool, breaks: bool, stretches: int
    ) -> LoopPlan:
        sites = [self._sites.all[one] for one in sorted(part.sites)]
        carried = [site for site in sites if site.attribute in part.writes]
        sites = [site for site in sites if site.attribute not in part.writes]
        bits = {site.number: 0 for site in carried}
        slots: dict[int, int] = {}
        for site in sites:
            if site.read is not Read.OUTER:
                bits[site.number] = 1 << min(len(bits) - len(carried), BITS)
            if site.read is Read.LIST:
                slots[site.number] = 1 + len(slots)
        attributes = tuple(sorted(part.writes))
        return LoopPlan(
            number=number,
            line=line,
            over=over,
            sites=tuple(sites),
            bits=bits,
            slots=slots,
            namespaces=tuple(sorted({name for name, _ in attributes})),
            attributes=attributes,
            read=frozenset(part.reads & part.writes),
            lookups=tuple(sorted(part.lookups)),
            stretches=stretches,
            backwards=backwards,
            ranged=ranged,
            breaks=breaks,
        )

    def _collector(self, number: int) -> str:
        return f"{self._prefix}_keys_{number}"

    def _emitted(self, node: nodes.For, plan: LoopPlan, iterable: nodes.Node) -> list[nodes.Node]:
        assert isinstance(node.target, nodes.Name)
        body = node.body
        if any(own(body, nodes.Break)) or any(own(body, nodes.Continue)):
            once = nodes.Name(f"{self._prefix}_once", "store")
            body = [nodes.For(once, nodes.Tuple([nodes.Const(0)], "load"), _noted_breaks(body), [], None, False)]
        name = f"{self._prefix}_{plan.number}"
        macro = nodes.Macro(name, [nodes.Name(node.target.name, "param")], [], body)
        sites = nodes.Tuple([_evaluated(plan, place) for place in range(len(plan.sites))], "load")
        spaces = nodes.Tuple([nodes.Name(one, "load") for one in plan.namespaces], "load")
        collectors = nodes.Tuple([nodes.Name(self._collector(one), "load") for one in plan.lookups], "load")
        held = noted(nodes.Name(name, "load"), "hold", plan.number)
        call = noted(nodes.Const(None), "fold", plan.number, sites, spaces, collectors)
        out: list[nodes.Node] = [
            nodes.Output([noted(iterable, "take", plan.number)]),
            nodes.Scope([macro, nodes.Output([held])]),
            nodes.Scope([nodes.Output([call])]),
        ]
        for made in out:
            made.set_lineno(node.lineno)
        return out


def _evaluated(plan: LoopPlan, place: int) -> nodes.Expr:
    """A site's value, where it is wanted. Names cannot raise; they are always taken."""
    site = plan.sites[place]
    value = copy.deepcopy(site.node)
    if site.read in (Read.OUTER, Read.LIST):
        return value
    return nodes.CondExpr(noted(nodes.Const(plan.number), "wants", place), value, nodes.Const(None))


def _effects(roots: Sequence[nodes.Node]) -> tuple[set[tuple[str, str]], set[str]]:
    """The attributes that are written in ``roots`` and the names that are called."""
    writes: set[tuple[str, str]] = set()
    calls: set[str] = set()
    for root in roots:
        writes |= {(one.name, one.attr) for one in root.find_all(nodes.NSRef)}
        calls |= {call.node.name for call in root.find_all(nodes.Call) if isinstance(call.node, nodes.Name)}
    return writes, calls


def _noted_breaks(body: list[nodes.Node]) -> list[nodes.Node]:
    """A loop's own ``break`` ends the iteration, and says that it was the last."""
    out: list[nodes.Node] = []
    for node in body:
        if isinstance(node, nodes.Break):
            out += [nodes.ExprStmt(noted(nodes.Const(None), "loop_break")), nodes.Continue()]
            continue
        if isinstance(node, nodes.If):
            node.body = _noted_breaks(node.body)
            node.elif_ = _noted_breaks(node.elif_)  # type: ignore[assignment,arg-type]
            node.else_ = _noted_breaks(node.else_)
        elif isinstance(node, nodes.With):
            node.body = _noted_breaks(node.body)
        elif any(own([node], nodes.Break)):
            raise NotThisLoop(Kept.SYNTAX, "a break in an odd place")
        out.append(node)
    return out
