"""A model's chat templates with their loops folded, compiled once for all conversations.

Invariant: nothing of a conversation is in here. A compiled template hands each of its loops to what the render has as
`RUNNER`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.environment import Template
from jinja2.runtime import Context
from jinja2.sandbox import safe_range
from jinja2.utils import Namespace

from toktier.counted import count_loops
from toktier.folding.allowed import NotFolded
from toktier.folding.change import Change
from toktier.folding.functions import FUNCTIONS
from toktier.folding.plan import Program, program
from toktier.folding.reasons import Unfolds
from toktier.template import ChatTemplate
from toktier.template_limit import guard

RUNNER = "\0runner"
"""The argument with the loops of one render (`toktier.folding.fold.Runner`)."""


class FoldedText(str):
    """What a folded loop puts out. It prints nothing: the chunks are those of ``change``."""

    change: Change
    backwards: bool

    def __str__(self) -> str:
        return self


@dataclass(frozen=True, slots=True)
class Unfoldable:
    """No part of the template can be folded; renders are full ones."""

    reason: Unfolds
    detail: str


@dataclass(frozen=True, slots=True)
class Compiled:
    """One of a model's templates, folded. ``pure``: the `id` of functions that depend on their arguments only."""

    program: Program
    template: Template
    pure: frozenset[int]


class Counts:
    """How often, and why. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, **counts: int) -> None:
        with self._lock:
            for name, count in counts.items():
                self._counts[name] += count

    def snapshot(self) -> dict[str, int]:
        """``renders``, ``incremental``, ``raised``, ``iterations`` (run) and ``messages``; ``fallback_REASON``."""
        with self._lock:
            return dict(self._counts)


class Folded:
    """A model's chat template(s), folded. Thread-safe; a state is not."""

    def __init__(self, template: ChatTemplate, folded: Mapping[str, Compiled]) -> None:
        """``folded``: by source; `of` makes them."""
        self.template = template
        self.counts = Counts()
        self._folded = dict(folded)

    @classmethod
    def of(cls, template: ChatTemplate) -> Folded | Unfoldable:
        """Unfoldable where none of the model's templates folds; one that does not is rendered in full."""
        folded: dict[str, Compiled] = {}
        reason: NotFolded | None = None
        for source in template.sources():
            try:
                folded[source] = compiled(template.environment, source)
            except NotFolded as raised:
                reason = raised
        if folded:
            return cls(template, folded)
        assert reason is not None
        return Unfoldable(reason.reason, reason.detail)

    def for_request(self, *, tools: bool) -> Compiled | None:
        return self._folded.get(self.template.source(tools=tools))


def compiled(env: jinja2.Environment, source: str) -> Compiled:
    """Raises `NotFolded`, and ``jinja2.TemplateSyntaxError`` as Jinja does."""
    try:
        return _compiled(env, source)
    except NotFolded:
        raise
    except Exception as error:
        env.parse(source)  # raises where it is the template's own fault; else it can be rendered in full
        raise NotFolded(Unfolds.BROKEN, type(error).__name__) from error


def _compiled(env: jinja2.Environment, source: str) -> Compiled:
    overlay = env.overlay()
    overlay.filters = {**env.filters, **FUNCTIONS, "\0wants": _wants, "\0fold": _fold}
    made = program(env, source)
    count_loops(overlay, made.tree, source)
    guard(overlay, made.tree, made.names)
    template = Template.from_code(overlay, overlay.compile(made.tree), dict(env.globals))
    known = (safe_range, dict, Namespace, *(env.globals[name] for name in ("raise_exception", "lipsum")))
    return Compiled(made, template, frozenset(map(id, known)))


@jinja2.pass_context
def _wants(context: Context, loop: int, place: int) -> bool:
    return context.parent[RUNNER].wants(loop, place)  # type: ignore[no-any-return]


@jinja2.pass_context
def _fold(context: Context, _: None, loop: int, *given: tuple[Any, ...]) -> FoldedText:
    return context.parent[RUNNER].fold(loop, *given)  # type: ignore[no-any-return]
