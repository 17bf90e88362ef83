"""One template, many sessions: the incremental render beside the full one."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from toktier.errors import TakesLong, Unrenderable
from toktier.folding import Folded, FoldState, Rendered
from toktier.template import ChatTemplate, RenderRequest
from tools.folding.conversations import Session, steps

Outcome = tuple[str, str]


@dataclass
class Report:
    """Of one template. ``outputs`` and ``exceptions`` of the full render add up to ``checks``."""

    template: str
    digest: str
    """SHA-256 of its source."""
    seed: int
    """Of the first session; the others' follow."""
    sessions: int = 0
    checks: int = 0
    outputs: int = 0
    exceptions: int = 0
    mismatches: int = 0
    iterations: int = 0
    """That ran, in renders that did not fall back."""
    messages: int = 0
    """In those renders."""
    given_up: int = 0
    """Renders before them that were stopped on the way, or not accepted, and left the state as it was."""
    fallbacks: Counter[str] = field(default_factory=Counter)
    """Where the full render succeeded."""
    seconds: float = 0.0
    example: dict[str, Any] | None = None
    """The first mismatch: the seed and the step of the session, and the two outcomes."""


def run(name: str, source: str, checks: int, seed: int, deadline: float = float("inf")) -> Report:
    """At least ``checks`` checks unless ``deadline`` (of `time.process_time`) comes first. Raises what
    `ChatTemplate` raises, and `ValueError` for a template that is not folded at all."""
    template = ChatTemplate({"default": source})
    folded = Folded.of(template)
    if not isinstance(folded, Folded):
        raise ValueError(f"{folded.reason.value}: {folded.detail}")
    report = Report(name, hashlib.sha256(source.encode()).hexdigest(), seed)
    started = time.process_time()
    while report.checks < checks and time.process_time() < deadline:
        session(report, template, folded, seed + report.sessions)
        report.sessions += 1
    report.seconds = round(time.process_time() - started, 2)
    return report


def session(report: Report, template: ChatTemplate, folded: Folded, seed: int, count: int = 25) -> None:
    """One session's checks."""
    state = FoldState(folded)
    last: RenderRequest | None = None
    shown: list[str] = []
    good: list[dict[str, Any]] = []
    for number, (done, made) in enumerate(steps(seed, count)):
        fresh = made.random.random() < 0.5
        request = _requested(made, last, fresh)
        hint = _hint(last, request) if made.random.random() < 0.3 else None
        reference = copy.deepcopy(request)
        rendered: list[Rendered] = []
        twin = state.clone() if made.random.random() < 0.2 else None
        if made.random.random() < 0.15 and _given_up(state, request, made.random):
            report.given_up += 1

        got = outcome(partial(_incremental, state, request, hint, rendered))
        wanted = outcome(partial(template.render, reference))
        report.checks += 1
        wrong = "" if got == wanted else "text"
        if twin is not None:
            again: list[Rendered] = []
            if outcome(partial(_incremental, twin, request, hint, again)) != wanted:
                wrong = wrong or "text of the clone"
            elif again and _misreported(again[0], shown):
                wrong = wrong or "what the clone says of it"
        if wanted[0] == "ok":
            report.outputs += 1
            if rendered:
                wrong = wrong or _misreported(rendered[0], shown)
                shown = list(rendered[0].chunks)
                _count(report, rendered[0], len(request.messages))
        else:
            report.exceptions += 1
            shown = []
        if wrong:
            report.mismatches += 1
            if report.example is None:
                where = {"seed": seed, "step": number, "done": done, "wrong": wrong}
                report.example = where | {"got": got[1][-400:], "wanted": wanted[1][-400:]}
            state, shown = FoldState(folded), []
        if twin is not None and not wrong and made.random.random() < 0.5:
            state = twin
        last = request
        if wanted[0] == "ok":
            good = list(made.messages)
        elif made.random.random() < 0.9:
            made.messages[:] = good if made.random.random() < 0.7 else []


class Ticks(float):
    """A time limit that is over at the n-th look at the clock, wherever that is."""

    def __new__(cls, count: int) -> Ticks:
        made = super().__new__(cls, 1e9)
        made.left = count
        return made

    left: int

    def __radd__(self, _: object) -> Ticks:
        return self

    def __sub__(self, _: object) -> Ticks:
        return self

    def __ge__(self, _: object) -> bool:
        return False

    def __lt__(self, _: object) -> bool:
        self.left -= 1
        return self.left < 0


def _given_up(state: FoldState, request: RenderRequest, chance: random.Random) -> bool:
    """Renders something like the request and stops at some point, or does not accept what comes out. Whether the state
    says that it is still the last request's."""
    messages = [json.loads(json.dumps(one)) if chance.random() < 0.2 else one for one in request.messages]
    if messages and chance.random() < 0.7:
        del messages[chance.randrange(len(messages))]
    other = RenderRequest(messages, request.tools, request.kwargs)
    before = state.kept
    refuse = chance.random() < 0.5

    def accept(_common: int, _chars: int) -> None:
        raise TakesLong("accepted by nobody")

    with contextlib.suppress(Unrenderable, TakesLong):
        state.render(other, None, None if refuse else Ticks(chance.randrange(40)), accept)
    kept = state.kept
    assert kept is None or (before is not None and kept[0] is before[0])
    return kept is not None


def _incremental(state: FoldState, request: RenderRequest, hint: int | None, out: list[Rendered]) -> str:
    out.append(state.render(request, hint))
    return out[-1].chunks.text()


def _requested(made: Session, last: RenderRequest | None, fresh: bool) -> RenderRequest:
    """Objects of its own, as a parser makes them, or the last request's wherever the JSON is the same."""
    request = made.request()
    request = RenderRequest(*(json.loads(json.dumps(one)) for one in (request.messages, request.tools, request.kwargs)))
    if fresh or last is None:
        return request
    for at, (old, new) in enumerate(zip(last.messages, request.messages, strict=False)):
        if json.dumps(old) == json.dumps(new):
            request.messages[at] = old
    if json.dumps(last.tools) == json.dumps(request.tools):
        request.tools = last.tools
    return request


def _hint(last: RenderRequest | None, request: RenderRequest) -> int | None:
    if last is None:
        return None
    both = zip(last.messages, request.messages, strict=False)
    return next(
        (at for at, (old, new) in enumerate(both) if old is not new), min(len(last.messages), len(request.messages))
    )


def outcome(render: Callable[[], str]) -> Outcome:
    """("ok", the text) or (the exception's type, its message)."""
    try:
        return "ok", render()
    except Unrenderable as error:
        text = f"{error} {getattr(error, 'template_message', '')}"
        # What Python says of the stack's end depends on where it was met.
        return type(error).__name__, text.partition("maximum recursion depth exceeded")[0]


def _misreported(rendered: Rendered, before: list[str]) -> str:
    """What `Rendered` says wrongly about what changed."""
    chunks = list(rendered.chunks)
    first = rendered.first_changed_chunk
    if chunks[:first] != before[:first]:
        return "first_changed_chunk"
    if rendered.common != sum(map(len, chunks[:first])):
        return "common"
    if rendered.chars != sum(map(len, chunks)):
        return "chars"
    if any(type(chunk) is not str for chunk in chunks):
        return "type"
    return ""


def _count(report: Report, rendered: Rendered, messages: int) -> None:
    if rendered.fell_back is None:
        report.iterations += rendered.iterations
        report.messages += messages
    else:
        report.fallbacks[rendered.fell_back.value] += 1
